"""Opening the store: probe, create once, and say in a line what a user must do."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException

from darkroom.door import say
from darkroom.errors import UserError
from darkroom.files import lock
from darkroom.params import Tracking
from darkroom.tracking import lineage as lineages
from darkroom.tracking import oldstore
from darkroom.tracking.address import Address, find_address, masked
from darkroom.tracking.environment import PROBE_SECONDS, QUICK, environment
from darkroom.tracking.lineage import Lineage
from darkroom.tracking.store import Store

PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def open_store(tracking: Tracking, root: Path, lineage: Lineage | None = None) -> Store:
    """See `darkroom.tracking.open_store`."""
    address = find_address(tracking.uri, root)
    _quieten()
    with _said_in_a_line(address):
        if address.is_database:
            experiment = _open_database(address, tracking.experiment, root)
        else:
            with environment(QUICK):
                experiment = _find_or_create(MlflowClient(address.uri), tracking.experiment, root=None)
    if address.default:
        oldstore.point_to_migration(root)
    client = MlflowClient(address.uri)
    store = Store(client, address, experiment.experiment_id, tracking, root, lineage or lineages.gather())
    store.mark_vanished()
    return store


def _open_database(address: Address, experiment: str, root: Path) -> Experiment:
    """The experiment in a database that this process opens itself; all of it made once, whoever else starts now."""
    if address.file is not None:
        _check_file(address.file)
    else:
        _check_host(address)
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with lock(root / "mlflow.db.lock"):
        # Creates the tables, and the experiment Default: it would keep artifacts below the working folder otherwise.
        SqlAlchemyStore(address.uri, (root / "mlruns").as_uri())  # type: ignore[no-untyped-call]  # mlflow's own
        client = MlflowClient(address.uri)
        found = _find_or_create(client, experiment, root)
        return _follow(client, found, address, root)


def _find_or_create(client: MlflowClient, name: str, root: Path | None) -> Experiment:
    found = client.get_experiment_by_name(name)
    if found is None:
        place = (root / "mlruns").as_uri() if root else None
        tags = {oldstore.ROOT_TAG: str(root)} if root else {}
        try:
            found = client.get_experiment(client.create_experiment(name, artifact_location=place, tags=tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)  # another process was first
    assert found is not None
    if found.lifecycle_stage != "active":
        raise UserError(
            f"tracking.experiment: {name!r} was deleted; mlflow experiments restore -x {found.experiment_id} brings it"
            " back, or name another one"
        )
    return found


def _follow(client: MlflowClient, experiment: Experiment, address: Address, root: Path) -> Experiment:
    """The experiment of a project that was moved, with its artifacts' addresses moved too."""
    old = experiment.tags.get(oldstore.ROOT_TAG)
    if address.file is None or address.file.parent != root or old in (None, str(root)):
        return experiment
    changed = oldstore.readdress(address.file, Path(old), root)
    for each in client.search_experiments(filter_string=f"tags.`{oldstore.ROOT_TAG}` = '{old}'"):
        client.set_experiment_tag(each.experiment_id, oldstore.ROOT_TAG, str(root))
    say(
        f"this project was at {old}: {changed} addresses of artifacts in {address.file.name} lead to {root / 'mlruns'} now"
    )
    return client.get_experiment(experiment.experiment_id)


def _check_file(path: Path) -> None:
    """MLflow tries for minutes to open a file that is no database, and waits in silence."""
    if not path.exists():
        if path.parent.exists() and not os.access(path.parent, os.W_OK):
            raise UserError(f"{path.parent} is not writable: the runs' database {path.name} would be made there")
        return
    try:
        # Not mode=ro: where a writer was killed, the first who comes must be able to roll its half transaction back.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=30)) as connection:
            connection.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path} is no database that can be opened ({error}): move it away, and a new one is made"
        ) from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} is not writable: chmod u+w {path}")


def _check_host(address: Address) -> None:
    parts = urlsplit(address.uri)
    host, port = parts.hostname or "localhost", parts.port or PORTS[address.kind]
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise UserError(f"{address.shown}: no database answers at {host}:{port} ({error})") from None


@contextmanager
def _said_in_a_line(address: Address) -> Iterator[None]:
    """Turns what MLflow, SQLAlchemy or the network throw while a store is opened into a user's sentence."""
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"{address.shown} needs the package {error.name}: pip install {error.name}") from None
    except Exception as error:
        raise UserError(f"{address.shown}: {_advice(error, address)}") from error


def _advice(error: Exception, address: Address) -> str:
    text = " ".join(masked(str(error)).split())
    if "out-of-date database schema" in text:
        return _schema_advice(text, address)
    if "401" in text or "403" in text:
        return "the server refuses this user; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    if address.is_server:
        return (
            f"no MLflow server answers there ({text[:160]}); start it (mlflow server), or unset MLFLOW_TRACKING_URI"
            " and tracking.uri to record into mlflow.db"
        )
    return text[:300]


def _schema_advice(text: str, address: Address) -> str:
    """An older database is upgraded by MLflow's own command; a newer one needs the newer MLflow."""
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError
    from mlflow.store import db_migrations as migrations

    found = text.partition("found version ")[2].partition(",")[0]
    try:
        scripts = Path(migrations.__file__).parent
        ScriptDirectory(str(scripts)).get_revision(found)
    except CommandError:
        return f"the database was made by a newer MLflow (schema {found}): install that one, or move the database away"
    return f"the database was made by an older MLflow: copy it somewhere safe, then mlflow db upgrade {address.shown}"


def _quieten() -> None:
    """MLflow and alembic tell of each migration step, and print a traceback for what is said in a line here."""
    for name, level in (("mlflow", logging.WARNING), ("alembic", logging.WARNING), ("mlflow.store", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
