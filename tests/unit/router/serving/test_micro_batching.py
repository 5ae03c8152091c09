"""Requests that come together share one piece of work, and each gets its own reply."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.config.server import ServerSettings
from ragbandit.router.serving import batching
from ragbandit.router.serving.batching import MicroBatcher
from ragbandit.shared.errors import InvalidInput, NotReady, Overloaded
from tests.support.examples import steady

WIDE = ServerSettings(max_wait_s=60.0, tenant_share=1.0)


@contextmanager
def grouped(work, *, limit=8, **more):
    made = MicroBatcher(work, name="test-group", limit=limit, **{"limits": WIDE} | more)
    made.start()
    try:
        yield made
    finally:
        made.close()


class Gate:
    """Work that waits in its first call until it is opened, and remembers its groups."""

    def __init__(self, reply=lambda item: item):
        self.reply = reply
        self.groups = []
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, items):
        self.groups.append(list(items))
        self.entered.set()
        assert self.opened.wait(10)
        return [self.reply(item) for item in items]


def blocked(made, gate):
    """A first item whose group is being served: what is submitted now must wait."""
    first = made.submit("first")
    assert gate.entered.wait(10)
    return first


@steady
@given(items=st.lists(st.integers(), max_size=40), limit=st.integers(1, 10))
def test_every_item_gets_its_own_reply(items, limit):
    """Each submitted item gets exactly the reply made for it, in the order of submission, in groups up to the limit."""
    sizes = []

    def work(group):
        sizes.append(len(group))
        return [(item, "reply") for item in group]

    with grouped(work, limit=limit) as decisions:
        futures = [decisions.submit(item) for item in items]
        assert [future.result(10) for future in futures] == [(item, "reply") for item in items]
    assert sum(sizes) == len(items)
    assert all(1 <= size <= limit for size in sizes)


def test_groups_form_under_load():
    """What comes in while the first call runs is served together: fewer calls than items."""
    gate = Gate(reply=lambda item: f"{item}!")
    with grouped(gate, limit=32) as made, ThreadPoolExecutor(16) as callers:
        blocked(made, gate)
        replies = [callers.submit(lambda i=i: made.submit(i).result(10)) for i in range(16)]
        deadline = time.monotonic() + 10
        while made.state().waiting < 16 and time.monotonic() < deadline:
            time.sleep(0.001)
        gate.opened.set()
        assert [reply.result(10) for reply in replies] == [f"{i}!" for i in range(16)]
    assert len(gate.groups) == 2
    assert sorted(gate.groups[1]) == list(range(16))


def test_callers_that_were_answered_join_the_next_batch(monkeypatch):
    """A caller that submits again after its reply shares a batch with the caller that waited meanwhile."""
    monkeypatch.setattr(batching, "GATHER_SHARE", 1e9)
    monkeypatch.setattr(batching, "MAX_GATHER_S", 20.0)
    gate = Gate()
    with grouped(gate) as made:
        first = blocked(made, gate)
        waiting = made.submit("waiting")
        gate.opened.set()
        assert first.result(10) == "first"
        again = made.submit("again")
        assert (waiting.result(10), again.result(10)) == ("waiting", "again")
    assert gate.groups == [["first"], ["waiting", "again"]]


@pytest.mark.parametrize("alone", [True, False])
def test_an_exception_reaches_its_callers(alone):
    """Where the work raises, each item of that group gets the exception; where it returns one, its item alone."""
    gate = Gate(reply=lambda item: InvalidInput("broke") if alone and item == "bad" else item)

    def work(items):
        replies = gate(items)
        if "bad" in items and not alone:
            raise InvalidInput("broke", field="question")
        return replies

    with grouped(work) as made:
        first = blocked(made, gate)
        futures = {item: made.submit(item) for item in ("a", "bad", "b")}
        gate.opened.set()
        assert first.result(10) == "first"
        for item, future in futures.items():
            if alone and item != "bad":
                assert future.result(10) == item
            else:
                with pytest.raises(InvalidInput, match="broke"):
                    future.result(10)
        assert made.submit("c").result(10) == "c"


def test_cancelled_items_are_left_out():
    """Items whose callers gave up before their group began are not worked on, and take no place in a group."""
    gate = Gate()
    with grouped(gate, limit=2) as made:
        blocked(made, gate)
        gone, stay = [made.submit(i) for i in range(5)], [made.submit(i) for i in "abc"]
        assert made.state().waiting == 8
        assert all(future.cancel() for future in gone)
        gate.opened.set()
        assert [future.result(10) for future in stay] == ["a", "b", "c"]
        assert made.state().dropped == {"gone": 5, "expired": 0}
    assert gate.groups == [["first"], ["a", "b"], ["c"]]


def test_an_item_that_waited_too_long_is_dropped():
    """An item whose time ran out in the queue is NotReady and never worked on."""
    gate, now = Gate(), [0.0]
    with grouped(gate, expire_s=0.01, clock=lambda: now[0]) as made:
        blocked(made, gate)
        late = made.submit("late")
        now[0] = 0.02
        gate.opened.set()
        with pytest.raises(NotReady, match=r"not served within 0\.01 s"):
            late.result(10)
        assert made.state().dropped == {"gone": 0, "expired": 1}
    assert gate.groups == [["first"]]


def test_a_full_queue_refuses_at_once():
    """What does not fit is Overloaded where it is submitted; what fits is served, and then there is room again."""
    gate = Gate()
    with grouped(gate, limits=WIDE.model_copy(update={"max_waiting": 2})) as made:
        blocked(made, gate)
        waiting = [made.submit(i) for i in range(2)]
        for refused in (lambda: made.submit("more"), lambda: made.submit_all(["more"]), made.check_admission):
            with pytest.raises(Overloaded, match="2 requests are waiting already"):
                refused()
        assert made.state().refused["count"] == 3
        gate.opened.set()
        assert [future.result(10) for future in waiting] == [0, 1]
        assert made.submit("more").result(10) == "more"
    assert gate.groups == [["first"], [0, 1], ["more"]]


def test_no_item_is_lost_while_closing():
    """Items submitted by several threads during close are either refused at once or served; none hangs."""
    for _ in range(20):
        made = MicroBatcher(list, name="test-group", limit=4, limits=WIDE)
        made.start()
        results: list[Future | NotReady] = []

        def hand_in(made=made, results=results):
            for i in range(50):
                try:
                    results.append(made.submit(i))
                except NotReady as error:
                    results.append(error)

        callers = [threading.Thread(target=hand_in) for _ in range(3)]
        for caller in callers:
            caller.start()
        made.close()
        for caller in callers:
            caller.join(10)
        assert len(results) == 150
        assert all(isinstance(r, NotReady) or r.result(10) in range(50) for r in results)
