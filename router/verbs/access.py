"""Verbs `keys` and `audit`: the API keys of the service, and the audit log."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.prompt import Confirm

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import ConfigOption, JsonOption
from ragbandit.router.cli.store import actor, is_age, open_store, parse_pairs, parse_time
from ragbandit.router.cli.tables import show_list
from ragbandit.router.serving.setup.bootstrap import is_open
from ragbandit.router.storage.access.api_keys import OPERATORS, ApiKey, KeyStore
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import moment


def create_key(
    name: Annotated[str, typer.Option(help="what the key is for; 1 to 64 characters")],
    role: Annotated[str, typer.Option(help="reader, app, rater, worker, operator or admin")],
    tenant: Annotated[str | None, typer.Option(help="only this tenant's decisions are read and judged")] = None,
    expires: Annotated[str | None, typer.Option(help="expiry: a date, a time, or a time from now (90d)")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, such as forced=false or dollars_per_day=5 (docs/security.md); repeat it"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask, even if this is the first key")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. It cannot be printed again, since the store keeps only the sha256 of its secret.

    From the first key on, a service that was open to this machine refuses every request without a key. At a terminal,
    the command asks before it makes the first key.
    """
    with open_store(config, must_exist=False, make=True) as (settings, ledger):
        store, now = KeyStore(ledger.database), time.time()
        ends = None if expires is None else _expiry(expires, now=now)
        scopes = dict(parse_pairs(scope or (), form="NAME=VALUE", field="scopes", remedy="for example arms=[a,b]"))
        if is_open(settings.server, keys=store.in_force(now=now)):
            opens_pages = tenant is None and role in OPERATORS
            _announce_first(opens_pages=opens_pages, asks=not yes and sys.stdin.isatty())
        new = store.create(name=name, role=role, tenant=tenant, scopes=scopes, expires_at=ends, actor=actor(), now=now)
        if as_json:
            print_json({"key": new.text, **_facts(new.key, now=now)})
            return
        console.say(new.text)
        owner = f" of the tenant {tenant}" if tenant else ""
        expiry = "never" if ends is None else moment(ends)[:16]
        errors.say(f"{role}{owner}, expires: {expiry}. The key is not shown again: keep it now.")


def _announce_first(*, opens_pages: bool, asks: bool) -> None:
    """Print the effects of the first key, and ask whether to make it. Exits with code 1 if the answer is no."""
    errors.say(
        "This is the first key. From now on the service refuses every client without a key (401), also on this "
        "machine, and stays closed if the key is revoked. Give each client a key: OpenAI's and Anthropic's as their "
        "API key, `ragbandit` and its client in RAGBANDIT_API_KEY. The dashboard (/ui) asks for one as a password."
    )
    if not opens_pages:
        also = '`ragbandit keys create --name "my laptop" --role admin`'
        errors.say(f"This key does not open the dashboard. Make one for yourself too: {also}")
    if asks and not Confirm.ask("Make it?", default=False, console=errors):
        raise typer.Exit(1)


def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all keys with their rights, their expiry and their last use."""
    with _open_key_store(config) as store:
        keys = [_facts(key, now=time.time()) for key in store.list_keys()]
    show_list(keys, none="no key yet (`ragbandit keys create --help`)", as_json=as_json)


def revoke_key(
    key: Annotated[str, typer.Argument(metavar="ID", help="the public id of the key")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key: services refuse it within a second."""
    with _open_key_store(config) as store:
        now = time.time()
        revoked = store.revoke(_public_id(key), actor=actor(), now=now)
        if as_json:
            print_json(_facts(revoked, now=now))
        else:
            console.say(f"revoked: {revoked.name} ({revoked.public_id})")


@contextmanager
def _open_key_store(config: str | None) -> Iterator[KeyStore]:
    with open_store(config, must_exist=False) as (_, ledger):
        yield KeyStore(ledger.database)


def _facts(key: ApiKey, *, now: float) -> dict[str, Any]:
    return {**asdict(key), "scopes": dict(key.scopes), "state": key.state(now)}


def _public_id(text: str) -> str:
    """Remove rb_ from a public id. Raises InvalidInput for a whole key: the shell's history contains its secret."""
    bare = text.removeprefix("rb_")
    if "_" in bare:
        remedy = "give only the part between rb_ and the secret, and replace this key: the shell's history contains it"
        raise InvalidInput("this is a whole key, secret included", field="key", remedy=remedy)
    return bare


def _expiry(text: str, *, now: float) -> float:
    """The expiry of a key; an age, such as 90d, counts from now on."""
    at = parse_time(text, now=now, field="expires")
    return 2 * now - at if is_age(text) else at


def audit(
    after: Annotated[int, typer.Option(help="only entries after the one with this number")] = 0,
    config: ConfigOption = None,
) -> None:
    """Print the entries of the audit log as JSON lines, the oldest first.

    The database refuses to change or delete an entry, but its owner can drop the triggers that refuse it. If that
    matters, copy the entries to another system.
    """
    with open_store(config, must_exist=False) as (_, ledger):
        for entry in entries(ledger.database, after=after):
            sys.stdout.write(json.dumps(asdict(entry)) + "\n")
