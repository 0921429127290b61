"""The bare `mlflow ui`, seen in a real browser: it lists the runs and compares two of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from pipelines import Pipeline, all_runs, changed
from screenshots import chromium, mlflow_ui, runs_page, take

BOX = "input[aria-label^='Press Space to toggle row selection']"


@pytest.fixture(scope="module")
def browser_here() -> None:
    if not shutil.which("chromium"):
        assert not os.environ.get("CI"), "CI has to install chromium"
        pytest.skip("a real browser: apt-get install chromium")


@pytest.mark.usefixtures("browser_here")
def test_two_runs_are_listed_and_compared(pipeline: Pipeline, tmp_path: Path):
    first = pipeline.json("metrics/train.json")["mlflow_run_id"]
    with changed(pipeline, train__lr=0.03):
        pipeline.run("dvc", "repro", "train")
        runs = {run.info.run_id: run for run in all_runs(pipeline)}
        new, old = runs[pipeline.json("metrics/train.json")["mlflow_run_id"]], runs[first]
        names = (str(new.info.run_name), str(old.info.run_name))
        with mlflow_ui(pipeline.folder) as address, chromium() as browser:
            listed = browser.open(runs_page(address, new.info.experiment_id), until=names)
            assert f"{len(all_runs(pipeline))} matching runs" in " ".join(listed.split())
            for run in (new, old):
                row = f"document.querySelector(`[row-id='{run.info.run_id}'] {BOX}`)"
                browser.wait_for(f"{row} != null")
                browser.evaluate(f"{row}.click()")
            compare = "[...document.querySelectorAll('button')].find(button => button.innerText == 'Compare')"
            browser.wait_for(f"{compare} != null")
            browser.evaluate(f"{compare}.click()")
            text = browser.text(until=("Comparing 2 Runs from 1 Experiment", *names, "train.lr", "val_accuracy"))
        assert "0.03" in text
        assert "0.003" in text
        pictures = take(pipeline.folder, tmp_path)
    assert [path.name for path in pictures] == ["runs.png", "charts.png", "compare.png", "report.png"]
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.width >= 1000
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 50, "no blank page"
