"""Writes what is derived from elsewhere: torchvision's names and the JSON schema (`make generate`).

Both are committed, so that parameters are checked without importing torchvision and editors need no program.
A test compares them with what this writes today.
"""

from __future__ import annotations

import json
from pathlib import Path

from darkroom.params import Params

HERE = Path(__file__).resolve().parent


def torchvision_names() -> str:
    """The source of torchvision_names.py."""
    import torchvision
    from torchvision.models import list_models

    names = "".join(f'    "{name}",\n' for name in list_models(module=torchvision.models))
    return f'"""Torchvision\'s classifiers, written by `make generate`."""\n\nTORCHVISION_CLASSIFIERS = (\n{names})\n'


def params_schema() -> str:
    """The JSON schema of params.yaml, for editors (https://json-schema.org, draft 2020-12)."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Params.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def main() -> None:
    (HERE / "torchvision_names.py").write_text(torchvision_names())
    (HERE.parents[2] / "params.schema.json").write_text(params_schema())


if __name__ == "__main__":
    main()
