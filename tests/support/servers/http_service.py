"""A service over a real uvicorn in a thread, and short words for calls to it."""

import asyncio
import contextlib
import threading
import time
from dataclasses import replace

import httpx

from ragbandit.router.api.app import create_app
from ragbandit.router.api.server import make_server
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.serving.router import Router
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
        self.http = httpx.Client(base_url=self.url, timeout=30)

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

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self.http.close()
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


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
    outcome = made_outcome(decision_id=decision_id, now=time.time(), status="answered", answer=answer, steps=1.0)
    service.router.store.add_outcome(replace(outcome, run_by="worker", **fields))
    service.router.process.poll.wake()  # as a notification through Redis does
