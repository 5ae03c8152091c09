"""The log of an outage of Redis, and who waits because of it."""

import logging
import time

import pytest

from ragbandit.router.queue import outage
from ragbandit.router.queue.notifier import MemoryJobs, Notifier
from ragbandit.router.queue.outage import Outage


def lines(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("expected", [True, False])
def test_one_line_at_each_end(caplog, expected):
    """However many attempts fail there is one line, and one when Redis is back; DEBUG where nobody expects a Redis."""
    caplog.set_level(logging.DEBUG, logger="ragbandit")
    outage = Outage(expected=expected)
    for _ in range(3):
        outage.note_failure(OSError("no socket"))
    assert outage.lasts
    outage.note_reply(sent_at=time.monotonic())
    outage.note_reply(sent_at=time.monotonic())
    assert not outage.lasts
    outage.note_failure(OSError("gone"))
    levels = ("WARNING", "INFO") if expected else ("DEBUG", "DEBUG")
    assert lines(caplog) == [
        (levels[0], "cannot reach Redis; retrying (answers are delayed, nothing is lost)"),
        (levels[1], "Redis is reachable again"),
        ("WARNING", "lost connection to Redis; retrying (answers are delayed, nothing is lost)"),
    ]


def test_an_old_reply_ends_no_outage():
    """A reply to something that began before the failure says nothing about the time after it."""
    outage, began = Outage(), time.monotonic()
    outage.note_failure(OSError("gone"))
    outage.note_reply(sent_at=began)
    assert outage.lasts


def test_every_notification_leaves_redis_alone_for_a_while(monkeypatch):
    """After a failure no kind of notification tries again before the pause is over; each is counted."""
    jobs = MemoryJobs()
    notifier = Notifier(jobs)
    jobs.broken = True
    notifier.notify_learner()
    jobs.broken = False
    for notify in (notifier.notify_learner, lambda: notifier.request_answers(["d"]), lambda: notifier.cancel("d")):
        notify()
    assert (jobs.notified, jobs.enqueued, jobs.published, notifier.failed_notifications) == (0, [], [], 4)
    monkeypatch.setattr(outage, "PAUSE_S", 0.0)
    notifier.cancel("d")
    notifier.notify_learner()
    assert (jobs.notified, jobs.enqueued, jobs.published) == (1, ["d"], ["cancel:d"])
