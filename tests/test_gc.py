"""make gc: what it lists, what it never touches."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from darkroom.files import lock
from darkroom.tracking.store import Store
from stores import store_at

STAGES = Path(__file__).resolve().parents[1] / "stages"


def _script() -> ModuleType:
    """stages/gc.py: `import gc` finds Python's own."""
    spec = importlib.util.spec_from_file_location("stages_gc", STAGES / "gc.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


gc = _script().gc


def checkpoint(root: Path, name: str, *, finished: bool = True, days: float = 0) -> Path:
    folder = root / ".checkpoints" / name
    folder.mkdir(parents=True)
    (folder / ("finished.pt" if finished else "step-000000010.pt")).write_bytes(b"0" * 1000)
    for path in folder.iterdir():
        os.utime(path, (time.time() - days * 86400,) * 2)
    return folder


def trained(store: Store, fingerprint: str) -> str:
    with store.start("train", {}) as run:
        run.tags({"darkroom.fingerprint": fingerprint})
        run.text("weights", "model/model.pt")
    return run.run_id


def listed(store: Store, **options: float) -> dict[str, str]:
    found = gc(store, workspace=store.root, **options)
    return {str(each.path.relative_to(store.root)): each.why for each in found}


def everything(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.suffix not in (".db", ".lock", ".holder", ".db-journal")
    }


def test_a_new_project_has_nothing_to_remove(store: Store):
    assert listed(store) == {}


def test_checkpoints_that_a_run_or_the_workspace_names_are_kept(store: Store):
    for name in ("named", "orphan", "of_deleted", "workspace", "of_run"):
        checkpoint(store.root, name)
    trained(store, "named")
    store.client.delete_run(trained(store, "of_deleted"))
    run_id = trained(store, "of_run")
    (store.root / "metrics").mkdir()
    (store.root / "metrics" / "train.json").write_text(
        json.dumps({"fingerprint": "workspace", "mlflow_run_id": run_id})
    )
    assert set(listed(store)) == {
        ".checkpoints/orphan", ".checkpoints/of_deleted", f"mlruns/{_only_deleted(store)}"
    }  # fmt: skip


def _only_deleted(store: Store) -> str:
    from mlflow.entities import ViewType

    (run,) = store.client.search_runs([store.experiment_id], run_view_type=ViewType.DELETED_ONLY)
    return str(run.info.run_id)


def test_a_run_of_another_experiment_counts(store: Store):
    checkpoint(store.root, "elsewhere")
    trained(store_at(store.root, experiment="other"), "elsewhere")
    assert listed(store) == {}


def test_an_unfinished_checkpoint_is_kept_while_it_is_young_or_in_use(store: Store):
    checkpoint(store.root, "young", finished=False)
    old = checkpoint(store.root, "old", finished=False, days=20)
    assert listed(store) == {".checkpoints/old": "unfinished for 20 days, and no run names it"}
    assert listed(store, days=30) == {}
    with lock(old / "lock"):
        assert listed(store) == {}


def test_what_a_pruned_trial_leaves_goes_and_what_a_killed_run_needs_stays(store: Store):
    for name in ("pruned", "killed"):
        (folder := store.root / ".checkpoints" / name).mkdir(parents=True)
        (folder / "series.jsonl").write_text("{}\n")
        trained(store, name)
    store.client.set_terminated(trained(store, "killed"), "KILLED")
    assert listed(store) == {".checkpoints/pruned": "holds no checkpoint, and its run has ended"}


def test_only_what_belongs_to_deleted_runs_and_models_goes_from_mlruns(store: Store):
    kept, deleted = trained(store, "a"), trained(store, "b")
    store.client.delete_run(deleted)
    for name in (
        "0/meta.yaml",
        "notes/mine.txt",
        "models/m-" + "1" * 32 + "/artifacts/x",
        "f" * 32 + "/artifacts/y",
        "f" * 31 + "/z",
    ):
        path = store.root / "mlruns" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    model = store.client.create_logged_model(store.experiment_id, name="kept")
    (store.root / "mlruns" / "models" / model.model_id / "artifacts").mkdir(parents=True)
    assert set(listed(store)) == {f"mlruns/{deleted}", "mlruns/" + "f" * 32, "mlruns/models/m-" + "1" * 32}
    assert (store.root / "mlruns" / kept).is_dir()


def test_artifacts_are_not_judged_by_another_store(store: Store):
    trained(store, "a")
    other = store_at(store.root, uri=f"sqlite:///{store.root / 'other.db'}")
    assert listed(other) == {}


def test_downloads_that_data_raw_does_not_hold(store: Store):
    for name in ("fashion_mnist", "mnist", "models"):
        (store.root / ".downloads" / name).mkdir(parents=True)
        (store.root / ".downloads" / name / "file").write_bytes(b"1")
    (store.root / "data" / "raw").mkdir(parents=True)
    (store.root / "data" / "raw" / "manifest.json").write_text('{"name": "mnist"}')
    assert set(listed(store)) == {".downloads/fashion_mnist", ".downloads/models"}


def test_listing_removes_nothing_and_yes_removes_what_was_listed_alone(store: Store):
    checkpoint(store.root, "orphan")
    kept = checkpoint(store.root, "kept")
    run_id = trained(store, "kept")
    store.client.delete_run(deleted := trained(store, "x"))
    (store.root / "params.yaml").write_text("mine")
    before = everything(store.root)
    first = gc(store, workspace=store.root)
    assert everything(store.root) == before
    assert sum(each.num_bytes for each in first) == 1000 + sum(
        path.stat().st_size for path in (store.root / "mlruns" / deleted).rglob("*") if path.is_file()
    )
    gc(store, workspace=store.root, remove=True)
    gone = before - everything(store.root)
    assert all(name.startswith((".checkpoints/orphan", f"mlruns/{deleted}")) for name in gone)
    assert (kept / "finished.pt").exists()
    assert (store.root / "mlruns" / run_id).is_dir()
    assert listed(store) == {}


def test_the_script_lists_and_removes(store: Store):
    checkpoint(store.root, "orphan")
    (store.root / "params.yaml").write_text((STAGES.parent / "params.yaml").read_text())
    environment = os.environ | {"DVC_ROOT": str(store.root)}
    told = [
        subprocess.run([sys.executable, STAGES / "gc.py", *arguments], cwd=store.root, env=environment,
                       capture_output=True, text=True, check=True).stdout.splitlines()
        for arguments in ([], ["--yes"], [])
    ]  # fmt: skip
    assert told[0] == [
        "    1.0 kB  .checkpoints/orphan  (finished, and no run names it)",
        "1.0 kB in all; make gc YES=1 removes it",
    ]
    assert told[1][-1] == "removed 1.0 kB"
    assert told[2] == ["nothing to remove: all checkpoints, artifacts and downloads are in use"]
