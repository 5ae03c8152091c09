"""`ragbandit data archive`: counts, moves, and refuses what it cannot do."""

import json

import pytest
from typer.testing import CliRunner

from ragbandit.router.storage.sql.leases import Lease
from ragbandit.workers.cli import app

pytest.importorskip("pyarrow")


@pytest.fixture
def run(make_world, tmp_path, monkeypatch):
    """Runs the verb on a store with five learned decisions."""
    world = make_world()
    world.judged(5)
    world.learn()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(world.settings.data_dir))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return world, CliRunner().invoke(app, ["data", "archive", *arguments])

    return call


def test_a_dry_run_counts_and_moves_nothing(run):
    """The last update of the ledger stays, so four of five could move."""
    world, done = run("--before", "2030-01-01", "--dry-run", "--json")
    assert json.loads(done.stdout)["archivable"] == 4
    assert len(list(world.ledger.read(after=0))) == 5


def test_old_decisions_move_under_the_data_folder(run):
    """Without --to the setting archive holds; the ledger reads on."""
    world, done = run("--before", "1d", "--json")
    told = json.loads(done.stdout)
    assert (told["segments"], told["decisions"], told["kept"]) == (1, 4, 0)
    assert told["archive"] == world.settings.archive_root
    assert [update.seq for update in world.ledger.read(after=0)] == [1, 2, 3, 4, 5]


def test_a_time_that_is_none_is_refused(run):
    """The field is named, with an example."""
    _, done = run("--before", "yesterday")
    assert done.exit_code == 2
    assert "before" in done.stderr
    assert "7d" in done.stderr


def test_two_at_once_are_kept_apart(run):
    """The second one says so and moves nothing; the lease of a process that died runs out."""
    world, _ = run("--before", "1970-01-02")
    Lease(database=world.database, name="archive").acquire(holder="other", lease_s=300)
    _, done = run("--before", "2030-01-01")
    assert done.exit_code == 2
    assert "another process archives" in done.stderr
    assert "other, for " in done.stderr
