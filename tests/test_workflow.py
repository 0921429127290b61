"""The GitHub workflows: their steps taken in clones, as a runner takes them, with a recorder in the place of `gh`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from darkroom.params import flatten
from pipelines import REPOSITORY, SMALL, Pipeline, all_runs, clone

SCRIPT = ".github/pipeline.sh"
WORKFLOWS = {
    path.stem: yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # `on` stays a word
    for path in sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
}
SMALLER = SMALL | {
    "export.formats": ["onnx"], "evaluate.corrupted_images": 0, "evaluate.mistakes": 4, "evaluate.resamples": 100,
    "evaluate.attention": False, "promote.minimum": 0.0,
}  # fmt: skip
MARKER = "<!-- darkroom: metrics of the pipeline -->"
OTHERS = [
    {"user": {"login": "ada"}, "body": f"{MARKER}\nas a person quotes it"},
    {"user": {"login": "github-actions[bot]"}, "body": "Another workflow's"},
]

# Stands for GitHub: comments and releases are entries of a JSON file, and each call is a line in another.
GH = """#!{python}
import json, os, sys
from pathlib import Path
state, arguments = Path({folder!r}) / "github.json", sys.argv[1:]
with (state.parent / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if os.environ.get("GH_TOKEN") != "writes":
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
github = json.loads(state.read_text())
if arguments[0] == "api":
    path = next(part for part in arguments if part.startswith("repos/"))
    fields = dict(part.split("=", 1) for part in arguments if part.startswith("body=@"))
    body = Path(fields["body"][1:]).read_text() if fields else ""
    if path == "repos/ada/darkroom/issues/7/comments" and "--jq" in arguments:
        assert arguments[arguments.index("--jq") + 1] == ".[] | [.id, .user.login, .body] | @tsv"
        for number, comment in github["comments"].items():
            print(number, comment["user"]["login"], comment["body"].replace("\\n", "\\\\n"), sep="\\t")
    elif path == "repos/ada/darkroom/issues/7/comments" and "POST" in arguments:
        github["comments"][str(len(github["comments"]) + 1)] = {{"user": {{"login": "github-actions[bot]"}}, "body": body}}
    else:
        assert "PATCH" in arguments
        github["comments"][path.removeprefix("repos/ada/darkroom/issues/comments/")]["body"] = body
else:
    kind, verb, tag = arguments[:3]
    files = sorted(part for part in arguments if part.startswith(("export/", "reports/")))
    assert kind == "release" and all(Path(name).is_file() for name in files)
    if verb == "view":
        sys.exit(tag not in github["releases"])
    assert (verb == "create") == (tag not in github["releases"])
    github["releases"][tag] = files
state.write_text(json.dumps(github))
"""


@dataclass(frozen=True)
class Done:
    """What a step ended with."""

    code: int
    log: str
    summary: str


@dataclass(frozen=True)
class Runner:
    """A checkout on a machine of GitHub's, and the GitHub that its `gh` talks to."""

    pipeline: Pipeline
    folder: Path

    @classmethod
    def start(cls, pipeline: Pipeline, folder: Path, *comments: dict[str, Any]) -> Runner:
        (folder / "temp").mkdir(parents=True)
        gh = folder / "bin" / "gh"
        gh.parent.mkdir()
        gh.write_text(GH.format(python=sys.executable, folder=str(folder)))
        gh.chmod(0o755)
        runner = cls(pipeline, folder)
        runner.write({"comments": {str(n): comment for n, comment in enumerate(comments, 1)}, "releases": {}})
        return runner

    def write(self, github: dict[str, Any]) -> None:
        (self.folder / "github.json").write_text(json.dumps(github))

    @property
    def comments(self) -> list[str]:
        return [comment["body"] for comment in self.github["comments"].values()]

    @property
    def github(self) -> Any:
        return json.loads((self.folder / "github.json").read_text())

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def step(self, word: str, machine: Mapping[str, str] | None = None, **environment: str) -> Done:
        """Takes a step with the variables that its workflow gives it, and those that each runner has."""
        (taken,) = (
            step for workflow in WORKFLOWS for step in steps_of(workflow) if step.get("run") == f"{SCRIPT} {word}"
        )
        assert set(environment) == set(taken.get("env", {}))
        summary = self.folder / "summary.md"
        summary.unlink(missing_ok=True)
        usual = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(self.folder / "output"),
            "RUNNER_TEMP": str(self.folder / "temp"), "GITHUB_REPOSITORY": "ada/darkroom",
            "GITHUB_SERVER_URL": "https://github.com", "GITHUB_RUN_ID": "99",
        }  # fmt: skip
        done = subprocess.run(
            [SCRIPT, word], cwd=self.pipeline.folder, env=os.environ | usual | environment | dict(machine or {}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        return Done(done.returncode, done.stdout + done.stderr, summary.read_text() if summary.exists() else "")

    def compare(self, base: str, **machine: str) -> Done:
        return self.step("compare", machine, BASE_SHA=self.commit(base))

    def comment(self, **environment: str) -> Done:
        usual = {"GH_TOKEN": "writes", "PULL_REQUEST": "7", "HEAD_REPOSITORY": "ada/darkroom", "REPORT_URL": ""}
        return self.step("comment", **usual | environment)

    def promote(self, tag: str, registry: str) -> Done:
        secrets = {"MLFLOW_TRACKING_URI": registry, "MLFLOW_TRACKING_USERNAME": "", "MLFLOW_TRACKING_PASSWORD": ""}
        return self.step(
            "promote", {"GITHUB_REF_NAME": tag}, **secrets
        )  # a secret that is not set comes as an empty one

    def checkout(self, revision: str) -> str:
        """As actions/checkout leaves it: HEAD is detached. Gives the commit."""
        self.pipeline.run("git", "checkout", "--quiet", "--detach", revision)
        return self.commit("HEAD")

    def commit(self, revision: str) -> str:
        return self.pipeline.run("git", "rev-parse", revision).stdout.strip()


def steps_of(workflow: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


def uploads(workflow: str) -> list[str]:
    """The paths that a workflow's upload steps look for."""
    found = [step["with"]["path"] for step in steps_of(workflow) if "upload-artifact" in step.get("uses", "")]
    return [line for paths in found for line in paths.splitlines()]


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The table in a text: {(file, metric): [base, head, change]}."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {(line[0], line[1]): line[2:] for line in lines}


def metrics_in(folder: Path) -> dict[tuple[str, str], Any]:
    """{(file, metric): value}, nested metrics with dots, as DVC names them."""
    names = [f"metrics/{name}.json" for name in ("train", "test", "export")]
    return {
        (name, key): value for name in names for key, value in flatten(json.loads((folder / name).read_text())).items()
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The repository on GitHub: main with two commits, tagged v1 and v2; the branch `change` began at the first."""
    pipeline = clone(tmp_path_factory.mktemp("project"))
    pipeline.set(SMALLER)
    pipeline.commit("Base")
    pipeline.run("git", "tag", "--annotate", "--message=First", "v1")
    pipeline.run("git", "checkout", "--quiet", "-b", "change")
    pipeline.set({"train.epochs": 3, "train.lr": 0.02})
    pipeline.commit("Longer, and faster")
    pipeline.set({"train.epochs": 0})
    pipeline.commit("A slip")
    pipeline.run("git", "tag", "slip")
    pipeline.set({"train.epochs": 3})
    pipeline.commit("Put right")
    pipeline.run("git", "checkout", "--quiet", "main")
    pipeline.set({"promote.minimum": 0.99})
    pipeline.commit("A higher bar")
    pipeline.run("git", "tag", "v2")
    return pipeline


def checkout_of(project: Pipeline, folder: Path) -> Pipeline:
    subprocess.run(["git", "clone", "--quiet", str(project.folder), str(folder)], check=True)
    return Pipeline(folder)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('registry') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def tagged(project: Pipeline, registry: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, Done]:
    """The job of the tag v1."""
    folder = tmp_path_factory.mktemp("release")
    runner = Runner.start(checkout_of(project, folder / "checkout"), folder)
    runner.checkout("v1")
    return runner, runner.promote("v1", registry)


@pytest.fixture(scope="module")
def compared(
    project: Pipeline, tagged: tuple[Runner, Done], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Runner, Done]:
    """The job of the pull request, up to its comment, with the base in the cache that actions/cache brings."""
    folder = tmp_path_factory.mktemp("pull-request")
    runner = Runner.start(checkout_of(project, folder / "checkout"), folder, *OTHERS)
    shutil.copytree(tagged[0].pipeline.folder / ".dvc" / "cache", runner.pipeline.folder / ".dvc" / "cache")
    runner.checkout("slip~1")
    return runner, runner.compare("origin/main")


def test_a_pull_request_is_told_what_it_changes_in_the_metrics(compared: tuple[Runner, Done]):
    runner, done = compared
    assert done.code == 0, done.log
    base, head = metrics_in(runner.folder / "temp" / "base"), metrics_in(runner.pipeline.folder)
    rows = rows_of(done.summary)
    commits = [runner.commit(f"{revision}^0")[:7] for revision in ("v1", "HEAD")]
    assert rows.pop(("Path", "Metric")) == [f"base {commits[0]}", f"head {commits[1]}", "Change"]
    assert set(rows.pop(("---", "---"))) == {"---"}
    assert {metric for _, metric in rows} == {
        "accuracy", "accuracy_low", "accuracy_high", "macro_f1", "nll", "ece", "val_accuracy", "val_loss", "onnx.accuracy",
    }  # fmt: skip
    assert {key: [float(cell) for cell in row] for key, row in rows.items()} == {
        key: [round(base[key], 5), round(head[key], 5), round(head[key] - base[key], 5)] for key in rows
    }
    key = ("metrics/test.json", "accuracy")
    assert done.summary.startswith(f"Test accuracy **{head[key]:.5f}** (")
    assert f"), before {base[key]:.5f}.\n" in done.summary
    assert head[key] > base[key] + 0.1, "three epochs at a higher rate learn more than two"


def test_the_base_comes_from_the_cache_and_the_head_is_run_and_recorded_beside_its_checkout(
    compared: tuple[Runner, Done], tagged: tuple[Runner, Done]
):
    runner, done = compared
    assert metrics_in(runner.folder / "temp" / "base") == metrics_in(tagged[0].pipeline.folder)
    assert re.findall("Running stage '(.*)'", done.log) == ["train", "evaluate", "export", "report"]
    (run,) = all_runs(runner.pipeline)
    assert (run.data.tags["git.commit"], run.data.tags["git.dirty"]) == (runner.commit("slip~1"), "false")


def test_what_is_uploaded_is_there(compared: tuple[Runner, Done], tagged: tuple[Runner, Done]):
    assert uploads("pull-request") == ["reports/report.html"]
    assert set(uploads("release")) == {"export", "reports/report.html"}
    for workflow, (runner, _) in (("pull-request", compared), ("release", tagged)):
        assert [name for name in uploads(workflow) if not (runner.pipeline.folder / name).exists()] == []
        run = metrics_in(runner.pipeline.folder)[("metrics/test.json", "mlflow_run_id")]
        assert f"<code>{run}</code>" in (runner.pipeline.folder / "reports" / "report.html").read_text()


def test_one_comment_follows_the_pushes_and_other_comments_stay(compared: tuple[Runner, Done]):
    runner, done = compared
    assert runner.comment(REPORT_URL="https://github.com/report").code == 0
    *others, first = runner.comments
    links = "[Report](https://github.com/report) · [Run](https://github.com/ada/darkroom/actions/runs/99)\n"
    assert first == f"{MARKER}\n{done.summary}{links}"
    runner.checkout("slip")
    failed = runner.compare("origin/main")
    assert failed.code == 1
    assert f"**The pipeline failed on {runner.commit('HEAD')[:7]}.**\n" in failed.summary
    assert "train.epochs: 0 is too small (at least 1)" in failed.summary
    assert "failed to reproduce 'train'" in failed.summary
    assert runner.comment().code == 0
    *same, second = runner.comments
    assert second == f"{MARKER}\n{failed.summary}{links.partition(' · ')[2]}"
    assert others == same == [comment["body"] for comment in OTHERS]


def test_a_base_that_fails_does_not_fail_its_repair(compared: tuple[Runner, Done]):
    runner, whole = compared
    runner.checkout("origin/change")
    done = runner.compare("slip")
    assert done.code == 0, done.log
    assert f"The pipeline failed on {runner.commit('slip')[:7]}, which this branch is compared with:" in done.summary
    assert "train.epochs: 0 is too small" in done.summary
    rows, before = rows_of(done.summary), rows_of(whole.summary)
    for key in set(rows) - {("Path", "Metric"), ("---", "---")}:
        assert rows[key] == ["-", before[key][1], "-"]
    assert re.search(r"^Test accuracy \*\*0\.\d+\*\* \(0\.\d+ to 0\.\d+\)\.$", done.summary, re.MULTILINE)


def test_a_base_with_other_packages_gets_its_own_and_is_measured_though_its_numbers_are_committed(
    compared: tuple[Runner, Done], tmp_path: Path
):
    """DVC would bring one side's results back for the other: packages are no dependency of a stage."""
    runner, _ = compared
    runner.checkout("origin/change")
    runner.pipeline.run("dvc", "repro")
    runner.pipeline.run("git", "add", "dvc.lock", "metrics")
    runner.pipeline.run("git", "commit", "--quiet", "--message=First results")
    with (runner.pipeline.folder / "requirements.lock").open("a") as lock:
        lock.write("another==1.0\n")
    runner.pipeline.run("git", "commit", "--quiet", "--all", "--message=Packages")
    dvc, python = tmp_path / "dvc", tmp_path / "python"
    dvc.write_text("#!/bin/sh\nmkdir -p metrics && echo '{\"accuracy\": 0.125}' > metrics/test.json\n")
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] && mkdir -p .venv/bin && cp "$0" {dvc} .venv/bin && chmod +x .venv/bin/*\n'
        "exit 0\n"
    )
    python.chmod(0o755)
    done = runner.compare("HEAD~1", PYTHON=str(python), TORCH="cpu")
    assert done.code == 0, done.log
    assert rows_of(done.summary)[("metrics/test.json", "accuracy")][0] == "0.125"
    base = runner.folder / "temp" / "base"
    assert (base / ".venv" / "made-for").read_text() == f"cpu {base}\n"
    assert not (base / ".dvc" / "config.local").exists()


@pytest.mark.parametrize("repository", ["grace/darkroom", ""], ids=["a fork", "a fork that is gone"])
def test_a_fork_has_its_table_in_the_summary_alone(compared: tuple[Runner, Done], repository: str):
    runner, _ = compared
    before = (runner.github, runner.calls())
    done = runner.comment(HEAD_REPOSITORY=repository, GH_TOKEN="reads")
    assert (done.code, done.log) == (
        0, "::notice::no comment: a fork's token only reads; the table is in this run's summary\n",
    )  # fmt: skip
    assert (runner.github, runner.calls()) == before


def test_a_comment_that_is_refused_fails_nothing(compared: tuple[Runner, Done]):
    runner, _ = compared
    before = runner.comments
    done = runner.comment(GH_TOKEN="reads")
    assert done.code == 0
    assert "::warning::the comment could not be posted; the table is in this run's summary" in done.log
    assert runner.comments == before


def test_unrelated_histories_are_told_in_a_line(compared: tuple[Runner, Done]):
    runner, _ = compared
    tree = runner.pipeline.run("git", "mktree").stdout.strip()
    done = runner.compare(runner.pipeline.run("git", "commit-tree", "-m", "Alone", tree).stdout.strip())
    assert done.code == 1
    assert done.summary == "this branch shares no commit with the one it is to be merged into\n"


def test_the_kind_of_processor_is_part_of_the_caches_key(compared: tuple[Runner, Done]):
    runner, _ = compared
    assert runner.step("machine").code == 0
    assert re.fullmatch(r"kind=[0-9a-f]{40}\n", (runner.folder / "output").read_text())
    (cache,) = (step["with"] for step in steps_of("pull-request") if "actions/cache" in step.get("uses", ""))
    assert cache["key"].startswith(cache["restore-keys"])
    assert "steps.machine.outputs.kind" in cache["restore-keys"]
    assert "hashFiles('requirements.lock')" in cache["restore-keys"]


def versions(registry: str) -> dict[str, tuple[str, dict[str, str]]]:
    """{alias: (version, its tags)} of the registered model."""
    from mlflow import MlflowClient

    client = MlflowClient(registry)
    aliases = client.get_registered_model("darkroom").aliases
    return {
        alias: (str(number), client.get_model_version("darkroom", number).tags) for alias, number in aliases.items()
    }


def test_a_tag_moves_the_champion_of_the_registry_and_a_refusal_leaves_it(tagged: tuple[Runner, Done], registry: str):
    runner, first = tagged
    assert first.code == 0, first.log
    assert first.summary.startswith("**v1 is promoted.**\n")
    assert "version 1 of darkroom is champion\n" in first.summary
    number, tags = versions(registry)["champion"]
    assert (number, tags["git.commit"], tags["git.dirty"]) == ("1", runner.commit("v1^0"), "false")
    assert not (runner.pipeline.folder / "mlflow.db").exists()
    runner.checkout("v2")
    second = runner.promote("v2", registry)
    assert second.code == 1
    assert second.summary.startswith("**v2 is not promoted.**\n")
    assert "error: not promoted, because of accuracy, gain: the champion stays as it is" in second.summary
    assert re.search(r"^NO +accuracy +0\.\d{4} +at least 0\.99", second.summary, re.MULTILINE)
    assert versions(registry)["champion"][0] == "1"


def test_without_a_registry_nothing_is_run(tagged: tuple[Runner, Done]):
    done = tagged[0].promote("v1", "")
    assert done.code == 1
    assert done.log.splitlines() == [
        "::error::promotion has no registry: set the repository's secret MLFLOW_TRACKING_URI to the address of an MLflow server"
    ]
    assert done.summary == done.log.removeprefix("::error::")


def test_the_release_holds_the_files_that_leave_and_can_be_repeated(tagged: tuple[Runner, Done]):
    runner, _ = tagged
    for _ in range(2):
        done = runner.step("publish", {"GITHUB_REF_NAME": "v1"}, GH_TOKEN="writes")
        assert done.code == 0, done.log
        assert runner.github["releases"] == {"v1": ["export/model.onnx", "reports/report.html"]}
    assert [call[1] for call in runner.calls()] == ["view", "create", "view", "upload"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_holds_no_logic_and_no_secret_outside_env(workflow: str):
    runs = [step["run"] for step in steps_of(workflow) if "run" in step]
    assert [line for line in runs if not re.fullmatch(rf"make [a-z]+|{re.escape(SCRIPT)} [a-z]+", line)] == []
    for step in steps_of(workflow):
        outside = {key: value for key, value in step.items() if key != "env"}
        assert not re.search(r"secrets\.|github\.token", json.dumps(outside))
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v0")), "GitHub's own, and a version"
    assert "pull_request_target" not in WORKFLOWS[workflow]["on"], "it would hand a fork's code the secrets"


def test_each_job_may_do_no_more_than_it_does():
    granted = {name: job["permissions"] for flow in WORKFLOWS.values() for name, job in flow["jobs"].items()}
    assert granted == {
        "compare": {"contents": "read", "pull-requests": "write"},
        "promote": {"contents": "read"},
        "publish": {"contents": "write"},
    }
    assert [flow["permissions"] for flow in WORKFLOWS.values()] == [{}, {}]
    checkouts = [step for flow in WORKFLOWS for step in steps_of(flow) if "actions/checkout" in step.get("uses", "")]
    assert {step["with"]["persist-credentials"] for step in checkouts} == {"false"}


def test_another_word_is_wrong_usage(tmp_path: Path):
    environment = os.environ | {"RUNNER_TEMP": str(tmp_path)}
    done = subprocess.run([REPOSITORY / SCRIPT, "deploy"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    words = re.findall("[a-z]+", done.stderr.partition(".sh ")[2])
    called = {step["run"].split()[-1] for flow in WORKFLOWS for step in steps_of(flow) if SCRIPT in step.get("run", "")}
    assert set(words) == called
