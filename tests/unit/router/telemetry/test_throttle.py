"""Lines of the log that recur."""

import time

from ragbandit.router.telemetry.logs import Throttle


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
