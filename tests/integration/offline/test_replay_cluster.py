"""A log in parts is judged by the workers of a Dask cluster; one that is killed in the middle changes nothing."""

import os
import signal
import threading
import time

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import engine, open_log, replay
from tests.support.logs.replay_logs import close, lived_rows

distributed = pytest.importorskip("distributed")

CANDIDATES = ["fixed:deep", "uniform"]
PARTS = 8


@pytest.fixture(scope="module")
def client():
    """Fixture: a cluster with one worker process."""
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=40,
        ) as cluster,
        distributed.Client(cluster) as made,
    ):
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

    def run(job, **more):
        time.sleep(0.3)
        return work(job, **more)

    return run


@pytest.mark.parametrize("lost_in", ["learn_part", "measure_part"])
@pytest.mark.slow
def test_a_lost_worker_changes_nothing(client, log, lost_in, monkeypatch):
    """Two workers give the numbers of one process; so they do when one is killed while a pass runs."""
    expected = replay(log, candidates=CANDIDATES)
    killed, work = [], slowly(getattr(engine, lost_in))

    def kill():
        pid = next(iter(client.run(os.getpid).values()))
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=30)
    monkeypatch.setattr(engine, lost_in, work)
    threading.Timer(0.5, kill).start()
    close(replay(log, candidates=CANDIDATES, executor=client.get_executor(pure=False)), expected)
    assert killed
