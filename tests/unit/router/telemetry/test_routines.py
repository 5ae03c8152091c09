"""A routine does its chore again and again, survives failures, and logs them once."""

import threading
import time

import pytest

from ragbandit.router.telemetry.logs import Throttle
from ragbandit.router.telemetry.routines import Routine, StoreOutage


@pytest.fixture
def polling():
    """A factory of started threads; `calls` is released at every call."""
    opened = []

    def start(work, *, every_s: float) -> tuple[Routine, threading.Semaphore]:
        calls = threading.Semaphore(0)

        def counted() -> None:
            try:
                work()
            finally:
                calls.release()

        outage = StoreOutage(action="poll", failing="failed", restored="works again")
        opened.append(Routine("poll", counted, every_s=every_s, at_once=False, outage=outage))
        opened[-1].start()
        return opened[-1], calls

    yield start
    for thread in opened:
        thread.close()


def test_it_works_at_the_interval_and_when_woken(polling):
    """The work is done at every interval; `wake` does it at once."""
    _, calls = polling(lambda: None, every_s=0.005)
    assert all(calls.acquire(timeout=10) for _ in range(3))
    slow, calls = polling(lambda: None, every_s=3600)
    slow.wake()
    assert calls.acquire(timeout=10)
    assert not calls.acquire(timeout=0.02)


def test_failures_are_logged_once(polling, caplog):
    """However often the work fails within a minute, there is one error when it begins and one line when it is over."""
    results = iter([ValueError("gone"), ValueError("gone"), ValueError("gone"), None])

    def work() -> None:
        error = next(results, None)
        if error is not None:
            raise error

    with caplog.at_level("INFO", logger="ragbandit.worker"):
        _, calls = polling(work, every_s=0.001)
        assert all(calls.acquire(timeout=10) for _ in range(6))
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.records[0].reason == "ValueError: gone"


def test_close_ends_the_thread():
    """After `close` nothing is called any more; closing one that never started is harmless."""
    calls = []
    thread = Routine("poll closed", lambda: calls.append(1), every_s=0.001)
    thread.close()
    thread = Routine("poll closed", lambda: calls.append(1), every_s=0.001)
    thread.start()
    thread.close()
    assert all(one.name != "ragbandit: poll closed" for one in threading.enumerate())
    before = len(calls)
    time.sleep(0.01)
    assert len(calls) == before


def test_the_first_of_each_kind_passes_and_then_one_in_a_while(monkeypatch):
    """Kinds do not silence each other, and time that passed lets the next one through."""
    clock = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    throttle = Throttle(10.0)
    assert [throttle.lets_pass("a"), throttle.lets_pass("a"), throttle.lets_pass("b")] == [True, False, True]
    clock[0] = 14.9
    assert not throttle.lets_pass("a")
    clock[0] = 15.0
    assert throttle.lets_pass("a")
    assert not throttle.lets_pass("a")
