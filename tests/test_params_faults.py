"""params.yaml: what each fault says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.errors import UserError
from darkroom.params import SECTIONS, Params, check_params, parse_yaml, read_params, with_values
from edited_params import TEXT, added, changed, faults
from pipelines import REPOSITORY


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("train.lr", "fast", "'fast' is text, not a number"),
        ("train.lr", '"0.1"', "'0.1' is text, not a number (write 0.1 without quotes)"),
        ("train.lr", "1_000", "'1_000' is text, not a number"),
        ("train.lr", "true", "True is not a number"),
        ("train.lr", "", "None is not a number"),
        ("train.lr", ".nan", "nan is not a finite number"),
        ("train.lr", ".inf", "inf is not a finite number"),
        ("train.lr", "1e999", "inf is not a finite number"),
        ("train.checkpoint_every", "5 potatoes", "'5 potatoes' is not a number or a text such as '500 steps'"),
        ("train.debug", "profile", "'profile' is text, not a list, such as [profile]"),
        ("train.devices", "0", "0 is not auto or a number at least 1"),
        ("train.lr", "[0.1, 0.2]", "[0.1, 0.2] is not a number"),
        ("train.lr", "{a: 1}", "{'a': 1} is not a number"),
        ("train.lr", "0", "0 is too small (above 0.0)"),
        ("train.lr", "200", "200 is too large (at most 100.0)"),
        ("train.batch_size", "0", "0 is too small (at least 1)"),
        ("train.epochs", "-1", "-1 is too small (at least 1)"),
        ("train.epochs", "2.5", "2.5 is not a whole number"),
        ("train.epochs", "3.0", "3.0 is not a whole number"),
        ("train.epochs", '"3"', "'3' is text, not a whole number (write 3 without quotes)"),
        ("train.optimizer", "adam", "'adam' is not one of sgd, adamw"),
        ("train.optimizer", '"3"', "'3' is not one of sgd, adamw"),
        ("train.device", "gpu", "'gpu' is no device (auto, cpu, cuda, cuda:N, mps)"),
        ("train.ema_decay", "1.0", "1.0 is too large (below 1.0)"),
        ("augment.flip", "off", "'off' is text, not true or false"),
        ("augment.flip", '"true"', "'true' is text, not true or false (write true without quotes)"),
        ("augment.flip", "1", "1 is not true or false"),
        ("data.image_size", "big", "'big' is not auto or a whole number"),
        ("data.image_size", '"28"', "'28' is not auto or a whole number (write 28 without quotes)"),
        ("data.image_size", "1", "1 is not auto or a number at least 4"),
        ("data.channels", "2", "2 is not one of auto, 1, 3"),
        ("data.folder", '""', "'' is not a text of at least 1 letter"),
        ("model.blocks", "18", "18 is not auto or a list, such as [18]"),
        ("model.blocks", "[]", "[] is not auto or a list of at least 1"),
        ("model.blocks", "[1, 1, 1, 1, 1, 1]", "[1, 1, 1, 1, 1, 1] is not auto or a list of at most 5"),
        ("model.blocks", "[1, x]", "[1, 'x'] is not auto or a whole number"),
        ("model.init", "None", "'None' is text; for no earlier model leave it empty ('')"),
        ("model.init", "", "None is not text"),
        ("export.formats", "onnx", "'onnx' is text, not a list, such as [onnx]"),
        ("export.formats", "[onnx, tensorrt]", "'tensorrt' is not one of onnx, torchscript, torch_export, int8"),
        ("export.int8_max_drop", "1%", "'1%' is text, not a number"),
        ("export.int8_max_drop", "-0.1", "-0.1 is too small (at least 0.0)"),
        ("export.int8_max_drop", "1", "1 is too large (below 1.0)"),
        ("export.calibration_images", "0", "0 is too small (at least 1)"),
        ("export.calibration_images", "0.5", "0.5 is not a whole number"),
        ("tracking.uri", "./mlruns", "'./mlruns' is no tracking address (http://…, https://…, sqlite:////absolute/path.db, postgresql://…; empty: mlflow.db)"),
        *((
            "promote.name", f'"{name}"',
            f"{name!r} is not a name of at most 80 letters, digits, _ . - and spaces, with a letter, digit or _ at both ends",
        ) for name in ("a/b", "a:b", "a@b", "a'b", "a#b", "a?b", "a%20b", "", " ", " a", "a ", ".", "..", "x" * 81)),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_what_is_allowed(key: str, value: str, problem: str):
    assert faults(changed(key, value)) == ["params.yaml: 1 fault", f"{key}: {problem}"]


CROSS_CHECKS = [
    ({"data.test_fraction": 0.0}, "data.test_fraction: 0 leaves digits without a test split (above 0, below 1)"),
    ({"data.name": "mnist", "data.source": "/mnt/mirror"},
     "data.source: '/mnt/mirror' is no http:// or https:// address (a local folder goes into data.folder)"),
    ({"data.source": "https://example.org"}, "data.source: means nothing for digits, which is not downloaded (leave it empty)"),
    ({"augment.random_resized_crop": 0.5},
     "augment.crop_padding: 1 and augment.random_resized_crop: 0.5 are two croppings (set one of them to 0)"),
    ({"model.name": "mlp"}, "model.blocks: [1, 1, 1] means nothing for mlp (set it to auto)"),
    ({"model.name": "torchvision:resnet18", "model.blocks": "auto"},
     "model.width: 32 means nothing for torchvision: networks (set it to auto)"),
    ({"model.name": "torchvision:resnet8", "model.blocks": "auto", "model.width": "auto"},
     "model.name: 'torchvision:resnet8' is none of torchvision's classifiers; did you mean torchvision:resnet18?"),
    ({"model.name": "vgg13b", "model.blocks": "auto"},
     "model.name: 'vgg13b' is no network here (mlp, simple_cnn, vgg, resnet, torchvision:<name>); did you mean torchvision:vgg13?"),
    ({"model.pretrained": True},
     "model.pretrained: true means nothing for resnet: only torchvision: networks have published weights (set it to false)"),
    ({"model.freeze": "backbone"}, "model.freeze: backbone would keep random weights (needs model.pretrained: true or model.init)"),
    ({"train.accumulate": 65},
     "train.accumulate: 65 micro-batches cannot share train.batch_size: 64 pictures (at most 64)"),
    ({"train.warmup_epochs": 31.0}, "train.warmup_epochs: 31.0 is longer than train.epochs: 30"),
    ({"train.unfreeze_epoch": 30},
     "train.unfreeze_epoch: 30 is never reached with train.epochs: 30 (0: never, else below train.epochs)"),
    ({"export.formats": ["torchscript"]}, "export.formats: ['torchscript'] lacks onnx, which prediction and the registry need"),
    ({"export.formats": ["onnx", "onnx"]}, "export.formats: ['onnx', 'onnx'] names a format twice"),
    ({"sweep.storage": "optuna.db"},
     "sweep.storage: 'optuna.db' is no storage URL (sqlite:////absolute/path.db, postgresql://…; empty: optuna.db)"),
    ({"sweep.slurm": {"output": "here.log"}}, "sweep.slurm: output is set by the sweep itself"),
    ({"sweep.slurm": {"-p": "gpu"}},
     "sweep.slurm: '-p' is no long option of sbatch (such as time, partition, cpus-per-task, mem)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "problem"), CROSS_CHECKS)
def test_keys_that_contradict_each_other_are_told(params: Params, changes: dict[str, Any], problem: str):
    with pytest.raises(UserError) as error:
        with_values(params, changes)
    assert str(error.value) == f"parameters: 1 fault\n  {problem}"


@pytest.mark.parametrize(
    ("dimension", "problem"),
    [
        ("train.lrr: {low: 1, high: 2}", "train.lrr: unknown key; did you mean train.lr?"),
        ("lr: {low: 1, high: 2}", "lr: unknown key; did you mean train.lr?"),
        ("data.seed: {low: 1, high: 2}", "data.seed: a sweep varies keys of augment, model and train alone"),
        ("train.lr: 5", "train.lr: 5 is not a mapping"),
        ("train.lr: {}", "train.lr: takes either choices: [...] or low: and high:"),
        ("train.lr: {low: 1}", "train.lr: takes both low: and high:"),
        ("train.lr: {lo: 1, high: 2}", "train.lr.lo: unknown key (known: low, high, log, step, choices, when)"),
        ("train.lr: {low: 1, high: 2, choices: [1]}", "train.lr: takes either choices: [...] or low: and high:"),
        ("train.lr: {low: 2, high: 1}", "train.lr: low: 2 is not below high: 1"),
        ("train.lr: {low: 0, high: 1, log: true}", "train.lr: low: 0 must be above 0 with log: true"),
        ("train.lr: {low: 1, high: 3, log: true, step: 1}", "train.lr: log and step exclude each other"),
        ("train.lr: {low: 1, high: 3, step: 0}", "train.lr: step: 0 must be above 0 and at most high - low"),
        ("train.lr: {choices: []}", "train.lr: choices: [] leaves nothing to choose from"),
        ("train.lr: {choices: [1], log: true}", "train.lr: log and step mean nothing with choices"),
        ("train.lr: {low: 1, high: 1000}", "train.lr: 1000 is too large (at most 100.0)"),
        ("train.lr: {choices: [0.1, fast]}", "train.lr: 'fast' is text, not a number"),
        ("train.optimizer: {choices: [sgd, adam]}", "train.optimizer: 'adam' is not one of sgd, adamw"),
        ("train.epochs: {low: 1.5, high: 10}", "train.epochs: 1.5 is not a whole number"),
        ("train.epochs: {low: 1, high: 10, step: 0.5}", "train.epochs: 1.5 is not a whole number"),
        ("train.lr: {low: 1, high: 2, when: {train.optimizer: sgd}}", "train.lr.when: train.optimizer is no other key of sweep.space"),
    ],
)  # fmt: skip
def test_a_search_space_that_leads_out_of_what_is_allowed_is_told(dimension: str, problem: str):
    text = TEXT[: TEXT.index("    train.lr: {")] + f"    {dimension}\n"
    assert faults(text) == ["params.yaml: 1 fault", f"sweep.space.{problem}"]


def test_all_faults_stand_in_one_message():
    text = changed("train.lr", "fast").replace("  epochs: 30", "  epochs: -1").replace("  flip: false", "  flip: maybe")
    assert faults(text) == [
        "params.yaml: 3 faults",
        "augment.flip: 'maybe' is text, not true or false",
        "train.epochs: -1 is too small (at least 1)",
        "train.lr: 'fast' is text, not a number",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lrr", "lr"), ("learning_rate", "lr"), ("batchsize", "batch_size"), ("epoch", "epochs")],
)
def test_an_unknown_key_is_refused_with_the_nearest(typed: str, meant: str):
    assert faults(added("train", typed))[1] == f"train.{typed}: unknown key; did you mean train.{meant}?"


def test_an_unknown_key_may_live_in_another_section_or_nowhere():
    assert faults(added("train", "image_size"))[1] == "train.image_size: unknown key; did you mean data.image_size?"
    assert faults("lr: 3\n" + TEXT)[1] == "lr: unknown key; did you mean train.lr?"
    assert (
        faults(added("promote", "xyzzy"))[1]
        == "promote.xyzzy: unknown key (known: name, metric, minimum, min_gain, not_worse, better, max_class_drop, max_ece, max_latency_ms, max_mb, committed)"
    )
    assert faults(added("train", "3"))[1] == "train.3: 3 is not a name in letters"


@pytest.mark.parametrize(
    ("name", "also"),
    [
        (f"{section}.{name}", alias)
        for section, schema in SECTIONS.items()
        for name, field in schema.model_fields.items()
        for alias in (field.json_schema_extra or {}).get("also", [])  # type: ignore[union-attr]
    ],
)
def test_names_of_other_tools_lead_to_the_key(name: str, also: str):
    section = name.partition(".")[0]
    assert f"{section}.{also}: unknown key; did you mean {name}?" in faults(added(section, also))


def test_an_unknown_section_and_a_missing_one():
    assert faults(TEXT.replace("\npromote:", "\npromoted:")) == [
        "params.yaml: 2 faults",
        "promote: the section is missing (git diff params.yaml shows what it held)",
        "promoted: unknown key; did you mean promote?",
    ]


def test_a_missing_key_says_what_it_is():
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("  clip_norm:"))
    assert faults(text)[1] == "train.clip_norm: missing: add it (largest norm of the gradient; 0: no clipping)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "params.yaml is empty; it needs the sections data, augment"),
        ("# only a comment", "params.yaml is empty"),
        ("- data", "params.yaml holds a list; it needs the sections"),
        ("data", "params.yaml holds a str; it needs the sections"),
        ("data:\n\tname: digits", "params.yaml line 2, column 1: found character '\\t' that cannot start any token (YAML takes spaces, not tabs)"),
        ("data:\n  name: digits\n  name: mnist", "params.yaml line 3, column 3: the key 'name' stands twice"),
        ("train: {lr: 1, lr: 2}", "params.yaml line 1, column 16: the key 'lr' stands twice"),
        ("data: [1", "params.yaml line 1, column 9: expected ',' or ']'"),
        ("? [a]\n: 1", "params.yaml line 1, column 3: a list or mapping is no key"),
        ("data: !!python/object:os.system {}", "params.yaml line 1, column 7: could not determine a constructor"),
        ("data: \0", "params.yaml: unacceptable character"),
        ("[" * 3000, "params.yaml: lists or mappings inside each other, too deep to read"),
        ("data: " + "9" * 5000, "params.yaml: Exceeds the limit"),
        ("a: 1\n---\nb: 2", "params.yaml line 2, column 1: but found another document"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_mapping_is_named_with_its_place(text: str, problem: str):
    with pytest.raises(UserError) as error:
        check_params(parse_yaml(text))
    assert str(error.value).startswith(problem)


def test_what_dvc_exp_run_leaves_behind_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text().replace("lr: 3.0e-3", "lr: fast"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        read_params(Path("params.yaml"))
    assert "git diff" not in str(error.value)
    monkeypatch.setenv("DVC_EXP_NAME", "brave-name")
    monkeypatch.setenv("DVC_ROOT", "/elsewhere")
    with pytest.raises(UserError) as error:
        read_params(Path("params.yaml"))
    assert "git diff" not in str(error.value), "a temporary copy is thrown away"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with pytest.raises(UserError, match="dvc exp run leaves its -S values in params.yaml when a stage fails: git diff"):
        read_params(Path("params.yaml"))
