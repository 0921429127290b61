"""What older projects bring along: a store of files in mlruns/, and artifacts that lie where the project used to be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from darkroom.door import say
from darkroom.tracking.address import sqlite_uri

ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Columns of MLflow's database that hold absolute addresses of artifacts."""
ROOT_TAG = "darkroom.root"
"""Tag of an experiment: the folder whose mlruns/ its artifacts were put in."""


def old_file_store(root: Path) -> bool:
    """Whether mlruns/ holds runs as files, as MLflow 2 kept them."""
    return any(root.glob("mlruns/[0-9]*/meta.yaml"))


def point_to_migration(root: Path) -> None:
    """One line about runs that lie in files: MLflow's migration makes a database of its own from them."""
    target = root / "mlflow.db.old"
    if old_file_store(root) and not target.exists():
        say(
            f"{root / 'mlruns'} holds runs of an old MLflow as files; new runs go into mlflow.db. To see the old ones: "
            f"mlflow migrate-filestore --source {root / 'mlruns'} --target {sqlite_uri(target)}, then"
            f" mlflow ui --backend-store-uri {sqlite_uri(target)}"
        )


def readdress(database: Path, old_root: Path, root: Path) -> int:
    """Lets the artifacts' addresses follow a project that was moved or copied from `old_root` to `root`.

    MLflow keeps them absolute: without this the old runs' files do not open, and new ones would go to the old place.
    Returns how many addresses were changed.
    """
    old, new = (f"{(place / 'mlruns').as_uri()}" for place in (old_root, root))
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        return sum(
            connection.execute(
                f"update {table} set {column} = ? || substr({column}, ?)"  # noqa: S608 - the names are ours
                f" where {column} = ? or substr({column}, 1, ?) = ? || '/'",
                (new, len(old) + 1, old, len(old) + 1, old),
            ).rowcount
            for table, column in ADDRESSES
            if table in tables
        )
