"""Where runs are recorded: the address rule, and how an address is shown."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from darkroom.errors import UserError

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SERVERS = ("http", "https")
DATABRICKS = ("databricks", "databricks-uc", "uc")


@dataclass(frozen=True)
class Address:
    """An absolute tracking address."""

    uri: str
    """as MLflow takes it; may hold a password, so it is shown as `shown` only"""
    default: bool
    """whether nothing was set, so that it is mlflow.db below the root"""

    @property
    def kind(self) -> str:
        """The scheme without its driver: sqlite, postgresql, http ..."""
        return scheme(self.uri)

    @property
    def is_database(self) -> bool:
        return self.kind in DATABASES

    @property
    def is_server(self) -> bool:
        return self.kind in SERVERS

    @property
    def file(self) -> Path | None:
        """The file of a sqlite database."""
        return _sqlite_file(self.uri) if self.kind == "sqlite" else None

    @property
    def shown(self) -> str:
        return masked(self.uri)

    @property
    def page(self) -> str:
        """A server's address as a browser takes it, without name and password, ending in a slash."""
        return re.sub(r"//.*@", "//", self.uri).rstrip("/") + "/"


def find_address(tracking_uri: str, root: Path) -> Address:
    """MLFLOW_TRACKING_URI if set, else `tracking_uri` (the key tracking.uri), else mlflow.db below `root`.

    Always absolute: a relative one would create its database in the copy that a temporary experiment is deleted with.
    Raises UserError for a folder, a file store or anything else that MLflow 3 keeps no runs in.
    """
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if from_environment:
        return Address(_absolute(from_environment, "MLFLOW_TRACKING_URI", root), default=False)
    if tracking_uri.strip():
        _refuse_password(tracking_uri)
        return Address(_absolute(tracking_uri.strip(), "tracking.uri", root), default=False)
    return Address(sqlite_uri(root / "mlflow.db"), default=True)


def sqlite_uri(path: Path) -> str:
    return f"sqlite:///{path.absolute().as_posix()}"


def scheme(uri: str) -> str:
    return uri.split(":", 1)[0].split("+", 1)[0].lower() if uri not in DATABRICKS else "databricks"


def masked(text: str) -> str:
    """`text` with the password of each address in it replaced by ***."""
    text = re.sub(
        r"(?P<start>[a-z][a-z0-9+.-]*://)[^/@\s'\"]*:[^/\s'\"]*@", r"\g<start>***:***@", text, flags=re.IGNORECASE
    )
    return re.sub(
        r"(?P<start>[?&](?:password|passwd|pwd|token|secret)=)[^&\s'\"]*", r"\g<start>***", text, flags=re.IGNORECASE
    )


def first_line(error: BaseException) -> str:
    """What an error says in its first line, without passwords; empty where it says nothing."""
    lines = masked(str(error)).strip().splitlines()
    return lines[0] if lines else ""


def _absolute(uri: str, setting: str, root: Path) -> str:
    kind = scheme(uri)
    if kind == "sqlite":
        return sqlite_uri(root / _sqlite_file(uri)) + _query(uri)
    if (kind in (*DATABASES, *SERVERS) and "://" in uri) or kind == "databricks":
        return uri
    raise UserError(
        f"{setting}: {masked(uri)!r} is no tracking address (MLflow no longer keeps runs in folders); use"
        f" {sqlite_uri(root / 'mlflow.db')} (the same as leaving it empty), http://HOST:PORT or postgresql://…"
    )


def _sqlite_file(uri: str) -> Path:
    """The path in sqlite:///relative.db, sqlite:////absolute.db or sqlite:///C:/absolute.db."""
    path = uri.split(":", 1)[1].split("?", 1)[0]
    name = path.removeprefix("///")
    if not path.startswith("///") or name in ("", ":memory:"):
        raise UserError(
            f"{masked(uri)!r} keeps runs in memory only; use sqlite:////absolute/path.db, or leave the address empty"
        )
    return Path(name)


def _query(uri: str) -> str:
    return f"?{uri.split('?', 1)[1]}" if "?" in uri else ""


def _refuse_password(uri: str) -> None:
    """params.yaml goes into git and, byte for byte, into every run."""
    if masked(uri) != uri or urlsplit(uri).password:
        raise UserError(
            f"tracking.uri: {masked(uri)!r} holds a password, which git and every run would keep; put the address into"
            " MLFLOW_TRACKING_URI, or the name and password into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
