"""The study in its storage: created once, opened with the terms that it was begun on, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import optuna
from optuna.study import Study
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from darkroom.errors import UserError
from darkroom.files import lock, sha256_bytes
from darkroom.params import SWEPT_SECTIONS, Params, flatten
from darkroom.sweeping.objective import DIRECTIONS
from darkroom.sweeping.space import make_space

NO_RESULT = ("train.accumulate", "train.channels_last", "train.checkpoint_every", "train.device", "train.threads")
"""Keys that shape no result, beyond rounding: a study may go on with other values of them."""

_TERMS = "darkroom.terms"
SQLITE_PATIENCE = 60
"""seconds that a write waits for another program's, such as optuna-dashboard's"""


@dataclass(frozen=True)
class Terms:
    """What a study is about. Trials on other terms are no comparison, so no study goes on with them."""

    metric: str
    """val_accuracy or val_loss"""
    space: dict[str, Any]
    """`sweep.space`"""
    fixed: dict[str, Any]
    """keys of augment, model and train that every trial shares, without NO_RESULT"""
    otherwise: dict[str, Any]
    """what a swept key is where its `when` is not met; kept from the study's first day, since --apply changes params.yaml"""
    data_sha256: str
    """of the packed set"""


def make_terms(params: Params, data_sha256: str) -> Terms:
    values = train_values(params)
    space = make_space(params.sweep.space)
    return Terms(
        metric=params.sweep.metric,
        space=space.described(),
        fixed={key: value for key, value in values.items() if key not in space.dimensions and key not in NO_RESULT},
        otherwise={key: values[key] for key in space.conditional},
        data_sha256=data_sha256,
    )


def train_values(params: Params) -> dict[str, Any]:
    """{"train.lr": 0.1, ...}: all that the train stage takes."""
    return flatten({section: getattr(params, section).model_dump() for section in SWEPT_SECTIONS})


def storage_url(params: Params, root: Path) -> str:
    return params.sweep.storage or f"sqlite:///{root / 'optuna.db'}"


def shown(url: str) -> str:
    """The URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url.partition("://")[0] + "://…"


@contextmanager
def opened(url: str, name: str, terms: Terms, root: Path) -> Iterator[tuple[Study, Terms]]:
    """The study and the terms it was begun on, held against a second sweep of it on this machine.

    Raises UserError where the storage cannot be reached, the study is in use, or it was begun on other terms.
    """

    def refuse(holder: str) -> None:
        raise UserError(f"study {name} is being worked on by {holder}: wait for it, or name another with --study")

    mark = sha256_bytes(url.encode(), b"\0", name.encode())[:12]
    with lock(root / f"optuna.db.{mark}.lock", waiting=refuse):
        with lock(root / "optuna.db.new.lock"):
            study = _load(url, name, terms)
        try:
            yield study, _agreed(study, terms, shown(url))
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise UserError(
                f"sweep.storage: {shown(url)} failed ({_reason(error)}); the same command goes on with the study"
            ) from error


def _load(url: str, name: str, terms: Terms) -> Study:
    """Not to be called by two processes at once: both would create the tables, and one would crash half way."""
    patience = {"connect_args": {"timeout": SQLITE_PATIENCE}} if url.startswith("sqlite") else {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs=patience)
        return optuna.create_study(
            storage=storage, study_name=name, direction=DIRECTIONS[terms.metric], load_if_exists=True
        )
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, RuntimeError, ValueError) as error:
        raise UserError(
            f"sweep.storage: {shown(url)} cannot be opened ({_reason(error)}); "
            "empty means optuna.db beside params.yaml, postgresql://… and mysql://… need their driver installed"
        ) from None


def _reason(error: Exception) -> str:
    """The database's own words, without SQLAlchemy's links and statements."""
    return str(error.__cause__ or error).strip().splitlines()[0]


def _agreed(study: Study, terms: Terms, where: str) -> Terms:
    stored = study.user_attrs.get(_TERMS)
    if (
        stored is None
        and not study.get_trials(deepcopy=False)
        and study.direction.name.lower() == DIRECTIONS[terms.metric]
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
    yield "sweep.metric", before.metric, now.metric
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
