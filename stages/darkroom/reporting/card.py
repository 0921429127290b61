"""The model card: what a model is for, what it was made of, and where it fails. It travels with the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from darkroom.reporting.results import Results
from darkroom.reporting.summary import summary
from darkroom.reporting.wording import number, percent

Parameters = Mapping[str, Mapping[str, Any]]


def title_of(parameters: Parameters) -> str:
    return f"{parameters['model']['name']} on {parameters['data']['name']}"


def card(results: Results, parameters: Parameters) -> dict[str, str]:
    """Name and plain text of each line."""
    data, train = results.data, results.train
    size = data["image_size"]
    lines = {
        "what it does": (
            f"Names one of {len(data['classes'])} classes for a picture of {size} × {size} pixels "
            f"({'grey' if data['channels'] == 1 else 'RGB'}); larger ones are made to fit ({parameters['data']['resize']}). The "
            "exported files do their own scaling."
        ),
        "network": (
            f"{parameters['model']['name']}, {number(train['num_parameters'])} weights, {train['precision']} in training, float32 "
            "in the files"
        ),
        "trained on": "; ".join(_pictures(data, parameters)),
        "chosen by": f"validation pictures ({number(data['num_val'])}), never by the test",
        "meant for": (
            "pictures like those it was trained on. It answers with one of its classes whatever it is shown: a low confidence is "
            "the only sign of a picture that is none of them."
        ),
        "known limits": "; ".join(_limits(results)),
    }
    if (tta := parameters["evaluate"]["tta"]) != "none":
        lines["scored with"] = f"several views of each picture (evaluate.tta: {tta}); the exported files take one view"
    return lines


def as_markdown(results: Results, parameters: Parameters) -> str:
    """The card as a file: the findings in sentences, the lines, and which model it is."""
    lines = {
        **card(results, parameters),
        "weights": f"sha256 {results.train['model_sha256']}",
        "run": results.train["mlflow_run_id"],
    }
    told = [f"# {_plain(title_of(parameters))}", *map(_plain, summary(results, parameters))]
    return "\n\n".join([*told, "\n".join(f"- **{name}**: {_plain(text)}" for name, text in lines.items())]) + "\n"


def _pictures(data: Mapping[str, Any], parameters: Parameters) -> Iterator[str]:
    yield f"{parameters['data']['name']}: {number(data['num_train'])} pictures, sha256 {data['sha256'][:12]}"
    if data["num_duplicates"]:
        yield f"{number(data['num_duplicates'])} pictures stand in two splits"
    if data["num_left_out"]:
        yield f"{number(data['num_left_out'])} files were left out"


def _limits(results: Results) -> Iterator[str]:
    test = results.test
    if results.weakest:
        yield f"weakest on {results.weakest['class']}"
    if "mean" in test.get("corruption_error", {}):
        corrupted, clean = test["corruption_error"]["mean"], 1 - test["accuracy"]
        yield f"{percent(corrupted, 1)} errors on corrupted pictures, {percent(clean, 1)} on clean ones"
    yield "not tested on anything that the test split does not show"


def _plain(text: str) -> str:
    """Text that Markdown takes as it is: a class may be called *, _ or <b>."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)
