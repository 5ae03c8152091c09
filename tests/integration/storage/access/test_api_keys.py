"""API keys in the store, on SQLite and PostgreSQL: stored facts and validity."""

import re

import pytest
from sqlalchemy import select

from ragbandit.router.storage.access import api_keys as module
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.sql.tables import api_keys, audit_log
from ragbandit.shared.errors import InvalidInput

NOW = 1_700_000_000.0
HOUR = 3600.0


@pytest.fixture
def keys(database):
    return KeyStore(database)


def made(keys, **changes):
    return keys.create(**{"name": "our app", "role": "app", "now": NOW, "actor": "cli:ann@host", **changes})


def test_a_key_is_found_by_its_whole_text(keys):
    """A key has the form rb_<10>_<43>, and is found by its text with all that it was made with."""
    new = made(keys, tenant="acme", scopes={"arms": ["single_step"]}, expires_at=NOW + HOUR)
    assert re.fullmatch(r"rb_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}", new.text)
    found = keys.in_force(now=NOW).find(new.text)
    assert found == new.key
    assert (found.tenant, found.scopes, found.role) == ("acme", {"arms": ["single_step"]}, "app")
    assert keys.list_keys() == [new.key]


def test_the_secret_is_nowhere_in_the_store(keys, database):
    """Rows, audit log and the key's own repr hold neither the text nor its secret."""
    new = made(keys)
    secret = new.text.rpartition("_")[2]
    with database.read() as connection:
        kept = [str(row) for table in (api_keys, audit_log) for row in connection.execute(select(table))]
    assert secret not in "".join(kept) + repr(new)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("a" if text[-1] != "a" else "b"),
        lambda text: "rb_0000000000_" + text.rpartition("_")[2],
        lambda text: text + " ",
        lambda text: text.upper(),
        lambda text: "",
        lambda text: "rb_" + "é" * 10 + "_" + "é" * 43,
        lambda text: text * 300,
    ],
    ids=["secret", "public id", "space", "upper", "empty", "non-ascii", "long"],
)
def test_another_text_is_no_key(keys, change):
    """A text that differs in anything is not the key."""
    new = made(keys)
    assert keys.in_force(now=NOW).find(change(new.text)) is None


def test_a_revoked_key_is_not_in_force(keys):
    """A revoked key is gone from what requests are checked against; revoking again keeps the first time."""
    first = made(keys)
    keys.revoke(first.key.public_id, actor="cli:ann@host", now=NOW + 1)
    again = keys.revoke(first.key.public_id, actor="cli:ann@host", now=NOW + 2)
    found = keys.in_force(now=NOW + 2)
    assert again.revoked_at == NOW + 1
    assert (found.find(first.text), found.unrevoked, found.ever) == (None, False, True)


def test_every_change_is_in_the_audit_log(keys, database):
    """Making and revoking a key are one entry each, with who did it."""
    first = made(keys, tenant="acme")
    keys.revoke(first.key.public_id, actor="cli:ann@host", now=NOW)
    found = [(entry.actor, entry.action, entry.target, entry.tenant) for entry in entries(database)]
    target = f"key:{first.key.public_id}"
    assert found == [
        ("cli:ann@host", "key.create", target, "acme"),
        ("cli:ann@host", "key.revoke", target, "acme"),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"role": "root"}, "role"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"name": "\u200b \ufeff"}, "name"),
        ({"name": "\u0958" * 64}, "name"),
        ({"tenant": "a b"}, "tenant"),
        ({"tenant": "acme", "role": "admin"}, "tenant"),
        ({"expires_at": NOW}, "expires"),
    ],
)
def test_wrong_facts_make_no_key(keys, changes, field):
    """A role that is not there, a name or tenant that cannot be used and a time that is over make no key."""
    with pytest.raises(InvalidInput) as caught:
        made(keys, **changes)
    assert caught.value.field == field
    assert keys.list_keys() == []


def test_names_that_look_alike_are_one_name(keys):
    """A key's name is stored as NFC, without format characters and blanks at its ends, also in the audit log."""
    looks = ["caf\u00e9", "cafe\u0301", " caf\u00e9 ", "caf\u200b\u00e9"]
    assert {made(keys, name=name).key.name for name in looks} == {"caf\u00e9"}
    assert {key.name for key in keys.list_keys()} == {"caf\u00e9"}
    assert {entry.facts["name"] for entry in entries(keys.database)} == {"caf\u00e9"}


def test_keys_are_bounded(keys, monkeypatch):
    """Beyond the bound no key is made before another one is revoked."""
    monkeypatch.setattr(module, "MAX_KEYS", 2)
    first, _ = made(keys), made(keys)
    with pytest.raises(InvalidInput, match="2 keys"):
        made(keys)
    keys.revoke(first.key.public_id, actor="cli:ann@host", now=NOW)
    made(keys)
