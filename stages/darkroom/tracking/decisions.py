"""A promotion's decision as it is kept: who, when, and under which key."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from darkroom.files import sha256_bytes
from darkroom.tracking import machine

DECISION = "darkroom.decision."
"""start of the registered model's tags that hold one decision each"""


def stamped(decision: Mapping[str, Any]) -> dict[str, Any]:
    """The decision with when and who; as it is where it has them already."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H.%M.%S.%fZ")
    return {"when": now, "who": f"{getpass.getuser()} on {machine.host()}", **decision}


def kept(decided: Mapping[str, Any]) -> tuple[str, str]:
    """Key and text of the registered model's tag; the same decision has the same key, so it is kept once."""
    short = {key: value for key, value in decided.items() if key != "gates"}  # a tag's length is limited
    text = json.dumps(short, ensure_ascii=False)
    return f"{DECISION}{decided['when']}-{sha256_bytes(text.encode())[:4]}", text
