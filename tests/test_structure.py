"""The house's plan: stages list the code that they reach and the keys that they take, and the pieces stay small."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from darkroom.params import SECTIONS, parse_yaml
from darkroom.params.generate import params_schema, torchvision_names
from pipelines import REPOSITORY, Pipeline

CODE = REPOSITORY / "stages"
DVC: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
STAGES = sorted(DVC)
SCRIPTS = sorted(path.stem for path in CODE.glob("*.py"))

NOT_LISTED = {
    "stages/darkroom/__init__.py",  # a docstring
    "stages/darkroom/params",  # values are tracked as values; the schema holds no defaults and derives nothing
    "stages/darkroom/tracking",  # a record is no result
}
"""Code that stages reach and dvc.yaml leaves out."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Functions over 60 lines, each with its reason."""


def listed(stage: str, kind: str) -> list[str]:
    """The paths below deps, outs or metrics, without their options."""
    entries = DVC[stage].get(kind, [])
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


def unlisted(path: Path) -> bool:
    place = path.relative_to(REPOSITORY).as_posix()
    return any(place == name or place.startswith(f"{name}/") for name in NOT_LISTED)


def source_of(module: str) -> list[Path]:
    """The files that importing `module` runs: the module and the packages above it; none where it is not ours."""
    parts = module.split(".")
    found = []
    for n in range(1, len(parts) + 1):
        place = CODE.joinpath(*parts[:n])
        found += [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.exists()]
    return found


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not only_for_types(child):
            yield from running_nodes(child)


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules that a file imports at run time, at its top or in a function; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    for node in running_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: one spelling of each import, darkroom.x"
            assert node.module
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@cache
def closure(script: Path) -> frozenset[Path]:
    """Every file of ours that the script reaches, without what dvc.yaml leaves out."""
    seen: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path not in seen and not unlisted(path):
            seen.add(path)
            waiting += [file for module in imports(path) for file in source_of(module)]
    return frozenset(seen)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_the_code_that_it_reaches_and_nothing_else(stage: str):
    deps = [REPOSITORY / dep for dep in listed(stage, "deps") if dep.startswith("stages/")]
    covered = {file for dep in deps for file in (dep.rglob("*.py") if dep.is_dir() else [dep])}
    reached = closure(CODE / f"{stage}.py")
    assert {str(path.relative_to(CODE)) for path in reached - covered} == set(), "reached, not in dvc.yaml"
    assert {str(path.relative_to(CODE)) for path in covered - reached} == set(), "in dvc.yaml, not reached"


def test_every_file_is_reached_from_a_script():
    reached = frozenset[Path]().union(*(closure(CODE / f"{script}.py") for script in SCRIPTS))
    idle = {path for path in CODE.rglob("*.py") if path not in reached and not unlisted(path)}
    assert {str(path.relative_to(CODE)) for path in idle} == set()


def test_what_is_left_out_of_dvc_yaml_shapes_no_result():
    tree = ast.parse((CODE / "darkroom" / "__init__.py").read_text())
    assert [type(node) for node in tree.body] == [ast.Expr], "a docstring"
    no_default = {f"{name}.{key}" for name, schema in SECTIONS.items()
                  for key, field in schema.model_fields.items() if not field.is_required()}  # fmt: skip
    assert no_default == set(), "defaults would change results without a change of params.yaml"


def docstring(script: str) -> dict[str, list[str]]:
    """{"Reads": [...], "Writes": [...], "Keys": [...]} of a script's docstring."""
    text = ast.get_docstring(ast.parse((CODE / f"{script}.py").read_text())) or ""
    found = re.findall(r"^(Reads|Writes|Keys) +(.+(?:\n {4,}.+)*)", text, re.MULTILINE)
    return {label: re.split(r",\s+", re.sub(r"\s*\([^)]*\)", "", rest)) for label, rest in found}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_reads_writes_and_takes_in_dvc_yamls_words(stage: str):
    said = docstring(stage)
    data = {dep.removeprefix("${").removesuffix("}") for dep in listed(stage, "deps") if not dep.startswith("stages/")}
    assert set(said["Reads"]) == data
    assert set(said["Writes"]) == {*listed(stage, "outs"), *listed(stage, "metrics"), *listed(stage, "plots")}
    assert [key for key in said.get("Keys", []) if key != "none"] == DVC[stage].get("params", [])


def keys_constant(stage: str) -> tuple[str, ...]:
    tree = ast.parse((CODE / f"{stage}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).startswith("KEYS"):
            assert node.value
            keys: tuple[str, ...] = ast.literal_eval(node.value)
            return keys
    raise AssertionError(f"stages/{stage}.py has no KEYS")


@pytest.mark.parametrize("stage", STAGES)
def test_the_keys_of_a_stage_are_those_of_dvc_yaml(stage: str):
    assert list(keys_constant(stage)) == DVC[stage].get("params", [])


def chain(node: ast.Attribute) -> str:
    """`params.train.lr` as text; empty where it does not begin with a name."""
    inner = node.value
    start = inner.id if isinstance(inner, ast.Name) else chain(inner) if isinstance(inner, ast.Attribute) else ""
    return f"{start}.{node.attr}" if start else ""


def keys_read(stage: str) -> set[str]:
    """Keys that a script reads: `params.train` whole, `data.name` of a section under its own name, or those in KEYS."""
    text = (CODE / f"{stage}.py").read_text()
    chains = {
        chain(node).removeprefix("params.") for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
    }
    known = {f"{name}.{key}" for name, schema in SECTIONS.items() for key in schema.model_fields}
    whole = {name for name in SECTIONS if re.search(rf"\bparams\.{name}\b(?!\.)", text)}
    return (chains & known) | whole | (set(keys_constant(stage)) if " in KEYS" in text else set())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_no_other_keys(stage: str):
    taken = DVC[stage].get("params", [])
    read = {key for key in keys_read(stage) if key.partition(".")[0] != "tracking"}
    allowed = {*taken, *(f"{name}.{key}" for name in taken if name in SECTIONS for key in SECTIONS[name].model_fields)}
    assert read - allowed == set()
    assert set(taken) - read == set(), "taken, never read"


def test_rooms_import_no_script():
    found = {
        f"{path.relative_to(CODE)} imports {name}"
        for path in (CODE / "darkroom").rglob("*.py")
        for name in imports(path)
        if name.partition(".")[0] in SCRIPTS
    }
    assert found == set()


@pytest.mark.parametrize(("package", "room"), [("mlflow", "tracking"), ("optuna", "sweeping")])
def test_one_room_alone_imports_it(package: str, room: str):
    importing = {path for path in CODE.rglob("*.py") if any(name.split(".")[0] == package for name in imports(path))}
    assert importing
    assert {path.relative_to(CODE).parts[:2] for path in importing} == {("darkroom", room)}


HEAVY = {"torch", "torchvision", "mlflow", "optuna", "matplotlib", "onnx", "onnxruntime", "sklearn", "plotly"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_imports_nothing_heavy_at_its_top(script: str):
    """So that a fault in params.yaml is told at once."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); __import__(sys.argv[2]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(CODE), script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert set(done.stdout.split()) & HEAVY == set()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_a_function_of_its_name_and_enters_through_the_door(script: str):
    tree = ast.parse((CODE / f"{script}.py").read_text())
    assert {"main", script} <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    enter(main)"


def own_files() -> list[Path]:
    return [*CODE.rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")]


def test_no_file_is_longer_than_250_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in own_files()}
    assert {str(path.relative_to(REPOSITORY)): n for path, n in lengths.items() if n > 250} == {}


def test_no_function_is_longer_than_60_lines():
    lengths = {
        f"{path.relative_to(REPOSITORY)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in own_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    assert {name: n for name, n in lengths.items() if n > 60 and name not in LONG_FUNCTIONS} == {}
    assert sorted(lengths.values())[len(lengths) // 2] <= 15, "the median"


def test_every_key_has_a_comment_that_names_its_choices():
    lines = {}
    section = ""
    for line in (REPOSITORY / "params.yaml").read_text().splitlines():
        if found := re.match(r"^(\w+):", line):
            section = found[1]
        elif found := re.match(r"^  (\w+):", line):
            lines[f"{section}.{found[1]}"] = line
    fields = {f"{name}.{key}": field for name, schema in SECTIONS.items() for key, field in schema.model_fields.items()}
    assert set(lines) == set(fields)
    assert [key for key, line in lines.items() if " # " not in line] == []
    for key, field in fields.items():
        for choice in get_args(field.annotation):
            if isinstance(choice, str):
                assert choice in lines[key].partition("#")[2], f"{key}: {choice} is not in its comment"


def test_what_is_generated_is_as_generated():
    assert (REPOSITORY / "params.schema.json").read_text() == params_schema(), "make generate"
    assert (CODE / "darkroom/params/torchvision_names.py").read_text() == torchvision_names(), "make generate"


def test_editors_find_the_schema_and_it_describes_every_key():
    assert (REPOSITORY / "params.yaml").read_text().startswith("# yaml-language-server: $schema=params.schema.json\n")
    definitions = json.loads(params_schema())["$defs"]
    for schema in SECTIONS.values():
        properties = definitions[schema.__name__]["properties"]
        assert [name for name, entry in properties.items() if not entry.get("description")] == []
        assert definitions[schema.__name__]["additionalProperties"] is False
    values = parse_yaml((REPOSITORY / "params.yaml").read_text())
    assert set(json.loads(params_schema())["properties"]) == set(values)


EVERY = {"download", "prepare", "train", "evaluate", "export", "report"}
MUST_RUN = {
    "door.py": EVERY,
    "errors.py": EVERY,
    "files.py": EVERY,
    "packed.py": {"prepare", "train", "evaluate", "export"},
    "pictures.py": {"prepare"},
    "sheets.py": {"prepare", "evaluate"},
    "filenames.py": {"download"},
    "folds.py": set(),
    "sources": {"download"},
    "data": {"prepare"},
    "models": {"train", "evaluate", "export"},
    "training": {"train"},
    "fitting": {"train"},
    "evaluation": {"evaluate"},
    "exporting": {"export"},
    "reporting": {"report"},
    "params": set(),
    "tracking": set(),
    "sweeping": set(),
    "promoting": set(),
    "finding": set(),
    "serving": set(),
}
"""A file or room of stages/darkroom, and the stages that an edit in it makes run again (those after them follow)."""

STATUS_AFTER_EDITS = """
import json, sys
from pathlib import Path
from dvc.repo import Repo
found = {}
for name in sys.argv[1:]:
    path = Path(name)
    before = path.read_bytes()
    path.write_bytes(before + b"# edited\\n")
    found[name] = sorted(Repo(".").status())
    path.write_bytes(before)
print(json.dumps(found))
"""


def test_an_edit_in_a_room_makes_the_stages_run_that_use_it_and_no_others(pipeline: Pipeline):
    rooms = {path.name for path in (CODE / "darkroom").iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert set(MUST_RUN) == rooms
    edited = {room: f"stages/darkroom/{room}" for room in MUST_RUN}
    for room, place in edited.items():
        if not room.endswith(".py"):
            files = sorted(path for path in (pipeline.folder / place).rglob("*.py") if path.name != "__init__.py")
            edited[room] = files[-1].relative_to(pipeline.folder).as_posix()
    scripts = {script: f"stages/{script}.py" for script in SCRIPTS}
    done = pipeline.run(sys.executable, "-c", STATUS_AFTER_EDITS, *edited.values(), *scripts.values())
    stale = json.loads(done.stdout.splitlines()[-1])
    assert {room: set(stale[place]) for room, place in edited.items()} == MUST_RUN
    assert {script: set(stale[place]) for script, place in scripts.items()} == {
        script: {script} & EVERY for script in scripts
    }
