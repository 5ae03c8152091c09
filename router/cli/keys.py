"""Verbs `keys create`, `list`, `rotate` and `revoke`: the API keys of the service."""

import getpass
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import (
    CommandLine,
    ConfigOption,
    JsonOption,
    console,
    errors,
    failing_well,
    print_json,
)
from ragbandit.router.errors import InvalidInput

if TYPE_CHECKING:
    from ragbandit.router.storage.access.api_keys import ApiKey, KeyStore, NewKey

__all__ = ["actor", "add_keys"]

_IdArgument = Annotated[str, typer.Argument(metavar="ID", help="the public id of the key")]


def add_keys(app: typer.Typer) -> None:
    """Put the verbs on the command."""
    keys = CommandLine(name="keys", no_args_is_help=True, help="Make, list, rotate and revoke the service's API keys.")
    keys.command(name="create")(_create)
    keys.command(name="list")(_list)
    keys.command(name="rotate")(_rotate)
    keys.command(name="revoke")(_revoke)
    app.add_typer(keys, name="keys")


def actor() -> str:
    """Who runs this command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


def _create(
    name: Annotated[str, typer.Option(help="what the key is for; 1 to 64 characters")],
    role: Annotated[str, typer.Option(help="reader, app, rater, worker, operator or admin")],
    tenant: Annotated[str | None, typer.Option(help="it sees and judges this tenant's decisions alone")] = None,
    expires: Annotated[str | None, typer.Option(help="when it ends: a date, a time, or from now on (90d)")] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, arms=[a,b], forced=false or rate=600/minute; repeat it")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is printed here, once: the store keeps the sha256 of its secret only."""
    with failing_well(), _store(config) as store:
        now = time.time()
        ends = None if expires is None else _end(expires, now=now)
        new = store.create(
            name=name, role=role, tenant=tenant, scopes=_scopes(scope or ()), expires_at=ends, actor=actor(), now=now
        )
        _show_new(new, as_json=as_json)


def _list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all keys: what they may do, until when, and when they were last used."""
    with failing_well(), _store(config) as store:
        found, now = store.listed(), time.time()
    if as_json:
        print_json([_facts(key, now=now) for key in found])
        return
    table = Table(box=None)
    for title in ("id", "name", "role", "tenant", "state", "expires", "last used", "scopes"):
        table.add_column(title)
    for key in found:
        scopes = ", ".join(f"{name}={value}" for name, value in key.scopes.items())
        facts = [key.public_id, key.name, key.role, key.tenant or "every", key.state(now), _day(key.expires_at)]
        table.add_row(*map(escape, [*facts, _day(key.last_used_at), scopes]))
    console.print(table)


def _rotate(
    key: _IdArgument,
    grace: Annotated[str, typer.Option(help="how long the former key stays valid: 0h, 30m, 24h, 7d")] = "24h",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key that takes the place of another; both are valid while the grace lasts."""
    with failing_well(), _store(config) as store:
        now = time.time()
        new = store.rotate(_public_id(key), grace_s=_seconds(grace, now=now), actor=actor(), now=now)
        _show_new(new, as_json=as_json)


def _revoke(key: _IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """End a key: services refuse it within a second."""
    with failing_well(), _store(config) as store:
        found = store.revoke(_public_id(key), actor=actor(), now=time.time())
        if as_json:
            print_json(_facts(found, now=time.time()))
        else:
            console.print(f"revoked: {escape(found.name)} ({found.public_id})", highlight=False)


@contextmanager
def _store(config: str | None) -> "Iterator[KeyStore]":
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.bootstrap import open_database
    from ragbandit.router.storage.access.api_keys import KeyStore

    database = open_database(configuration.load(config).settings)
    try:
        yield KeyStore(database)
    finally:
        database.close()


def _show_new(new: "NewKey", *, as_json: bool) -> None:
    if as_json:
        print_json({"key": new.text, **_facts(new.key, now=new.key.made_at)})
        return
    console.print(new.text, soft_wrap=True, highlight=False, markup=False)
    whose = f" of the tenant {new.key.tenant}" if new.key.tenant else ""
    said = f"{new.key.role}{whose}, expires: {_day(new.key.expires_at)}. The key is not shown again: keep it now."
    errors.print(escape(said), soft_wrap=True, highlight=False)


def _facts(key: "ApiKey", *, now: float) -> dict[str, Any]:
    return {**asdict(key), "scopes": dict(key.scopes), "state": key.state(now)}


def _day(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M")


def _public_id(text: str) -> str:
    """The public id in what was given: it alone, or with rb_ before it. A whole key is no argument: it would be in the
    shell's history.
    """
    bare = text.removeprefix("rb_")
    if "_" in bare:
        remedy = "give the part between rb_ and the secret; and rotate that key, for the shell has noted it"
        raise InvalidInput("this is a whole key", field="key", remedy=remedy)
    return bare


def _seconds(text: str, *, now: float) -> float:
    from ragbandit.router.cli.arguments import is_age, parse_time

    if not is_age(text):
        raise InvalidInput(f"{text!r:.40} is no time span", field="grace", remedy="for example 30m, 24h or 7d")
    return now - parse_time(text, now=now, field="grace")


def _end(text: str, *, now: float) -> float:
    from ragbandit.router.cli.arguments import is_age, parse_time

    at = parse_time(text, now=now, field="expires")
    return 2 * now - at if is_age(text) else at


def _scopes(given: Sequence[str]) -> dict[str, object]:
    import yaml

    found: dict[str, object] = {}
    for each in given:
        name, equals, text = each.partition("=")
        try:
            found[name.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise InvalidInput(f"{each!r:.80} is not NAME=VALUE", field="scopes", remedy="for example arms=[a,b]")
    return found
