"""A log in parts is judged by real worker processes of Dask; one that is killed in the middle changes nothing."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from ragbandit.router.cli.offline.replay import add_replay_verb
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.router.offline.replay.dask_engine import DaskEngine
from ragbandit.router.offline.replay.parts import jobs
from tests.support.replay_logs import close, lived_rows

pytest.importorskip("distributed")

CANDIDATES = ["fixed:deep", "uniform"]
PARTS = 8


@pytest.fixture(scope="module")
def engine():
    """Two worker processes."""
    with DaskEngine.local(workers=2) as made:
        yield made


@pytest.fixture
def log(tmp_path):
    """A log of eight parts of 100 rows."""
    rows = lived_rows(100 * PARTS)
    for part in range(PARTS):
        write_rows(tmp_path / f"{part}.parquet", rows[100 * part : 100 * part + 100])
    return open_log(tmp_path, config=Settings())


def slowly(work):
    """The work, which takes its time: so that a worker is killed in the middle of it."""

    def run(job):
        time.sleep(0.3)
        return work(job)

    return run


class Slow:
    """An engine whose jobs take their time, and that tells when the first of a pass is done."""

    def __init__(self, engine, *, at, then):
        self.engine, self.at, self.then = engine, at, then

    def reduce(self, work, jobs, *, merge, told):
        if work is not self.at:
            return self.engine.reduce(work, jobs, merge=merge, told=told)
        threading.Timer(0.5, self.then).start()
        return self.engine.reduce(slowly(work), jobs, merge=merge, told=told)


@pytest.mark.parametrize("lost_in", [jobs.summarize_part, jobs.measure_part])
def test_a_lost_worker_changes_nothing(engine, log, lost_in):
    """Two workers give every bit of one process; so they do when one is killed while a pass runs."""
    expected = replay(log, candidates=CANDIDATES)
    killed = []

    def kill():
        pid = next(iter(engine.client.run(os.getpid).values()))
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    engine.client.wait_for_workers(2, timeout=30)
    close(replay(log, candidates=CANDIDATES, engine=Slow(engine, at=lost_in, then=kill)), expected, within=0.0)
    assert killed


def test_an_error_of_a_part_is_raised_as_it_is(engine, log):
    """What is wrong with a row is said as in one process: the file, the row and the remedy."""
    rows = lived_rows(5, seed=9)
    bad = replace(rows[3], decision=replace(rows[3].decision, pmf=(0.5, 0.3, 0.1)))
    write_rows(log.path / "bad.parquet", [*rows[:3], bad])
    with pytest.raises(InvalidInput, match="is no distribution") as caught:
        replay(log, candidates=CANDIDATES, engine=engine)
    assert caught.value.field == f"{log.path / 'bad.parquet'} row 4 pmf"


def test_the_command_asks_a_cluster(engine, log, tmp_path, monkeypatch):
    """`ragbandit replay --cluster` has the workers of a scheduler judge the files of a folder."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    add_replay_verb(app)
    address = engine.client.scheduler.address
    words = ["replay", "--log", str(log.path), "--policy", "fixed:deep", "--cluster", address, "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (candidate,) = json.loads(done.stdout)["candidates"]
    assert candidate["reward"]["value"] == replay(log, candidates=["fixed:deep"]).candidates[0].reward.value


def test_a_cluster_that_is_not_there():
    """An address where nobody answers is refused with the address."""
    with (
        pytest.raises(ConfigError, match=r"tcp://127\.0\.0\.1:9"),
        DaskEngine.cluster("tcp://127.0.0.1:9", patience_s=0.5),
    ):
        pass
