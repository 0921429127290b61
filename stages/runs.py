"""Tells a run's whole story: pictures, code, training, scores, files, versions, and the command that makes it again.

Run by hand: python stages/runs.py show RUN [--format text|json]
RUN is a run's id or the start of it, a DVC experiment's or a run's name, or models:/NAME@champion.

Reads   the tracking store
Keys    tracking
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root
from darkroom.params import read_params

if TYPE_CHECKING:
    from darkroom.tracking.store import Store


SHOWN = 5
"""runs below a run that are named"""


def main() -> None:
    options = _options()
    params = read_params()
    from darkroom.tracking import open_store

    values = runs(options.run, store=open_store(params.tracking, root()))
    print(json.dumps(values, indent=2, ensure_ascii=False) if options.format == "json" else "\n".join(_lines(values)))


def runs(what: str, *, store: Store) -> dict[str, Any]:
    """The story of the run that `what` names, as plain values. Raises UserError where it names none, or several."""
    from darkroom.tracking.tracing import trace

    return trace(store, what).values()


def _lines(values: dict[str, Any]) -> Iterator[str]:
    run, data, code = values["run"], values["data"], values["code"]
    stages = ", ".join(f"{stage} {state}" for stage, state in values["stages"].items())
    yield f"run {run['id']} ({run['name']}) is {run['status']}" + (f": {stages}" if stages else "")
    counts = ", ".join(f"{data[split]:,} {split}" for split in ("train", "val", "test") if split in data)
    yield f"  data       {data['name'] or '?'}, sha256 {data['sha256'] or '?'}" + (f" ({counts})" if counts else "")
    yield f"  code       {code['commit'] or 'no commit'}" + (
        ", with changes: code.diff in the run" if code["uncommitted"] else ""
    )
    for label, key in (("sweep", "sweep"), ("trained in", "trained_in")):
        if values[key]:
            yield f"  {label:<10} {values[key]}"
    if values["experiment"]["name"]:
        yield f"  experiment {values['experiment']['name']}, from {values['experiment']['baseline']}"
    yield f"  model      {values['model_sha256'] or 'none'}"
    yield "  scores     " + (", ".join(f"{name} {score:.4f}" for name, score in values["scores"].items()) or "none")
    yield f"  files      {', '.join(values['files']) or 'none'}"
    for version in values["versions"]:
        aliases = f" ({', '.join(version['aliases'])})" if version["aliases"] else ""
        yield f"  version    models:/{version['name']}/{version['version']}{aliases}"
    for heir in values["taken_over_by"]:
        yield f"  goes on in {heir}"
    if below := values["below"]:
        yield f"  below it   {', '.join(below[:SHOWN])}" + (
            f" and {len(below) - SHOWN} more" if len(below) > SHOWN else ""
        )
    yield f"  again      {values['again'] or 'not known: the run was made outside git, or did not finish'}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tells a run's whole story.")
    parser.add_argument("what", choices=["show"])
    parser.add_argument("run", help="a run's id, a DVC experiment's or a run's name, or models:/NAME@champion")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    return parser.parse_args()


if __name__ == "__main__":
    enter(main)
