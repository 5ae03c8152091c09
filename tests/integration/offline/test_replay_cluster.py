"""A log in parts is judged by real worker processes of Dask; one that is killed in the middle changes nothing."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError, InvalidInput, NotReady, RagBanditError
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import dask_engine, open_log, replay
from ragbandit.router.offline.replay.dask_engine import DaskEngine
from ragbandit.router.offline.replay.parts import jobs
from ragbandit.workers.cli import app
from tests.support.logs.replay_logs import close, lived_rows

distributed = pytest.importorskip("distributed")

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
@pytest.mark.slow
def test_a_lost_worker_changes_nothing(engine, log, lost_in):
    """Two workers give the numbers of one process; so they do when one is killed while a pass runs."""
    expected = replay(log, candidates=CANDIDATES)
    killed = []

    def kill():
        pid = next(iter(engine.client.run(os.getpid).values()))
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    engine.client.wait_for_workers(2, timeout=30)
    close(replay(log, candidates=CANDIDATES, engine=Slow(engine, at=lost_in, then=kill)), expected, within=1e-9)
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
    address = engine.client.scheduler.address
    words = ["replay", "--log", str(log.path), "--policy", "fixed:deep", "--cluster", address, "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (candidate,) = json.loads(done.stdout)["candidates"]
    assert candidate["reward"]["value"] == pytest.approx(
        replay(log, candidates=["fixed:deep"]).candidates[0].reward.value, abs=1e-9
    )


def test_a_cluster_that_is_not_there():
    """An address where nobody answers is refused with the address."""
    with (
        pytest.raises(ConfigError, match=r"tcp://127\.0\.0\.1:9"),
        DaskEngine.cluster("tcp://127.0.0.1:9", patience_s=0.5),
    ):
        pass


@pytest.fixture
def idle(monkeypatch):
    """A client of a cluster without workers."""
    monkeypatch.setattr(dask_engine, "LOOK_S", 0.05)
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_cluster_without_workers(idle, log):
    """A cluster that has no workers is waited for as long as said, and named."""
    with pytest.raises(NotReady, match=r"has had no workers for 0\.1 s"):
        replay(log, candidates=CANDIDATES, engine=DaskEngine(idle, patience_s=0.1))


def test_a_cluster_that_is_lost(idle, log):
    """Parts that are cancelled, as all are when the scheduler ends, are one error of ours."""
    cancel = threading.Timer(0.2, lambda: idle.cancel([distributed.Future(key, idle) for key in list(idle.futures)]))
    cancel.start()
    with pytest.raises(NotReady, match="the cluster was lost"):
        replay(log, candidates=CANDIDATES, engine=DaskEngine(idle))
    cancel.join()


@pytest.fixture
def impatient(engine):
    """The engine, whose scheduler gives up a part with the first worker that it ends; as before afterwards."""

    def allow(failures):
        engine.client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", failures))

    before = engine.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures)
    allow(0)
    yield engine
    allow(before)


def test_a_part_that_ends_its_workers(impatient):
    """A part that ends whatever process it is judged in is one error of ours, with what to do."""
    with pytest.raises(RagBanditError, match="ended every worker that took it") as caught:
        impatient.reduce(lambda _: os.kill(os.getpid(), signal.SIGKILL), [0], merge=max, told=lambda _: None)
    assert "memory" in caught.value.remedy
