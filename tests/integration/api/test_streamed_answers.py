"""/v1/answer?stream=true over a real socket, a real worker and a real Redis."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ragbandit.router.api.endpoints import streaming
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.queue.refusals import CHANNEL
from ragbandit.router.queue.streams import TEXT, stream_key
from ragbandit.shared.types import DecisionId
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.servers.http_service import Service, worker_answers
from tests.support.servers.stream_worker import StreamWorker, sse
from tests.support.waiting import until

WORDS = "Spielberg made Jaws.\n\nHe was born in Cincinnati, in Ohio, where the river is wide and slow. 👍"
LONG = {"single_step": {"preset": "chat"}}

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def place(settings, redis_client, redis_server):
    """A factory of (service, worker) over one Redis; word_seconds: the model's pause between two words."""
    running = []

    def start(*, text=WORDS, word_seconds=0.02, arms=LONG, generator=None, worker=True, **given):
        configuration = settings(redis_url=redis_server, arms=arms, **given)
        service = Service(configuration, jobs=RedisJobs(connect_redis(redis_server, timeout_s=5.0)))
        running.append(service)
        model = generator or ScriptedGenerator(lambda _: text, word_seconds=word_seconds)
        if worker:
            running.append(StreamWorker(configuration, generator=model))
        return service, (running[-1] if worker else None)

    yield start
    close_all(running, wake=redis_client)


def close_all(running, *, wake):
    """Close them at the same time, as each waits for threads of its own; a notification wakes those that listen."""
    with ThreadPoolExecutor() as closing:
        closed = [closing.submit(each.close) for each in reversed(running)]
        while wait(closed, timeout=0.05).not_done:
            wake.publish(CHANNEL, b"outcome:nobody")
    for each in closed:
        each.result()


def ask(service, *, question="Where was he born?", **more):
    return service.http.stream("POST", "/v1/answer", params={"stream": "true"}, json={"question": question} | more)


def text_of(events):
    return "".join(data["text"] for name, data, _ in events if name == "text")


def write(service, redis_client, decision_id, text, *, at):
    """An entry of a stream, as a worker of this store writes it."""
    redis_client.xadd(stream_key(decision_id), {TEXT: text}, id=at)


def read_along(service, redis_client, decision_id):
    """The events of a question's stream as they come, and the thread that reads them; a worker may write now."""
    events = []

    def read():
        with ask(service, decision_id=decision_id) as response:
            events.extend(sse(response))

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: redis_client.exists(f"ragbandit:stream-wanted:{decision_id}"))
    return events, reading


def test_an_answer_comes_word_by_word(place):
    """The decision, what the arm does, the text in pieces as they are written, then the reply of without `stream`."""
    service, _ = place(word_seconds=0.05)
    for _ in range(3):  # the worker writes notes from when it knows of the reader, which may be late on a busy machine
        with ask(service) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-accel-buffering"] == "no"
            events = list(sse(response))
        names = [name for name, _, _ in events if name]
        if "searching: was he born?" in [data.get("text") for name, data, _ in events if name == "status"]:
            break
    assert names[0] == "decision"
    assert names[-1] == "outcome"
    assert set(names[1:-1]) == {"status", "text"}
    notes = [data["text"] for name, data, _ in events if name == "status"]
    assert "searching: was he born?" in notes
    assert notes[-1] == "writing the answer"
    pieces = [at for name, _, at in events if name == "text"]
    assert len(pieces) > 8
    assert pieces[-1] - pieces[0] > 0.3, "the pieces came together at the end"
    outcome = events[-1][1]
    assert text_of(events) == outcome["answer"] == WORDS
    assert outcome["status"] == "answered"
    assert events[0][1]["decision_id"] == outcome["decision_id"] == response.headers["x-ragbandit-decision-id"]


def test_a_caller_that_goes_away_cancels_its_answer(place):
    """The run of an answer that nobody else can ask for is stopped, and its outcome is "cancelled"."""
    service, worker = place(text="word " * 400, word_seconds=0.05)
    with ask(service) as response:
        key = response.headers["x-ragbandit-decision-id"]
        for name, _, _ in sse(response):
            if name == "text":
                break
    until(lambda: worker.context.store.outcomes_by_id([key]))
    outcome = worker.context.store.outcomes_by_id([DecisionId(key)])[DecisionId(key)]
    assert (outcome.status, outcome.stop_reason) == ("failed", "cancelled")


def test_a_caller_with_an_id_of_its_own_may_come_back(place):
    """It goes away and asks again with the same id: the run went on, and the answer is whole."""
    service, worker = place(word_seconds=0.05)
    with ask(service, decision_id="d-again") as response:
        for name, _, _ in sse(response):
            if name == "text":
                break
    with ask(service, decision_id="d-again") as response:
        events = list(sse(response))
    assert text_of(events) == WORDS == events[-1][1]["answer"]
    assert len(worker.generator.requests) == 1


def test_who_repeats_an_id_and_leaves_cancels_nothing(place):
    """A stream that was asked for under the id of an earlier request ends alone: the first request's answer comes."""
    service, worker = place(text="word " * 40, word_seconds=0.05)
    asked = {"question": "Where was he born?"}
    key = service.http.post("/v1/answer", params={"wait_s": 0}, json=asked).json()["decision_id"]
    with ask(service, decision_id=key) as response:
        for name, _, _ in sse(response):
            if name == "text":
                break
    until(lambda: worker.context.store.outcomes_by_id([key]))
    outcome = worker.context.store.outcomes_by_id([DecisionId(key)])[DecisionId(key)]
    assert (outcome.status, outcome.answer) == ("answered", ("word " * 40).strip())
    assert len(worker.generator.requests) == 1


def test_a_silent_stream_has_comments(place, monkeypatch):
    """While there is nothing to say, comments keep proxies from closing the connection."""
    monkeypatch.setattr(streaming, "PING_S", 0.05)
    service, _ = place(worker=False)
    with service.http.stream(
        "POST", "/v1/answer", params={"stream": "true", "wait_s": 0.5}, json={"question": "Where?"}
    ) as response:
        names = [name for name, _, _ in sse(response)]
    assert names.count("") >= 3
    assert names[-1] == "outcome"


def test_a_second_run_that_says_something_else_ends_the_stream_with_an_error(place, redis_client):
    """The worker of the first run has died: what it gave out is not joined with the words of another run."""
    service, _ = place(worker=False)
    events, reading = read_along(service, redis_client, "d-dead")
    write(service, redis_client, "d-dead", "He was ", at="1-1")
    until(lambda: any(name == "text" for name, _, _ in events))
    write(service, redis_client, "d-dead", "He", at="2-1")
    write(service, redis_client, "d-dead", " was born", at="2-2")  # it goes on where the first one was
    until(lambda: text_of(events) == "He was born")
    write(service, redis_client, "d-dead", "Spielberg", at="3-1")
    reading.join(20)
    name, data, _ = events[-1]
    assert name == "error"
    assert data["decision_id"] == "d-dead"
    assert data["error"]["code"] == "ANSWER_CHANGED"
    assert "same id" in data["error"]["remedy"]
    assert text_of(events) == "He was born"


def test_an_outcome_that_does_not_continue_the_text_ends_the_stream_with_an_error(place, redis_client):
    """The stored outcome stays whole, and is what the same id gives when it is asked again."""
    service, _ = place(worker=False)
    events, reading = read_along(service, redis_client, "d-other")
    write(service, redis_client, "d-other", "He was ", at="1-1")
    until(lambda: any(name == "text" for name, _, _ in events))
    worker_answers(service, "d-other", "Spielberg was born in Ohio.")
    reading.join(20)
    assert events[-1][1]["error"]["code"] == "ANSWER_CHANGED"
    with ask(service, decision_id="d-other") as response:
        again = list(sse(response))
    assert text_of(again) == again[-1][1]["answer"] == "Spielberg was born in Ohio."


def test_redis_stopped_in_mid_stream_gives_the_rest_once(settings, tmp_path):
    """What was sent is completed by the rest of the stored answer; nothing comes twice, and the run goes on."""
    configuration = settings(arms=LONG)
    server = RedisServer(configuration.data_dir)
    server.start()
    configuration = settings(arms=LONG, redis_url=configuration.redis)
    service = Service(configuration, jobs=RedisJobs(connect_redis(configuration.redis_url, timeout_s=1.0)))
    worker = StreamWorker(configuration, generator=ScriptedGenerator(lambda _: WORDS, word_seconds=0.15))
    try:
        events = []
        with ask(service) as response:
            for event in sse(response):
                events.append(event)
                if len(text_of(events)) > 20 and server is not None:
                    server.stop()
                    server = None
        assert server is None
        assert text_of(events) == WORDS == events[-1][1]["answer"]
    finally:
        if server is not None:
            server.stop()
        with ThreadPoolExecutor() as closing:
            list(closing.map(lambda each: each.close(), [service, worker]))
