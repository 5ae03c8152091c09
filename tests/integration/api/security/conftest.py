"""Fixtures of the tests of keys: a service with keys, and clients that send them."""

import time

import httpx
import pytest

from ragbandit.router.storage.access.api_keys import KeyStore, NewKey
from tests.support.servers.http_service import Service


class Keyed:
    """A service, the keys of its store, and clients that send one."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.keys = KeyStore(service.router.database)
        self._clients: list[httpx.Client] = []

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
        self._clients.append(httpx.Client(base_url=self.service.url, timeout=30, headers={"authorization": value}))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def keyed(serve):
    """A factory of services with an admin's key in their store, called with settings."""
    made: list[Keyed] = []

    def start(**given) -> Keyed:
        made.append(Keyed(serve(**given)))
        made[-1].key("admin")
        return made[-1]

    yield start
    for each in made:
        each.close()
