"""Fixtures of the client's tests: services over a real uvicorn, and both clients under one set of words."""

import asyncio
import inspect

import pytest

from ragbandit import AsyncClient, Client


class Blocking:
    """An AsyncClient whose calls are awaited in an event loop of its own, so that one test serves both clients."""

    def __init__(self, *given, **more) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(*given, **more)

    def __getattr__(self, name):
        found = getattr(self.client, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*given, **more):
            return await found(*given, **more)

        return lambda *given, **more: self._runner.run(call(*given, **more))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._runner.run(self.client.aclose())
        self._runner.close()

    def __repr__(self) -> str:
        return repr(self.client)

    def close(self) -> None:
        self._runner.run(self.client.aclose())


@pytest.fixture(params=["Client", "AsyncClient"])
def make_client(request):
    """Client, and AsyncClient seen as if it waited."""
    return Client if request.param == "Client" else Blocking
