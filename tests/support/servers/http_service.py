"""A service over a real uvicorn in a thread, and short words for calls to it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx

from ragbandit.router.api.app import create_app
from ragbandit.router.api.server import make_server
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.api_keys import KeyStore, NewKey
from ragbandit.workers.processes.inline import InlineAnswers
from ragbandit.workers.setup.generators import inline_arms

QUESTION = "Who wrote Dracula?"


class Service:
    """A uvicorn in a thread; `router` is the Router that it serves. inline: it answers by itself, as `serve` does."""

    def __init__(self, settings, *, loop: str = "asyncio", jobs=None, inline: bool = False) -> None:
        self.jobs = jobs or MemoryJobs()

        def begin(tracing) -> None:
            if inline:
                InlineAnswers(self.router, arms=inline_arms(settings)).start(tracing)

        self._clients: list[httpx.Client] = []
        self.app = create_app(lambda: Router.open(settings, jobs=self.jobs), begin=begin)
        served = settings.server.model_copy(update={"host": "127.0.0.1", "port": 0})
        self._server = make_server(self.app, settings=served, loop=loop)
        self._server.main_loop = self._main_loop
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="uvicorn")
        self._thread.start()
        give_up = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive(), "uvicorn did not start"
            assert time.monotonic() < give_up, "uvicorn did not start in time"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.http = self.client()

    def _run(self) -> None:
        # Signals belong to pytest: the server is run without its handlers.
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            self._loop = runner.get_loop()
            runner.run(self._server._serve())

    async def _main_loop(self) -> None:
        """uvicorn's, which does not sleep to the end of a tick when the service is closed."""
        ticks = 0
        while not await self._server.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), 0.1)

    @property
    def router(self) -> Router:
        return self.app.state.router

    def client(self, **headers: str | bytes) -> httpx.Client:
        """A client that sends these headers; it is closed with the service."""
        self._clients.append(httpx.Client(base_url=self.url, timeout=30, headers=headers))
        return self._clients[-1]

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def services(settings) -> Iterator[Callable[..., Service]]:
    """A function that starts a service with these sections of settings; all are stopped at the end of the block."""
    with contextlib.ExitStack() as running:

        def start(*, loop="asyncio", jobs=None, inline=False, **given) -> Service:
            service = Service(settings(**given), loop=loop, jobs=jobs, inline=inline)
            running.callback(service.close)
            return service

        yield start


class Keyed:
    """A service with an admin's key, the keys of its store, and clients that send one."""

    def __init__(self, service: Service, *, admin: bool = True) -> None:
        self.service = service
        self.keys = KeyStore(service.router.database)
        if admin:
            self.key("admin")

    def key(self, role: str = "app", **more) -> NewKey:
        """A new key, which the service knows at once."""
        new = self.keys.create(name="test", role=role, now=time.time(), actor="cli:test", **more)
        self.forget()
        return new

    def forget(self) -> None:
        """Let the service look at its keys again, as it does after a second."""
        self.service.app.state.gate.ring.known = None

    def client(self, role: str = "app", **more) -> httpx.Client:
        """A client with a new key."""
        return self.with_header(f"Bearer {self.key(role, **more).text}")

    def with_header(self, value: str | bytes) -> httpx.Client:
        return self.service.client(authorization=value)


def routed(http, **more) -> dict:
    response = http.post("/v1/route", json={"question": QUESTION} | more)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status: int, code: str, *, field: str | None = None) -> dict:
    """Every error has one shape: stable code, message, field, remedy."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) - ({"limits"} if code == "LIMIT_REACHED" else set()) == {"error"}
    error = body["error"]
    assert set(error) == {"code", "message", "field", "remedy"}
    assert error["code"] == code
    assert error["message"]
    if field is not None:
        assert error["field"] == field
    return error


def worker_answers(service, decision_id: str, answer: str, **fields: object) -> None:
    outcome = make_outcome(decision_id=decision_id, now=time.time(), status="answered", answer=answer, steps=1.0)
    service.router.store.add_outcome(replace(outcome, run_by="worker", **fields))
    service.router.process.poll.wake()  # as a notification through Redis does
