"""The file by whose age a probe sees that a worker has loaded everything and still runs."""

import os

from ragbandit.workers.processes import watches
from ragbandit.workers.processes.watches import touch_heartbeat
from ragbandit.workers.processes.worker import run_worker
from tests.support.waiting import until


def test_the_file_is_there_while_it_runs(tmp_path, monkeypatch):
    """It is touched again and again within the block, and gone after it."""
    monkeypatch.setattr(watches, "BEAT_S", 0.02)
    file = tmp_path / "alive"
    with touch_heartbeat(file):
        os.utime(file, (0, 0))
        until(lambda: file.stat().st_mtime > 0, seconds=10)
    assert not file.exists()
    with touch_heartbeat(None):
        pass


def test_a_worker_beats_once_it_is_ready(settings, redis_server, redis_client, tmp_path, monkeypatch):
    """A worker that was given a file has it while it takes jobs, and removes it at its end."""
    seen = []
    file = tmp_path / "alive"
    monkeypatch.setattr(
        "ragbandit.workers.processes.worker._run_consumers", lambda *_, **__: seen.append(file.exists())
    )
    run_worker(settings(redis_url=redis_server), queues=["learn"], heartbeat=file, burst=True)
    assert seen == [True]
    assert not file.exists()
