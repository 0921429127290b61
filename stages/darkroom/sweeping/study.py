"""The study in its storage: created once, opened with the terms that it was begun on, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import optuna
from optuna.storages import BaseStorage, GrpcStorageProxy
from optuna.study import Study
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from darkroom.errors import UserError
from darkroom.files import lock, sha256_bytes
from darkroom.params import SWEPT_SECTIONS, Params, flatten
from darkroom.sweeping.objective import DIRECTIONS, Direction
from darkroom.sweeping.space import make_space

NO_RESULT = ("train.accumulate", "train.channels_last", "train.checkpoint_every", "train.device", "train.threads")
"""Keys that shape no result, beyond rounding: a study may go on with other values of them."""

STORAGE_ERRORS = (SQLAlchemyError, optuna.exceptions.StorageInternalError)
"""What a storage raises that is away or broken."""
_TERMS = "darkroom.terms"
PARENT = "darkroom.parent"
"""The study's attribute that names its run, the values that it was started with, and whether that run has the outcome."""
SQLITE_PATIENCE = 60
"""seconds that a write waits for another program's, such as optuna-dashboard's"""


@dataclass(frozen=True)
class Terms:
    """What a study is about. Trials on other terms are no comparison, so no study goes on with them."""

    metric: str | list[str]
    """`sweep.metric`"""
    space: dict[str, Any]
    """`sweep.space`"""
    fixed: dict[str, Any]
    """keys of augment, model and train that every trial shares, without NO_RESULT"""
    otherwise: dict[str, Any]
    """what a swept key is where its `when` is not met; kept from the study's first day, since --apply changes params.yaml"""
    data_sha256: str
    """of the packed set"""
    report_every: float = 1.0
    folds: int = 0
    """what a step is, and a value; studies from before there were these say nothing of them"""

    @property
    def directions(self) -> list[Direction]:
        return [DIRECTIONS[metric] for metric in ([self.metric] if isinstance(self.metric, str) else self.metric)]


def make_terms(params: Params, data_sha256: str) -> Terms:
    values = train_values(params)
    space = make_space(params.sweep.space)
    return Terms(
        metric=params.sweep.metric if isinstance(params.sweep.metric, str) else list(params.sweep.metrics),
        space=space.described(),
        fixed={key: value for key, value in values.items() if key not in space.dimensions and key not in NO_RESULT},
        otherwise={key: values[key] for key in space.conditional},
        data_sha256=data_sha256,
        report_every=params.sweep.report_every,
        folds=params.sweep.folds,
    )


def train_values(params: Params) -> dict[str, Any]:
    """{"train.lr": 0.1, ...}: all that the train stage takes."""
    return flatten({section: getattr(params, section).model_dump() for section in SWEPT_SECTIONS})


def storage_url(params: Params, root: Path) -> str:
    return params.sweep.storage or f"sqlite:///{root / 'optuna.db'}"


def is_shared(url: str) -> bool:
    """Whether other machines can reach the storage: a server, not a file (nor "", the file of this folder)."""
    return bool(url) and not url.startswith("sqlite")


def shown(url: str) -> str:
    """The URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url.partition("://")[0] + "://…"


def is_recorded(study: Study) -> bool:
    """False where a sweep was killed after its last trial, and before its run had what the trials came to."""
    parent = study.user_attrs.get(PARENT)
    return parent is None or bool(parent.get("recorded"))


@contextmanager
def opened(url: str, name: str, terms: Terms, root: Path) -> Iterator[tuple[Study, Terms]]:
    """The study and the terms it was begun on; in a file, held against a second sweep of it.

    Raises UserError where the storage cannot be reached, the study is in use, or it was begun on other terms.
    """

    def refuse(holder: str) -> None:
        raise UserError(f"study {name} is being worked on by {holder}: wait for it, or name another with --study")

    mark = sha256_bytes(url.encode(), b"\0", name.encode())[:12]
    # A file is this machine's, whose cores one sweep divides; a server's study is joined.
    with lock(root / f"optuna.db.{mark}.lock", waiting=refuse) if not is_shared(url) else nullcontext():
        with lock(root / "optuna.db.new.lock"):
            study = load(url, name, terms.directions)
        try:
            yield study, _agreed(study, terms, shown(url))
        except STORAGE_ERRORS as error:
            raise UserError(
                f"sweep.storage: {shown(url)} failed ({reason(error)}); the same command goes on with the study"
            ) from error


def load(url: str, name: str, directions: Sequence[Direction]) -> Study:
    """The study, made where there is none. Not to be called by two processes at once: both would create the tables, and one would crash half way."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _storage(url)
        return optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, RuntimeError, ValueError) as error:
        raise UserError(
            f"sweep.storage: {shown(url)} cannot be opened ({reason(error)}); "
            "empty means optuna.db beside params.yaml, postgresql://… and mysql://… need their driver installed"
        ) from None


def _storage(url: str) -> BaseStorage:
    """grpc://HOST:PORT is a proxy that `optuna.storages.run_grpc_proxy_server` started; all else a database."""
    if url.startswith("grpc://"):
        parts = urlsplit(url)
        return GrpcStorageProxy(host=parts.hostname or "localhost", port=parts.port or 13000)
    # pre_ping: a connection that the server dropped in an outage is replaced
    options = {"connect_args": {"timeout": SQLITE_PATIENCE}} if not is_shared(url) else {"pool_pre_ping": True}
    return optuna.storages.RDBStorage(url, engine_kwargs=options)


def reason(error: Exception) -> str:
    """The database's own words, without SQLAlchemy's links and statements."""
    return str(error.__cause__ or error).strip().splitlines()[0]


def _agreed(study: Study, terms: Terms, where: str) -> Terms:
    stored = study.user_attrs.get(_TERMS)
    if (
        stored is None
        and not study.get_trials(deepcopy=False)
        and [direction.name.lower() for direction in study.directions] == terms.directions
    ):
        study.set_user_attr(_TERMS, asdict(terms))
        return terms
    if stored is None:
        raise UserError(f"study {study.study_name} in {where} was not made by this sweep: name another with --study")
    before = Terms(**stored)
    differences = [line for pair in _pairs(before, terms) for line in _difference(*pair)]
    if differences:
        raise UserError(
            "\n".join(
                [
                    f"study {study.study_name} in {where} was begun on other terms; its trials are no comparison:",
                    *differences,
                    f"Set them back, or begin a new study: --study {study.study_name}-2",
                ]
            )
        )
    return before


Pair = tuple[str, Any, Any]
"""a key with its value in the study and now"""
Part = Literal["space", "fixed"]


def _pairs(before: Terms, now: Terms) -> Iterator[Pair]:
    for name in ("metric", "report_every", "folds"):
        yield f"sweep.{name}", getattr(before, name), getattr(now, name)
    for part in get_args(Part):
        old, new = getattr(before, part), getattr(now, part)
        for key in sorted({*old, *new}):
            yield f"sweep.space.{key}" if part == "space" else key, old.get(key), new.get(key)
    yield "data/packed", before.data_sha256[:12], now.data_sha256[:12]


def _difference(key: str, before: Any, now: Any) -> Iterator[str]:
    if before != now:
        yield f"  {key}: {_said(before)} in the study, {_said(now)} now"


def _said(value: Any) -> str:
    import json

    return "absent" if value is None else json.dumps(value, ensure_ascii=False).replace('"', "")
