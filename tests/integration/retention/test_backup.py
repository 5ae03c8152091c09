"""A backup is one state of a store in use: a folder that is a store, or what pg_dump wrote."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.integration.retention import writer
from tests.support.command import run
from tests.support.servers.postgres_server import PostgresServer


@contextlib.contextmanager
def writing(settings):
    """A process that decides and learns meanwhile."""
    arguments = [sys.executable, writer.__file__, settings.model_dump_json()]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        yield
        process.stdin.close()


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Points commands at a store."""
    monkeypatch.chdir(tmp_path)

    def point(data_dir, database_url=None):
        tree = {"data_dir": str(data_dir), "encoder": {"model": "hashing", "dimension": 8}}
        Path("config.yaml").write_text(json.dumps(tree | ({"database_url": database_url} if database_url else {})))

    return point


def test_taken_while_another_process_writes(settings, configured, tmp_path):
    """The folder is a store that verifies, whose policy need not be learned again; its owner alone reads it."""
    with writing(settings(data_dir=str(tmp_path / "live"))):
        configured(tmp_path / "live")
        done = run("data", "backup", "copy", "--json")
        assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    file = tmp_path / "copy" / "ragbandit.db"
    assert (facts["bytes"], file.stat().st_mode & 0o777) == (file.stat().st_size, 0o600)
    assert facts["snapshots"] >= 2
    configured(tmp_path / "copy")
    verified = run("verify", "--deep", "--json")
    verdict = json.loads(verified.stdout)
    assert (verified.exit_code, verdict["decisions"] >= 30, verdict["updates"] >= 20) == (0, True, True)
    assert json.loads(run("status", "--json").stdout)["rebuilding"] is False


def test_a_database_that_is_there_is_not_replaced(make_world, configured, tmp_path):
    """A second backup into the same folder is refused, and the first stays as it was."""
    configured(data_dir := make_world().settings.data_dir)
    shutil.rmtree(Path(data_dir) / "snapshots")  # as before the first start
    copied = run("data", "backup", "copy", "--json")
    assert (copied.exit_code, json.loads(copied.stdout)["snapshots"]) == (0, 0)
    before = (tmp_path / "copy" / "ragbandit.db").stat()
    refused = run("data", "backup", "copy")
    assert (refused.exit_code, "ragbandit.db exists already" in refused.stderr) == (2, True), refused.output
    assert (tmp_path / "copy" / "ragbandit.db").stat() == before


def test_a_backup_follows_no_links(make_world, configured, tmp_path):
    """A folder that is a link, or has a link in place of its snapshots, is refused."""
    configured(make_world().settings.data_dir)
    for folder in ("elsewhere", "copy"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "copy" / "snapshots").symlink_to("../elsewhere")
    for folder in ("link", "copy"):
        refused = run("data", "backup", folder)
        assert (refused.exit_code, "is a link" in refused.stderr) == (2, True), refused.output
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_postgresql_by_its_own_programs(settings, configured, postgres, postgres_url, tmp_path):
    """The verb names pg_dump; what it dumps while another process writes is restored to a store that verifies."""
    with writing(settings(data_dir=str(tmp_path / "live"), database_url=postgres_url)):
        configured(tmp_path / "live", postgres_url)
        refused = run("data", "backup", "copy")
        assert (refused.exit_code, "use pg_dump" in refused.stderr) == (2, True), refused.output
        dumped(postgres, "pg_dump", "--format=custom", "--file=ragbandit.dump", "--dbname", plain(postgres_url))
        shutil.copytree(tmp_path / "live" / "snapshots", tmp_path / "again" / "snapshots")
    name = postgres.new_database()
    dumped(postgres, "pg_restore", "--no-owner", "--dbname", plain(postgres.url(name)), "ragbandit.dump")
    configured(tmp_path / "again", postgres.url(name))
    verified = run("verify", "--json")
    postgres.drop(name)
    assert (verified.exit_code, json.loads(verified.stdout)["updates"] >= 20) == (0, True), verified.output


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def dumped(postgres: PostgresServer, program, *arguments):
    subprocess.run([postgres.programs / program, *arguments], check=True)
