"""What is queued in Redis is read without trusting it: our own jobs, or a refusal; nothing is imported or unpickled."""

import json
import os
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.jobs.records import (
    ANSWER_QUEUE,
    LEARN_QUEUE,
    MAX_BYTES,
    SHOWN,
    RefusedJob,
    TakenJob,
    read_job,
)
from tests.support.examples import steady


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def data_of(name, *args, instance=None, **kwargs):
    return zlib.compress(json.dumps([name, instance, list(args), kwargs]).encode())


def test_own_jobs():
    """The job of a queue with one string, compressed or not, is taken."""
    made = data_of("workers.tasks.answer", "d1")
    wanted = TakenJob(queue=ANSWER_QUEUE, id="d1", name="workers.tasks.answer", argument="d1")
    assert read_job(made, queue=ANSWER_QUEUE, job_id="d1") == wanted
    assert read_job(zlib.decompress(made), queue=ANSWER_QUEUE, job_id="d1") == wanted
    learn = read_job(data_of("workers.tasks.learn", "main"), queue=LEARN_QUEUE, job_id="learn-main-1")
    assert learn == TakenJob(queue=LEARN_QUEUE, id="learn-main-1", name="workers.tasks.learn", argument="main")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (data_of("os.system", "touch /tmp/x"), "'os.system' is no job of this queue"),
        (data_of("workers.tasks.learn", "main"), "'workers.tasks.learn' is no job of this queue"),
        (data_of(["workers.tasks.answer"], "d1"), "is no job of this queue"),
        (data_of("x" * 1000, "d1"), "is no job of this queue"),
        (data_of("workers.tasks.answer", "d2"), "its argument is another id than its own"),
        (data_of("workers.tasks.answer"), "its argument is not one string"),
        (data_of("workers.tasks.answer", "d1", "d1"), "its argument is not one string"),
        (data_of("workers.tasks.answer", 1), "its argument is not one string"),
        (data_of("workers.tasks.answer", "d1", more=1), "its argument is not one string"),
        (data_of("workers.tasks.answer", "d1", instance="x"), "its argument is not one string"),
        (b"", "no JSON"),
        (b"[1, 2, 3]", "no JSON"),
        (b"null", "no JSON"),
        (zlib.compress(b"[" * 4000), "no JSON"),
        (zlib.compress(b"[" + b" " * 10_000_000 + b"]"), "no JSON"),
        (zlib.compress(pickle.dumps(("workers.tasks.answer", None, ("d1",), {}))), "no JSON"),
    ],
    ids=range(16),
)
def test_refused(data, reason):
    """Any other name, argument or form is refused with a reason that can be printed."""
    found = read_job(data, queue=ANSWER_QUEUE, job_id="d1")
    assert isinstance(found, RefusedJob)
    assert reason in found.reason
    assert len(found.reason) < MAX_BYTES / 10
    assert len(found.reason) < SHOWN + 100


def test_a_pickle_is_not_opened(tmp_path):
    """A pickle that would run a command when it is opened runs nothing, in the data as in an argument."""
    file = tmp_path / "file"
    for made in (Bomb(file), ("workers.tasks.answer", None, (Bomb(file),), {})):
        for data in (pickle.dumps(made), zlib.compress(pickle.dumps(made))):
            assert isinstance(read_job(data, queue=ANSWER_QUEUE, job_id="d1"), RefusedJob)
    assert not file.exists()
    pickle.loads(pickle.dumps(Bomb(file)))
    assert file.exists(), "the bomb is none"


@steady
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.text() | st.sampled_from(["workers.tasks.answer", "d1"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_data(data):
    """Whatever stands in a record is our job or is refused; it never raises."""
    found = read_job(data, queue=ANSWER_QUEUE, job_id="d1")
    if isinstance(found, TakenJob):
        assert json.loads(data) == ["workers.tasks.answer", None, ["d1"], json.loads(data)[3]]
