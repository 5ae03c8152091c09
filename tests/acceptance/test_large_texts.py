"""A service that gets the largest legal texts, and the worst ones, answers others meanwhile."""

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from benchmarks.service_process import served
from ragbandit.shared.reading.input_counts import BODY
from tests.support import dialects
from tests.support.additions import ANTHROPIC, needs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: bytes of a worst text, and of a large legal body
SIZE, LARGEST = 2_000_000, 4_000_000
#: longest wait for /health and for a small question meanwhile, seconds; largest growth of memory, MB
HEALTH_S, QUESTION_S, MEMORY = 0.3, 2.0, 400
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}]}


class Model(ThreadingHTTPServer):
    """Replies to every request with `body`, or with a short answer to a small question."""

    def __init__(self) -> None:
        self.body = b""
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"]))
        body = self.server.body if b"worst?" in asked else json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.startswith(b"data") else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given):
        pass


class Pulse(threading.Thread):
    """Asks /health and a small question all the time; notes the longest waits and the largest growth of memory."""

    def __init__(self, service) -> None:
        super().__init__(daemon=True)
        self.health_s = self.question_s = 0.0
        self.memory, self._service, self._ended = 0.0, service, threading.Event()
        self._before = self._resident()
        self.start()

    def _resident(self):
        status = Path(f"/proc/{self._service.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def run(self):
        question = {"model": "auto", "messages": [{"role": "user", "content": "small?"}]}
        with httpx.Client(base_url=f"http://127.0.0.1:{self._service.port}", timeout=60) as client:
            while not self._ended.wait(0.05):
                began = time.monotonic()
                client.get("/health").raise_for_status()
                self.health_s = max(self.health_s, time.monotonic() - began)
                began = time.monotonic()
                client.post("/v1/chat/completions", json=question).raise_for_status()
                self.question_s = max(self.question_s, time.monotonic() - began)
                self.memory = max(self.memory, self._resident() - self._before)

    def end(self):
        self._ended.set()
        self.join(60)
        return self


@pytest.fixture
def world():
    model = Model()
    generator = {"name": "openai", "model": "m", "openai": {"base_url": model.url, "api_key_env": "NO_KEY"}}
    other = {"name": "anthropic", "model": "c", "anthropic": {"base_url": model.url, "api_key_env": "NO_KEY"}}
    other = other if ANTHROPIC is not None else generator
    arms = {"openai": {"class": "model"}, "anthropic": {"class": "model", "generator": "other"}}
    settings = {"generator": generator, "generators": {"other": other}, "arms": arms, "health": {"failures": 0}}
    with served(settings) as service:
        yield service, model
    model.shutdown()
    model.server_close()


def posted(service, path, body):
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=120) as client:
        reply = client.post(path, content=body, headers={"content-type": "application/json"})
        return reply.status_code if reply.is_success else f"{reply.status_code}: {reply.text[:200]}"


def of_size(shape, size):
    """The text of a shape that has about this size."""
    each = (len(shape(200)) - len(shape(100))) / 100
    return shape(int(size / max(1.0, each)))


@needs("anthropic")
def test_nobody_waits_for_the_worst_replies(world):
    """While worst texts of every kind arrive from servers, others wait for .3 s at most."""
    service, model = world
    slow = {}
    wholes = [("openai", dialects.COMPLETION), ("anthropic", dialects.MESSAGE)]
    shapes = [(arm, name, shape, dialects.body_of) for arm, one in wholes for name, shape in dialects.documents(one)]
    shapes += [("openai", name, shape, dialects.stream_of) for name, shape in dialects.chunks()]
    if ANTHROPIC is None:
        wholes = wholes[:1]
    else:
        shapes += [("anthropic", name, shape, dialects.stream_of) for name, shape in dialects.events()]
    for arm, name, shape, to_bytes in itertools.islice(shapes, 0, None, 20):
        model.body = of_size(lambda n, shape=shape, to_bytes=to_bytes: to_bytes(shape(n)), SIZE)
        for stream, path in ((False, "/v1/messages"), (True, "/v1/chat/completions"), (True, "/v1/messages")):
            body = {"model": f"ragbandit/{arm}", "messages": [{"role": "user", "content": "worst?"}], "stream": stream}
            pulse = Pulse(service)
            posted(service, path, json.dumps(body | {"max_tokens": 1000}).encode())
            if pulse.end().health_s > HEALTH_S:
                slow[arm, name, path, stream] = pulse.health_s
    assert slow == {}


def padded(body):
    """The body with a text that makes it as large as the largest."""
    data = json.dumps(body, separators=(",", ":"))
    return data.replace('"large?"', f'"large?{"x" * max(0, LARGEST - len(data))}"').encode()


QUESTION = [{"role": "user", "content": "q?"}]
LEGAL = {
    "tools": {"tools": [{"name": "f", "input_schema": json.loads('{"a":' * 60 + "1" + "}" * 60)}] * 1500},
    "names": {f"x{number}": "x" * 6 for number in range(BODY["parameters"].most - 5)},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 15}] * 60_000}]},
    "turns": {"messages": [{"role": "user", "content": "x" * 60}] * 40_000},
    "text": {"messages": [{"role": "user", "content": "x" * 60_000}] * 60},
}


@needs("anthropic")
@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/messages"])
@pytest.mark.parametrize("name", LEGAL)
def test_ten_large_bodies_hold_nobody(world, name, path):
    """Ten legal bodies of 4 MB at once: others wait for .3 s at most for /health and 2 s for an answer."""
    service, _ = world
    body = {"model": "auto", "max_tokens": 9, "system": "large?", "messages": QUESTION, **LEGAL[name]}
    data = padded(body)
    pulse = Pulse(service)
    with ThreadPoolExecutor(10) as callers:
        statuses = list(callers.map(lambda _: posted(service, path, data), range(10)))
    pulse.end()
    measured = f"/health {pulse.health_s:.2f} s, a question {pulse.question_s:.2f} s, {pulse.memory:.0f} MB"
    assert set(statuses) == {200}, measured
    assert pulse.health_s < HEALTH_S, measured
    assert pulse.question_s < QUESTION_S, measured
    assert pulse.memory < MEMORY, measured
