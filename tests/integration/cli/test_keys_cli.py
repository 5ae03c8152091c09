"""`ragbandit keys` and `audit`: keys are made, listed and revoked, which the log records."""

import io
import json
import re
from functools import partial
from types import SimpleNamespace

import pytest

from ragbandit.router.verbs import access
from tests.support import command


@pytest.fixture(autouse=True)
def _store(settings, tmp_path, monkeypatch):
    configuration = settings()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(configuration.data_dir))
    monkeypatch.chdir(tmp_path)


run = partial(command.run, code=0)


_TENANT = ("--role", "app", "--tenant", "a-tenant-with-a-long-name", "--scope", "dollars_per_day=5", "--expires", "90d")


def created(*more: str) -> dict:
    return json.loads(run("keys", "create", "--name", "ours", "--role", "app", *more, "--json").stdout)


def test_a_key_is_printed_once(tmp_path):
    """`create` prints only the key on standard output; `list` and the log never show it."""
    done = run("keys", "create", "--name", "a [b] key", "--role", "reader")
    assert re.fullmatch(r"rb_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}\n", done.stdout)
    assert "not shown again" in done.stderr
    secret = done.stdout.strip().rpartition("_")[2]
    listed = run("keys", "list")
    assert "a [b] key" in listed.stdout
    for shown in (listed, run("keys", "list", "--json"), run("audit")):
        assert secret not in shown.output


def test_a_row_in_a_pipe_is_one_line():
    """In a pipe `keys list` prints each key on one line, however many columns it has."""
    ids = [
        json.loads(run("keys", "create", "--name", f"key of team {number}", *_TENANT, "--json").stdout)["public_id"]
        for number in range(2)
    ]
    header, *rows = run("keys", "list").stdout.splitlines()
    assert header.split()[:2] == ["public", "id"]
    assert [row.split()[0] for row in rows] == ids
    assert ["key of team 0" in row for row in rows] == [True, False]


def test_the_first_key_says_who_is_locked_out():
    """Only the first key says that all clients and the dashboard need keys, and that it opens no page."""
    first, second = (run("keys", "create", "--name", "ours", "--role", "app").stderr for _ in range(2))
    for words in ("refuses every client without a key", "RAGBANDIT_API_KEY", "/ui", "--role admin"):
        assert words in first
        assert words not in second


def test_an_admins_first_key_opens_the_dashboard():
    """An admin's first key closes the service too, and no other key is asked for."""
    said = run("keys", "create", "--name", "ours", "--role", "admin").stderr
    assert "refuses every client without a key" in said
    assert "--role admin" not in said


def test_a_service_that_needs_keys_already_is_not_closed(monkeypatch):
    """A service that other machines can reach has never served without a key, so its first key locks nobody out."""
    monkeypatch.setenv("RAGBANDIT_SERVER__HOST", "10.0.0.1")
    assert "refuses every client" not in run("keys", "create", "--name", "ours", "--role", "app").stderr


def test_a_terminal_asks_before_the_first_key(monkeypatch):
    """In a terminal `create` makes the first key only after a yes, or with --yes; it does not ask for the second."""

    def create(answer, *more):
        stdin = io.StringIO(answer)
        stdin.isatty = lambda: True
        monkeypatch.setattr(access, "sys", SimpleNamespace(stdin=stdin))
        monkeypatch.setattr("builtins.input", lambda _="": stdin.readline().strip())
        return command.run("keys", "create", "--name", "ours", "--role", "admin", *more)

    assert create("n\n").exit_code == 1
    assert json.loads(run("keys", "list", "--json").stdout) == []
    monkeypatch.setenv("RAGBANDIT_SERVER__OPEN", "true")  # then it is open again when no key is left
    for answer, more in (("y\n", ()), ("", ("--yes",))):
        assert "rb_" in create(answer, *more).stdout
        assert "rb_" in create("").stdout
        for key in json.loads(run("keys", "list", "--json").stdout):
            run("keys", "revoke", key["public_id"])


def test_create_takes_tenant_scopes_and_expiry():
    """What a key is narrowed to is stored with it, and listed as JSON."""
    key = created("--tenant", "acme", "--scope", "arms=[fast, deep]", "--scope", "forced=false", "--expires", "90d")
    [listed] = json.loads(run("keys", "list", "--json").stdout)
    assert listed == {name: value for name, value in key.items() if name != "key"}
    assert (listed["tenant"], listed["scopes"]) == ("acme", {"arms": ["fast", "deep"], "forced": False})
    assert listed["expires_at"] - listed["made_at"] == pytest.approx(90 * 86_400, abs=5)
    created("--expires", "9999999d")  # beyond the calendar
    assert run("keys", "list").stdout.count("\N{EN DASH}") == 1
    assert listed["state"] == "active"


def test_revoke():
    """A revoked key is listed as one; ids are taken with and without rb_."""
    first, second = created(), created()
    run("keys", "revoke", first["public_id"])
    run("keys", "revoke", f"rb_{second['public_id']}")
    assert {key["state"] for key in json.loads(run("keys", "list", "--json").stdout)} == {"revoked"}
    actions = [json.loads(line)["action"] for line in run("audit").stdout.splitlines()]
    assert actions == [*["key.create"] * 2, *["key.revoke"] * 2]
    assert len(run("audit", "--after", "2").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "--name", "x", "--role", "root"], "role"),
        (["create", "--name", "x", "--role", "app", "--scope", "arms"], "NAME=VALUE"),
        (["create", "--name", "x", "--role", "app", "--scope", "arms=[a"], "NAME=VALUE"),
        (["create", "--name", "x", "--role", "app", "--scope", "arms=3"], "scopes.arms"),
        (["create", "--name", "x", "--role", "app", "--scope", "cost_weight=-1"], "scopes.cost_weight"),
        (["create", "--name", "x", "--role", "app", "--scope", "cost_weights=[2,1]"], "scopes.cost_weights"),
        (
            ["create", "--name", "x", "--role", "app", "--scope", "cost_weight=3", "--scope", "cost_weights=[1,2]"],
            "is not in the range [1, 2]",
        ),
        (["create", "--name", "x", "--role", "app", "--scope", "more=3"], "unknown scope"),
        (["create", "--name", "x", "--role", "app", "--expires", "2020-01-01"], "expires"),
        (["create", "--name", "x", "--role", "app", "--expires", "soon"], "expires"),
        (["revoke", "0123456789"], "NOT_FOUND"),
        (["revoke", "rb_0123456789_" + "a" * 43], "whole key"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    """Wrong words end with exit code 2 and one line that names them; nothing is stored."""
    done = run("keys", *arguments, code=2)
    assert said in done.stderr
    assert "a" * 43 not in done.output
    assert json.loads(run("keys", "list", "--json").stdout) == []
