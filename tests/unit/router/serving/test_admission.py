"""What a queue takes in: bounded by the expected wait, by a count, and by a tenant's share."""

import threading

import pytest

from ragbandit.router.config.server import ServerSettings
from ragbandit.router.serving.batching import TENANT_S, WARM_UP, BatchTime, MicroBatcher
from ragbandit.shared.errors import Overloaded, TooManyRequests


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def queue(clock=None, *, work=list, limit=10, sizes=(), size_s=0.0, **limits):
    """A queue without a thread, whose batches of these sizes have taken so long so far."""
    wide = ServerSettings(**{"max_wait_s": 60.0, "max_waiting": 10_000, "tenant_share": 1.0} | limits)
    made = MicroBatcher(work, name="test-queue", limit=limit, limits=wide, clock=clock or Clock())
    for size in [1] * WARM_UP + list(sizes):
        made.batch_time.record(size_s * size, size=size)
    return made


def taken(made, count, *, tenant="a"):
    for number in range(count):
        made.submit(number, tenant=tenant)


def test_the_expected_wait_bounds_the_queue():
    """With 10 items in a batch of 0.5 s and at most 2 s of waiting, 50 items may wait, and the next one is refused."""
    made = queue(sizes=[10], size_s=0.05, max_wait_s=2.0)
    taken(made, 50)
    with pytest.raises(Overloaded, match=r"the expected wait is 2\.5 s.*server.max_wait_s \(2 s\)") as caught:
        made.submit("more")
    assert caught.value.retry_after_s == 3.0
    assert made.state().refused == {"wait": 1, "count": 0, "tenant": 0}


def test_the_batch_that_runs_is_part_of_the_wait():
    """An item waits for the rest of the batch that runs; one that is late is expected to be late as long again, by one
    batch at most.
    """
    clock, entered, opened = Clock(), threading.Event(), threading.Event()

    def work(items):
        entered.set()
        assert opened.wait(10)
        return items

    made = queue(clock, work=work, sizes=[10], size_s=0.2)
    assert made.state().expected_wait_s == 0.0
    made.submit_all(range(10))
    made.start()
    assert entered.wait(10)
    for seconds, expected in ((0.0, 2.0), (1.5, 0.5), (1.25, 0.75), (30.0, 2.0)):
        clock.now += seconds
        assert made.state().expected_wait_s == pytest.approx(expected)
    opened.set()
    made.close()
    assert made.batch_time.predict(10) > 10.0  # it counts from now on


@pytest.mark.parametrize(("fixed_s", "item_s"), [(0.2, 0.0), (0.0, 0.01), (0.05, 0.002)])
def test_a_full_batch_is_expected_from_small_ones(fixed_s, item_s):
    """Whether a batch takes long by itself, by its items or both, small batches tell what a full one of 32 takes."""
    time = BatchTime()
    for size in [1, 3, 1, 2, 5, 4, 1, 2]:
        time.record(fixed_s + item_s * size, size=size)
    assert time.predict(32) == pytest.approx(fixed_s + item_s * 32)


def test_a_tenant_gets_its_share_while_others_ask():
    """With two tenants each may take half of the queue: 429 naming the field for one, room for the other."""
    made = queue(sizes=[1], size_s=0.5, limit=1, max_wait_s=10.0, tenant_share=0.5)
    taken(made, 1, tenant="b")
    taken(made, 11, tenant="a")
    with pytest.raises(TooManyRequests, match="11 requests of the tenant 'a' are waiting") as caught:
        made.submit("more", tenant="a")
    assert (caught.value.field, caught.value.retry_after_s) == ("tenant", 6.0)
    taken(made, 8, tenant="b")
    assert made.state().refused == {"wait": 0, "count": 0, "tenant": 1}


def test_another_tenant_is_forgotten():
    """A tenant that has been the only one for a minute may use the whole queue again."""
    clock = Clock()
    made = queue(clock, max_waiting=10, tenant_share=0.5)
    taken(made, 1, tenant="b")
    taken(made, 5)
    with pytest.raises(TooManyRequests):
        made.submit("more", tenant="a")
    clock.now += TENANT_S + 1
    taken(made, 4)


def test_a_queue_that_fills_is_bounded_by_full_batches():
    """After small batches at 10 ms an item, 32 in a batch and at most 1 s of waiting, 128 may wait, not a thousand."""
    made = queue(limit=32, sizes=[1, 4, 9, 1, 2], size_s=0.01, max_wait_s=1.0)
    with pytest.raises(Overloaded):
        taken(made, 1000)
    assert made.state().waiting == 128
