"""Scores the trained model on the test split, once.

Reads   data/packed, models/model.pt
Writes  metrics/test.json, plots/evaluation, reports/evaluation
Keys    evaluate
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.params import flatten, read_params

if TYPE_CHECKING:
    from darkroom.evaluation.predictions import Predictions
    from darkroom.evaluation.scores import Scores
    from darkroom.models import SavedModel
    from darkroom.packed import PackedSet, Split
    from darkroom.params import Evaluate
    from darkroom.tracking.runs import StageRun
    from darkroom.tracking.store import Store

KEYS: tuple[str, ...] = ("evaluate",)


def main() -> None:
    params = read_params()
    from darkroom.models import load_model
    from darkroom.packed import open_packed
    from darkroom.tracking import open_store

    packed = open_packed(Path("data/packed"), "test")
    saved = load_model(Path("models/model.pt"))
    store = open_store(params.tracking, root())
    numbers = evaluate(packed, saved, evaluate=params.evaluate, store=store, out=Path())
    say(
        f"test: accuracy {numbers['accuracy']:.4f}, macro F1 {numbers['macro_f1']:.4f}, nll {numbers['nll']:.4f} "
        f"on {numbers['num_images']} pictures"
    )
    say("wrote metrics/test.json, plots/evaluation, reports/evaluation; next: dvc repro export")
    say(store.farewell(str(numbers["mlflow_run_id"])))


def evaluate(
    packed: PackedSet, saved: SavedModel, *, evaluate: Evaluate, store: Store, out: Path
) -> dict[str, float | int | str]:
    """Scores `saved` on the test split of `packed`, records the run in `store` and writes the stage's files below `out`.

    fp32, so batch size and device change no score beyond rounding. nll and confidences are those of the calibrated
    probabilities, as the exported model gives them. Gives what metrics/test.json holds.
    Raises UserError where `packed` is not what the model was trained on, or its test split is damaged or empty.
    """
    from darkroom.evaluation.inference import device_like, logits_of
    from darkroom.evaluation.predictions import Predictions
    from darkroom.evaluation.scores import scores
    from darkroom.files import write_json

    packed.check_same(saved.data_sha256)
    test = packed.split("test")
    if len(test) == 0:
        raise UserError(f"{packed.folder} has no test picture: set data.test_fraction above 0, or add test pictures")
    values = flatten({"evaluate": evaluate.model_dump()})
    with store.join("evaluate", values, run_id=saved.run_id, model_sha256=saved.model_sha256) as run:
        device = device_like(str(saved.made_with["device"]))
        logits = logits_of(saved.build(), test.images, batch_size=evaluate.batch_size, device=device)
        predictions = Predictions.of(logits, test.labels, classes=saved.classes, temperature=saved.temperature)
        found = scores(predictions.log_probabilities, test.labels)
        _write_plots(out / "plots/evaluation", found, predictions, test, num_drawn=evaluate.mistakes)
        _write_tables(out / "reports/evaluation", predictions)
        numbers = {**found.metrics(), "model_sha256": saved.model_sha256, "mlflow_run_id": run.run_id}
        write_json(out / "metrics/test.json", numbers)
        _record(run, found, saved.classes, out)
    return numbers


def _write_plots(folder: Path, found: Scores, predictions: Predictions, test: Split, *, num_drawn: int) -> None:
    from darkroom.evaluation.pictures import confusion_picture, mistakes_picture
    from darkroom.evaluation.predictions import confusion_table, per_class_table
    from darkroom.files import write_bytes, write_text

    write_text(folder / "confusion.csv", confusion_table(predictions))
    write_text(folder / "per_class.csv", per_class_table(found, predictions.classes))
    write_bytes(folder / "confusion.png", confusion_picture(found.confusion, predictions.classes))
    write_bytes(folder / "mistakes.png", mistakes_picture(predictions, test.images, num_drawn))


def _write_tables(folder: Path, predictions: Predictions) -> None:
    from darkroom.evaluation.predictions import mistakes_table, predictions_table
    from darkroom.files import write_text

    write_text(folder / "predictions.csv", predictions_table(predictions))
    write_text(folder / "mistakes.csv", mistakes_table(predictions))


def _record(run: StageRun, found: Scores, classes: list[str], out: Path) -> None:
    """The whole's scores as test_accuracy …, a class's as test_f1/<class> …; a class without pictures has none."""
    run.metrics({f"test_{name}": number for name, number in found.metrics().items()})
    shown = [i for i, num_images in enumerate(found.support) if num_images]
    for name in ("precision", "recall", "f1"):
        run.metrics({f"test_{name}/{classes[i]}": float(getattr(found, name)[i]) for i in shown})
    run.artifact(out / "metrics/test.json", "metrics")
    run.artifacts(out / "plots/evaluation", "plots/evaluation")
    run.artifacts(out / "reports/evaluation", "reports/evaluation")


if __name__ == "__main__":
    enter(main)
