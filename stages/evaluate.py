"""Scores the trained model on the test split, once.

Reads   data/packed, models/model.pt, evaluate.against
Writes  metrics/test.json, plots/evaluation, reports/evaluation
Keys    evaluate
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.params import flatten, read_params

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from darkroom.evaluation.corruptions import Corrupted
    from darkroom.evaluation.findings import Findings
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
        f"test: accuracy {numbers['accuracy']:.4f} ({numbers['accuracy_low']:.4f} to {numbers['accuracy_high']:.4f}), "
        f"macro F1 {numbers['macro_f1']:.4f}, nll {numbers['nll']:.4f}, ECE {numbers['ece']:.4f} "
        f"on {numbers['num_images']} pictures"
    )
    for name, found in numbers.get("against", {}).items():
        say(
            f"against {name}: accuracy {found['difference']:+.4f} ({found['difference_low']:+.4f} to "
            f"{found['difference_high']:+.4f}), McNemar p {found['mcnemar_p']:.3g}"
        )
    say("wrote metrics/test.json, plots/evaluation, reports/evaluation; next: dvc repro export")
    say(store.farewell(str(numbers["mlflow_run_id"])))


def evaluate(packed: PackedSet, saved: SavedModel, *, evaluate: Evaluate, store: Store, out: Path) -> dict[str, Any]:
    """Scores `saved` on the test split of `packed`, records the run in `store` and writes the stage's files below `out`.

    fp32, so batch size and device change no score beyond rounding. nll and confidences are those of the calibrated
    probabilities, as the exported model gives them. Gives what metrics/test.json holds.
    Raises UserError where `packed` is not what the model was trained on, its test split is damaged or empty, or
    `evaluate.against` holds predictions of other pictures.
    """
    from darkroom.evaluation.comparing import image_ids
    from darkroom.files import write_json

    packed.check_same(saved.data_sha256)
    test = packed.test()
    values = flatten({"evaluate": evaluate.model_dump()})
    with store.join("evaluate", values, run_id=saved.run_id, model_sha256=saved.model_sha256) as run:
        run.model(saved.model_sha256)
        ids = image_ids(test.images)
        found = _findings(saved, test, ids, packed.shorter_sides("test"), evaluate)
        found.write_plots(out / "plots/evaluation", test.images, evaluate.mistakes)
        found.write_tables(out / "reports/evaluation", ids)
        numbers = {**found.metrics(), "model_sha256": saved.model_sha256, "mlflow_run_id": run.run_id}
        write_json(out / "metrics/test.json", numbers)
        _record(run, found, out)
    return numbers


def _findings(
    saved: SavedModel, test: Split, ids: list[str], sides: NDArray[np.int64] | None, evaluate: Evaluate
) -> Findings:
    from darkroom.evaluation.attention import class_activation
    from darkroom.evaluation.calibration import calibration
    from darkroom.evaluation.comparing import compare, others, read_predicted
    from darkroom.evaluation.findings import Findings
    from darkroom.evaluation.inference import VIEWS, device_like, logits_of
    from darkroom.evaluation.predictions import Predictions
    from darkroom.evaluation.scores import scores
    from darkroom.evaluation.slices import properties, slices
    from darkroom.evaluation.uncertainty import Level, intervals

    labels, classes, level = test.labels, saved.classes, Level(evaluate.resamples, evaluate.confidence)
    told = {name: read_predicted(path, ids, labels, classes) for name, path in others(Path(evaluate.against))}
    model, device = saved.build(), device_like(str(saved.made_with["device"]))

    def views(images: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        size = evaluate.batch_size
        return [logits_of(model, images, batch_size=size, device=device, view=view) for view in VIEWS[evaluate.tta]]

    def hits(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        return Predictions.of(views(images), labels, classes=classes, temperature=saved.temperature).hits

    seen = views(test.images)
    predictions, raw = (
        Predictions.of(seen, labels, classes=classes, temperature=each) for each in (saved.temperature, 1.0)
    )
    found = scores(predictions.log_probabilities, labels)
    drawn = predictions.mistakes[: evaluate.mistakes if evaluate.attention else 0]
    return Findings(
        predictions,
        found,
        intervals(found, level),
        calibration(predictions),
        {"nll": scores(raw.log_probabilities, labels).nll, **calibration(raw).metrics()},
        list(slices(properties(test.images, sides), predictions.hits)),
        _corrupted(test, hits, evaluate),
        {name: compare(labels, predictions.predicted, other, len(classes), level) for name, other in told.items()},
        class_activation(model, test.images[drawn], predictions.predicted[drawn]) if len(drawn) else None,
    )


def _corrupted(
    test: Split, hits: Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.bool_]], evaluate: Evaluate
) -> list[Corrupted]:
    """On test pictures spread evenly over the split; says what there was no time for."""
    import numpy as np

    from darkroom.evaluation.corruptions import CORRUPTIONS, score_corrupted
    from darkroom.packed import spread

    if not evaluate.corrupted_images:
        return []
    places = spread(len(test), evaluate.corrupted_images)
    images, labels = np.array(test.images[places]), test.labels[places]
    found = score_corrupted(
        lambda worse: hits(worse, labels), images, batch_size=evaluate.batch_size, seconds=evaluate.corrupted_seconds
    )
    if left := [name for name in CORRUPTIONS if name not in {each.corruption for each in found}]:
        say(
            f"not scored after evaluate.corrupted_seconds: {evaluate.corrupted_seconds:g}: {', '.join(left)}, and no mean: "
            "raise it, or lower evaluate.corrupted_images"
        )
    return found


def _record(run: StageRun, found: Findings, out: Path) -> None:
    """The whole's scores as test_accuracy …, test_against.<name>.difference …, a class's as test_f1/<class> …

    A class without pictures has none.
    """
    run.metrics(flatten(found.metrics(), "test_"))
    classes, scores = found.predictions.classes, found.scores
    shown = [i for i, num_images in enumerate(scores.support) if num_images]
    for name in ("precision", "recall", "f1"):
        run.metrics({f"test_{name}/{classes[i]}": float(getattr(scores, name)[i]) for i in shown})
    for end, values in zip(("low", "high"), found.intervals.f1, strict=True):
        run.metrics({f"test_f1_{end}/{classes[i]}": float(values[i]) for i in shown})
    run.artifact(out / "metrics/test.json", "metrics")
    run.artifacts(out / "plots/evaluation", "plots/evaluation")
    run.artifacts(out / "reports/evaluation", "reports/evaluation")


if __name__ == "__main__":
    enter(main)
