"""Services that other machines reach: `serve` and `up` start with a key only."""

import os
import sys
import time
from pathlib import Path

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import check_exposure, is_loopback, open_database
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.shared.errors import ConfigError
from tests.support.command import run

EVERY = "0.0.0.0"


def command(*arguments):
    return [sys.executable, "-m", "ragbandit", *arguments]


def environment():
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.mark.parametrize("verb", ["serve", "up"])
def test_without_a_key_nothing_starts(tmp_path, monkeypatch, verb):
    """`serve` and `up` on every address end with exit code 2 and the command that makes the first key."""
    (tmp_path / "config.yaml").write_text(f"encoder: {{model: hashing}}\nserver: {{host: {EVERY}, port: 8199}}\n")
    if verb == "up":
        with (tmp_path / "config.yaml").open("a") as file:
            file.write("arms: {mine: {run_by: caller}}\n")
    monkeypatch.chdir(tmp_path)
    done = run(verb, code=2)
    assert "CONFIG_INVALID server.host" in done.stderr
    assert "ragbandit keys create --role admin --name NAME" in done.stderr


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        (EVERY, False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("a-name", False),
    ],
)
def test_addresses_of_this_machine(host, only_here):
    """Loopback addresses are known; a name may be of any address."""
    assert is_loopback(host) is only_here


def test_an_unrevoked_key_or_the_setting_lets_it_start(tmp_path):
    """What counts is a key that is not revoked; `server.open: true` needs none."""
    server = {"host": EVERY}
    settings = Settings(data_dir=str(tmp_path), server=server)
    with pytest.raises(ConfigError):
        check_exposure(settings, now=time.time())
    check_exposure(Settings(data_dir=str(tmp_path), server=server | {"open": True}), now=time.time())
    check_exposure(Settings(data_dir=str(tmp_path), server={}), now=time.time())
    database = open_database(settings)
    keys = KeyStore(database)
    new = keys.create(name="first", role="admin", now=time.time(), actor="cli:test")
    check_exposure(settings, now=time.time())
    keys.revoke(new.key.public_id, actor="cli:test", now=time.time())
    database.close()
    with pytest.raises(ConfigError):
        check_exposure(settings, now=time.time())
