"""A host's clock that jumps ahead, and what waits for feedback meanwhile."""

import time

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup import bootstrap
from ragbandit.shared.processes.steady_clock import SteadyClock


def test_a_jump_closes_nothing_that_waits(tmp_path, monkeypatch):
    """Feedback that comes after a jump of a month and back is learned; a month that has passed closes as ever."""
    arms = {"mine": {"run_by": "caller"}, "other": {"run_by": "caller"}}
    settings = Settings(data_dir=str(tmp_path), encoder={"model": "hashing"}, arms=arms)
    month, ahead, passed = 30 * 86_400.0, [0.0], [0.0]
    clock = SteadyClock(wall=lambda: time.time() + ahead[0], monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(bootstrap, "steady_clock", lambda: clock)
    with Router.open(settings, jobs=MemoryJobs()) as router:
        judged, silent = router.route("first?"), router.route("second?")
        ahead[0] = month
        assert router.learn() == 0
        ahead[0] = 0.0
        assert router.feedback(judged.id, reward=1.0).late is False
        assert router.learn() == 1
        ahead[0] = passed[0] = month
        assert router.learn() == 1
        assert (router.status().counters.learned, router.status().counters.closed) == (1, 1)
        assert silent.id != judged.id
