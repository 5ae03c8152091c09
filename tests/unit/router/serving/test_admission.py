"""What a queue takes in: bounded by the expected wait, by a count, and by a tenant's share."""

import pytest

from ragbandit.router.config.server import ServerSettings
from ragbandit.router.serving.batching import TENANT_S, WARM_UP, Admission, BatchTime
from ragbandit.shared.errors import Overloaded, TooManyRequests


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def measured(clock, *, batch_s, limit=10, **limits):
    """An admission whose batches have taken this long so far; the queue is idle."""
    wide = {"max_wait_s": 60.0, "max_waiting": 10_000, "tenant_share": 1.0}
    made = Admission(ServerSettings(**wide | limits), limit=limit, clock=clock)
    for _ in range(WARM_UP + 20):
        made.begin(limit)
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
    admission.begin(10)
    assert admission.expected_wait_s() == pytest.approx(2.0)
    clock.now += 1.5
    assert admission.expected_wait_s() == pytest.approx(0.5)
    clock.now += 1.25
    assert admission.expected_wait_s() == pytest.approx(0.75)
    clock.now += 30.0
    assert admission.expected_wait_s() == pytest.approx(2.0)


@pytest.mark.parametrize(("fixed_s", "item_s"), [(0.2, 0.0), (0.0, 0.01), (0.05, 0.002)])
def test_a_full_batch_is_expected_from_small_ones(fixed_s, item_s):
    """Whether a batch takes long by itself, by its items or both, small batches tell what a full one of 32 takes."""
    time = BatchTime()
    for size in [1, 3, 1, 2, 5, 4, 1, 2]:
        time.record(fixed_s + item_s * size, size=size)
    assert time.of(32) == pytest.approx(fixed_s + item_s * 32)


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


def test_a_queue_that_fills_is_bounded_by_full_batches():
    """After small batches at 10 ms an item, 32 in a batch and at most 1 s of waiting, 128 may wait, not a thousand."""
    clock = Clock()
    admission = Admission(ServerSettings(max_wait_s=1.0), limit=32, clock=clock)
    for size in [1] * WARM_UP + [1, 4, 9, 1, 2]:
        admission.begin(size)
        clock.now += 0.01 * size
        admission.end()
    with pytest.raises(Overloaded):
        taken(admission, 1000)
    assert admission.waiting == 128
