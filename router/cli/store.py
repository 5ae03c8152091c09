"""Opens the configured store for a verb, and parses arguments of verbs: policies with params, times, lists."""

import getpass
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer

from ragbandit.router.config import loading as configuration
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.strict_yaml import parse_yaml
from ragbandit.router.learning.status import check_registered
from ragbandit.router.policies import make_policy, untrained_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.setup.bootstrap import open_database, open_ledger
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import seconds_of
from ragbandit.shared.types import IMPORTED, Json, PolicyLabel

NewStoreOption = Annotated[
    bool, typer.Option("--new-store", help="begin a new SQLite store, although data_dir has files of another store")
]


@contextmanager
def open_store(
    config: str | None, *, label: str | None = None, must_exist: bool = True, make: bool = False
) -> Iterator[tuple[Settings, Ledger]]:
    """Open the store for a block. Yields (settings, ledger).

    label: label of the ledger; None for the configured one
    must_exist: raise NotFound if no router has ever opened the ledger, since then folder or label is probably wrong.
    make: create the store if it does not exist, instead of raising StoreError.
    """
    settings = configuration.load(config).settings
    label = label or settings.policy.label
    if make:
        with closing(open_database(settings)) as database:
            yield settings, Ledger(database, label=PolicyLabel(label))
        return
    with open_ledger(settings, label=label) as ledger:
        if must_exist:
            check_registered(ledger)
        yield settings, ledger


def registered_policy(ledger: Ledger) -> Policy | None:
    """An untrained copy of the policy that last opened the ledger; None if it was never opened, or was imported."""
    row = ledger.policy_row()
    if row is None or row["algorithm"] == IMPORTED:
        return None
    return make_policy(row["algorithm"], params=json.loads(row["params"]))


def serving_policy(ledger: Ledger, *, settings: Settings) -> Policy | None:
    """The configured policy if `ledger` is the configured one, else its `registered_policy`."""
    if ledger.label != settings.policy.label:
        return registered_policy(ledger)
    return untrained_policy(settings.policy_definition)


def actor() -> str:
    """The user of this command in the audit log, as "cli:USER@HOST"."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def parse_policies(
    names: Sequence[str], *, params: Sequence[str], settings: PolicySettings
) -> dict[str, Mapping[str, Json]]:
    """Returns policy -> configured params, overridden by `params` (NAME.KEY=VALUE). Raises InvalidInput."""
    by_name: dict[str, dict[str, Json]] = {}
    for name in split_commas(names):
        by_name[name] = dict(settings.params) if name == settings.name else {}
    for path, value in parse_pairs(params, form="NAME.KEY=VALUE", field="param", remedy="for example mba.ridge=3.0"):
        # A policy's name may be a class path with dots. The longest name with which `path` starts counts.
        policy = max((name for name in by_name if path.startswith(f"{name}.")), key=len, default=None)
        name, key = path.split(".", 1) if policy is None else (policy, path.removeprefix(f"{policy}."))
        if name not in by_name:
            remedy = f"use one of {', '.join(by_name)}" if by_name else f"ask for that policy too: --policy {name}"
            raise InvalidInput(f"{name!r} is not among the policies", field="param", remedy=remedy)
        by_name[name][key] = value
    return dict(by_name)


def parse_pairs(texts: Sequence[str], *, form: str, field: str, remedy: str) -> Iterator[tuple[str, Any]]:
    """Parse texts of the form NAME=VALUE or NAME.KEY=VALUE. Yields (name, YAML value). Raises InvalidInput."""
    for pair in texts:
        name, equals, text = pair.partition("=")
        parts = name.strip().split(".")
        try:
            value = parse_yaml(text)
        except ValueError:
            equals = ""
        if not equals or not all(parts) or len(parts) < 1 + form.count("."):
            raise InvalidInput(f"{pair!r:.80} is not {form}", field=field, remedy=remedy)
        yield name.strip(), value


def parse_amounts(text: str | None, *, field: str) -> dict[str, float]:
    """Parse "nq=1,squad=2" to {"nq": 1.0, "squad": 2.0}, and "3000" to {"": 3000.0}. Raises InvalidInput."""
    amounts: dict[str, float] = {}
    for part in split_commas([text or ""]):
        name, _, value = part.rpartition("=")
        if not value.strip().isdecimal():
            remedy = "for example 3000 or nq=500,squad=500" if field == "total" else "for example nq=1,hotpotqa=2"
            raise InvalidInput(f"{part!r} has no whole number", field=field, remedy=remedy)
        amounts[name.strip()] = float(value)
    if field == "hops" and "" in amounts:
        message = "a data set is not named before its number of hops"
        raise InvalidInput(message, field=field, remedy="for example nq=1,hotpotqa=2")
    return amounts


def split_commas(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def is_age(text: str) -> bool:
    return _AGE.fullmatch(text.strip()) is not None


def parse_time(text: str, *, now: float, field: str = "since") -> float:
    """Seconds since 1970 of a date, time (UTC without offset) or age (30m, 12h, 7d, 2w). Raises InvalidInput."""
    age = _AGE.fullmatch(text.strip())
    if age:
        return now - float(age[1]) * _UNITS[age[2]]
    try:
        return seconds_of(text)
    except ValueError as error:
        message = f"{text!r} is not a time"
        raise InvalidInput(message, field=field, remedy="for example 2026-11-20, 2026-11-20T08:00 or 7d") from error
