"""The whole `dvc repro` in a fresh clone, and the everyday commands of DVC on what it leaves."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path

from darkroom.params import check_params, flatten, parse_yaml
from pipelines import SMALL, Pipeline, all_runs, artifacts_of, changed, hashes, results, series

STAGES = ("download", "prepare", "train", "evaluate", "export", "report")
METRICS = {
    "data": {"classes", "num_train", "num_val", "num_test", "sha256", "mean", "std"},
    "train": {"val_accuracy", "val_loss", "best_epoch", "best_val_accuracy", "epochs", "steps", "epoch_train_loss", "temperature",
              "images_per_s", "seconds", "num_parameters", "precision", "device", "threads", "model_sha256", "mlflow_run_id"},
    "test": {"accuracy", "accuracy_low", "accuracy_high", "top5_accuracy", "macro_precision", "macro_recall", "macro_f1", "nll",
             "ece", "brier", "num_images", "model_sha256", "mlflow_run_id"},
    "export": {"onnx", "torchscript", "torch_export", "int8", "pytorch", "mlflow_run_id", "model_sha256"},
}  # fmt: skip


def test_everything_that_dvc_yaml_promises_is_there(pipeline: Pipeline):
    assert [name for name in results() if not (pipeline.folder / name).exists()] == []
    for name, keys in METRICS.items():
        values = pipeline.json(f"metrics/{name}.json")
        assert keys <= set(values), name
        text = (pipeline.folder / f"metrics/{name}.json").read_text()
        assert json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n" == text
    assert (pipeline.folder / "reports/report.html").read_text().startswith("<!")


def test_one_model_and_one_run_go_through_all_stages(pipeline: Pipeline):
    values = [pipeline.json(f"metrics/{name}.json") for name in ("train", "test", "export")]
    assert len({value["mlflow_run_id"] for value in values}) == 1
    assert len({value["model_sha256"] for value in values}) == 1
    assert 0 <= values[1]["accuracy"] <= 1
    assert values[1]["num_images"] == pipeline.json("metrics/data.json")["num_test"] == 719
    for name in ("onnx", "torchscript", "torch_export"):
        assert values[2][name]["same_classes"] == 1
        assert values[2][name]["max_difference"] < 1e-3
        assert values[2][name]["accuracy"] == values[2]["pytorch"]["accuracy"] == values[1]["accuracy"]
    assert values[2]["int8"]["accuracy"] >= values[1]["accuracy"] - 0.5


def test_the_run_holds_all_parameters_series_scores_and_files(pipeline: Pipeline):
    run = all_runs(pipeline)[0]
    assert run.info.status == "FINISHED"
    assert run.info.run_id == pipeline.json("metrics/train.json")["mlflow_run_id"]
    values = flatten(check_params(parse_yaml((pipeline.folder / "params.yaml").read_text())))
    taken = {key for key in values if key.partition(".")[0] in ("augment", "model", "train", "evaluate", "export")}
    assert taken <= set(run.data.params)
    assert float(run.data.params["train.lr"]) == 0.003
    steps = pipeline.json("metrics/train.json")["steps"]
    for name in ("train_loss", "lr", "grad_norm"):
        assert [step for step, _ in series(pipeline, run, name)] == list(range(1, steps + 1)), name
    for name in ("val_loss", "val_accuracy"):
        points = series(pipeline, run, name)
        assert [step for step, _ in points][:2] == [1, 2]
        # the chosen weights in float32: logged where they differ from the epoch's, in bf16
        assert (2, pipeline.json("metrics/train.json")[name]) in points
        assert len(set(points)) == len(points), "nothing twice"
    assert math.isclose(run.data.metrics["test_accuracy"], pipeline.json("metrics/test.json")["accuracy"])
    assert {
        "onnx_max_difference",
        "onnx_latency_ms_batch_1",
        "int8_accuracy",
        "int8_kept",
        "pytorch_images_per_s_batch_64",
    } <= set(run.data.metrics)
    assert {"params.yaml", "dvc.lock", "environment.txt", "model/model.pt", "export/model.onnx", "export/model.ts",
            "export/model.pt2", "report/report.html"} <= artifacts_of(run)  # fmt: skip
    tags = run.data.tags
    assert {tags[f"stage.{stage}"] for stage in ("train", "evaluate", "export")} == {"finished"}
    assert tags["git.dirty"] == "false"
    assert tags["model.sha256"] == pipeline.json("metrics/train.json")["model_sha256"]
    assert tags["data.sha256"] == pipeline.json("metrics/data.json")["sha256"]


def test_the_run_says_what_to_type_to_have_it_again(pipeline: Pipeline):
    """The commit, and what this machine took for each auto: elsewhere it may be something else."""
    [run, *_] = all_runs(pipeline)
    trained = pipeline.json("metrics/train.json")
    assert run.data.tags["darkroom.reproduce"] == (
        f"git checkout {run.data.tags['git.commit']} && dvc exp run -S train.channels_last=true "
        f"-S train.device={trained['device']} -S train.precision={trained['precision']}"
    ), "threads are set in params.yaml"


def test_no_cached_output_names_the_machine_or_the_hour(pipeline: Pipeline):
    for name in results() - {"dvc.lock"}:
        place = pipeline.folder / name
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                assert str(pipeline.folder).encode() not in path.read_bytes(), path


def test_a_second_repro_runs_nothing_and_is_quick(pipeline: Pipeline, tmp_path: Path):
    (tmp_path / "source").write_text("a\n")
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  copy:\n    cmd: cp source target\n    deps: [source]\n    outs: [target]\n"
    )
    toy = Pipeline(tmp_path)
    for command in (("git", "init", "-q"), ("dvc", "init", "-q"), ("dvc", "repro", "-q")):
        toy.run(*command)

    def seconds(of: Pipeline) -> float:
        started = time.perf_counter()
        assert "Data and pipelines are up to date." in of.run("dvc", "repro").stdout
        return time.perf_counter() - started

    runs = len(all_runs(pipeline))
    pairs = [(seconds(toy), seconds(pipeline)) for _ in range(3)]
    toys, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
    assert ours <= max(2 * toys, toys + 0.5)
    assert len(all_runs(pipeline)) == runs


def test_dvc_shows_metrics_and_plots(pipeline: Pipeline):
    metrics = json.loads(pipeline.run("dvc", "metrics", "show", "--json").stdout)
    assert '"error":' not in json.dumps(metrics), "corruption_error is none"
    shown = metrics[""]["data"]["metrics/test.json"]["data"]
    assert shown["accuracy"] == pipeline.json("metrics/test.json")["accuracy"]
    pipeline.run("dvc", "plots", "show")
    page = (pipeline.folder / "dvc_plots/index.html").read_text()
    for title in ("Training and validation loss", "Validation accuracy", "Confusion matrix", "Reliability"):
        assert title in page
    with (pipeline.folder / "plots/training/epochs.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]
    with (pipeline.folder / "plots/evaluation/confusion.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 719
    shutil.rmtree(pipeline.folder / "dvc_plots")


def test_results_travel_through_a_remote(pipeline: Pipeline, tmp_path: Path):
    remote, other = tmp_path / "remote", tmp_path / "other"
    pipeline.run("dvc", "remote", "add", "--local", "--default", "--force", "shelf", str(remote))
    pipeline.run("dvc", "push")
    pipeline.run("git", "clone", "--quiet", ".", str(other))
    elsewhere = Pipeline(other)
    elsewhere.run("dvc", "remote", "add", "--local", "--default", "shelf", str(remote))
    elsewhere.run("dvc", "pull")
    for name in ("models/model.pt", "export", "data/packed", "reports/report.html"):
        assert hashes(other / name) == hashes(pipeline.folder / name)
    assert "Data and pipelines are up to date." in elsewhere.run("dvc", "repro").stdout
    pipeline.run("dvc", "remote", "remove", "--local", "shelf")


def test_other_values_train_again_and_the_old_ones_come_back_from_the_run_cache(pipeline: Pipeline):
    before, runs = hashes(pipeline.folder / "models/model.pt"), len(all_runs(pipeline))
    with changed(pipeline, train__lr=0.02):
        ran = pipeline.run("dvc", "repro").stdout
        assert [stage for stage in STAGES if f"Running stage '{stage}'" in ran] == [
            "train",
            "evaluate",
            "export",
            "report",
        ]
        assert hashes(pipeline.folder / "models/model.pt") != before
        assert len(all_runs(pipeline)) == runs + 1
        compared = json.loads(pipeline.run("dvc", "metrics", "diff", "--json").stdout)
        assert "metrics/train.json" in compared
        pipeline.run("dvc", "plots", "diff", "HEAD")
        assert "workspace" in (pipeline.folder / "dvc_plots/index.html").read_text()
        shutil.rmtree(pipeline.folder / "dvc_plots")
        pipeline.set({"train.lr": 0.003})
        restored = pipeline.run("dvc", "repro").stdout
        assert "Running stage" not in restored
        assert hashes(pipeline.folder / "models/model.pt") == before
        assert len(all_runs(pipeline)) == runs + 1, "nothing was executed, so there is nothing to record"


def test_a_fault_in_the_parameters_ends_each_stage_at_once_and_checkout_brings_the_results_back(pipeline: Pipeline):
    before = {name: hashes(pipeline.folder / name) for name in ("models/model.pt", "plots/training")}
    with changed(pipeline, train__lr=-1):
        failed = pipeline.run("dvc", "repro", code=255)
        said = failed.stdout + failed.stderr
        assert "train.lr: -1 is too small (above 0.0)" in said
        assert "Traceback" not in said
        assert "`dvc checkout` brings them back" in said
        assert not (pipeline.folder / "models/model.pt").exists(), "DVC removes outputs first"
        pipeline.run("dvc", "checkout")
        assert {name: hashes(pipeline.folder / name) for name in before} == before
        for stage in STAGES:
            seconds = []
            for _ in range(2):
                started = time.perf_counter()
                alone = pipeline.run("python", f"stages/{stage}.py", code=1)
                seconds.append(time.perf_counter() - started)
                assert alone.stderr == "\nerror: params.yaml: 1 fault\n  train.lr: -1 is too small (above 0.0)\n"
            assert min(seconds) < 1, stage


def test_an_export_beyond_its_tolerance_fails_and_checkout_brings_the_files_back(pipeline: Pipeline):
    before = hashes(pipeline.folder / "export")
    with changed(pipeline, export__tolerance=1e-12):
        failed = pipeline.run("dvc", "repro", code=255)
        said = failed.stdout + failed.stderr
        assert re.search(
            r"error: onnx differs from PyTorch by \S+ in a logit of test picture \d+ \(at batch size \d+", said
        )
        assert "Traceback" not in said
        assert "`dvc checkout` brings them back" in said
        assert not (pipeline.folder / "export").exists(), "DVC removes outputs first"
        pipeline.run("dvc", "checkout")
        assert hashes(pipeline.folder / "export") == before


def test_a_missing_earlier_stage_is_named(pipeline: Pipeline):
    (pipeline.folder / "data/packed").rename(pipeline.folder / "data/elsewhere")
    try:
        for stage in ("train", "evaluate", "export"):
            assert (
                "data/packed is missing: run dvc repro prepare"
                in pipeline.run("python", f"stages/{stage}.py", code=1).stderr
            )
    finally:
        (pipeline.folder / "data/elsewhere").rename(pipeline.folder / "data/packed")


def test_a_forced_export_writes_the_same_bytes(pipeline: Pipeline):
    before = hashes(pipeline.folder / "export")
    assert set(before) == {"model.onnx", "model.ts", "model.pt2", "model.int8.onnx"}
    pipeline.run("dvc", "repro", "--force", "--single-item", "export")
    assert hashes(pipeline.folder / "export") == before
    pipeline.run("git", "checkout", "--quiet", ".")


def test_the_settings_of_the_small_pipeline_are_the_only_ones_that_differ(pipeline: Pipeline):
    with closing(sqlite3.connect(pipeline.folder / "mlflow.db")) as database:
        (location,) = database.execute("select artifact_location from experiments where name = 'darkroom'").fetchone()
    assert Path(location.removeprefix("file://")) == pipeline.folder / "mlruns"
    values = flatten(parse_yaml((pipeline.folder / "params.yaml").read_text()))
    assert {key: values[key] for key in SMALL} == SMALL


def test_a_damaged_copy_in_dvcs_cache_is_refused_and_the_named_command_mends_it(pipeline: Pipeline):
    with changed(pipeline):
        images = pipeline.folder / "data/packed/train.images.npy"
        (digest,) = (
            path for path in (pipeline.folder / ".dvc/cache/files/md5").rglob("*")
            if path.is_file() and path.stat().st_size == images.stat().st_size and path.read_bytes() == images.read_bytes()
        )  # fmt: skip
        good = digest.read_bytes()
        try:
            digest.chmod(0o644)
            digest.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
            shutil.rmtree(pipeline.folder / "data/packed")
            pipeline.run("dvc", "checkout", "--quiet")
            told = pipeline.run("dvc", "repro", "--force", "--single-item", "train", code=255)
            assert "do not match their sha256 in meta.json" in told.stderr
            pipeline.run("dvc", "repro", "--force", "--single-item", "--no-run-cache", "prepare")
            assert images.read_bytes() == good
            pipeline.run("dvc", "repro", "--force", "--single-item", "train")
        finally:
            digest.write_bytes(good)
