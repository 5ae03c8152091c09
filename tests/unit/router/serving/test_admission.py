"""What a queue takes in: bounded by the expected wait, by a count, and by a tenant's share."""

import pytest

from ragbandit.router.serving.batching import (
    TENANT_S,
    WARM_UP,
    Admission,
    QueueLimits,
)
from ragbandit.shared.errors import Overloaded, TooManyRequests


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def measured(clock, *, batch_s, limit=10, **limits):
    """An admission whose batches have taken this long so far; the queue is idle."""
    made = Admission(QueueLimits(**limits), limit=limit, clock=clock)
    for _ in range(WARM_UP + 20):
        made.begin()
        clock.now += batch_s
        made.end()
    return made


def taken(admission, count, *, tenant="a"):
    for _ in range(count):
        admission.check_all()
        admission.check_tenant(tenant)
        admission.add(tenant=tenant)


def test_the_expected_wait_bounds_the_queue():
    """With 10 items in a batch of 0.5 s and at most 2 s of waiting, 50 items may wait, and the next one is refused."""
    admission = measured(Clock(), batch_s=0.5, max_wait_s=2.0)
    taken(admission, 50)
    with pytest.raises(Overloaded, match=r"the expected wait is 2\.5 s.*server.max_wait_s \(2 s\)") as caught:
        admission.check_all()
    assert caught.value.retry_after_s == 3.0
    assert admission.state().refused == {"wait": 1, "count": 0, "tenant": 0}


def test_the_batch_that_runs_is_part_of_the_wait():
    """An item waits for the rest of the batch that runs; one that is late is expected to be late as long again, by one
    batch at most.
    """
    clock = Clock()
    admission = measured(clock, batch_s=2.0)
    assert admission.expected_wait_s() == 0.0
    admission.begin()
    assert admission.expected_wait_s() == pytest.approx(2.0)
    clock.now += 1.5
    assert admission.expected_wait_s() == pytest.approx(0.5)
    clock.now += 1.25
    assert admission.expected_wait_s() == pytest.approx(0.75)
    clock.now += 30.0
    assert admission.expected_wait_s() == pytest.approx(2.0)


def test_one_long_batch_counts_for_half_and_a_short_one_for_a_fifth():
    """The expected time of a batch rises quickly and falls slowly; the first batches, which warm up, do not count."""
    clock = Clock()
    admission = Admission(QueueLimits(), limit=1, clock=clock)
    taken(admission, 1)
    for batch_s, expected in [*[(9.0, 0.0)] * WARM_UP, (1.0, 1.0), (3.0, 2.0), (1.0, 1.8)]:
        admission.begin()
        clock.now += batch_s
        admission.end()
        assert admission.expected_wait_s() == pytest.approx(expected)


def test_a_count_bounds_the_queue():
    """However short the wait, no more than max_waiting items wait."""
    admission = measured(Clock(), batch_s=0.0, max_waiting=3)
    taken(admission, 3)
    with pytest.raises(Overloaded, match="3 requests are waiting already"):
        admission.check_all()
    admission.remove(tenant="a")
    taken(admission, 1)


def test_a_tenant_gets_its_share_while_others_ask():
    """With two tenants each may take half of the queue: 429 naming the field for one, room for the other."""
    admission = measured(Clock(), batch_s=0.5, limit=1, max_wait_s=10.0, tenant_share=0.5)
    taken(admission, 1, tenant="b")
    taken(admission, 11, tenant="a")
    with pytest.raises(TooManyRequests, match="11 requests of the tenant 'a' are waiting") as caught:
        admission.check_tenant("a")
    assert (caught.value.field, caught.value.retry_after_s) == ("tenant", 6.0)
    taken(admission, 8, tenant="b")
    assert admission.state().refused == {"wait": 0, "count": 0, "tenant": 1}


def test_another_tenant_is_forgotten():
    """A tenant that has been the only one for a minute may use the whole queue again."""
    clock = Clock()
    admission = measured(clock, batch_s=0.0, max_waiting=10, tenant_share=0.5)
    taken(admission, 1, tenant="b")
    admission.remove(tenant="b")
    taken(admission, 5)
    with pytest.raises(TooManyRequests):
        admission.check_tenant("a")
    clock.now += TENANT_S + 1
    taken(admission, 5)
