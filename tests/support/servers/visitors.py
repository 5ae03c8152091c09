"""A browser without scripts that visits a service, keys of its store, and decisions with an outcome."""

import time

import httpx
import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from tests.support.servers.http_service import Service, routed


class Visitor:
    """What a browser does with pages: it sends forms, and the key that the user has entered."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30)

    def page(self, path: str, *, status: int = 200) -> str:
        reply = self.http.get(path)
        assert reply.status_code == status, reply.text
        return reply.text

    def send(self, path: str, *, on: str, **fields: str) -> httpx.Response:
        """Send a form of the page `on`."""
        assert "<form" in self.page(on), "the page has no form"
        told = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin", "origin": "null"}
        return self.http.post(path, data=fields, headers=told)

    def log_in(self, key: str) -> None:
        """Send the key with every request, as a browser does after the user has entered it."""
        self.http.auth = ("any name", key)


@pytest.fixture
def visit():
    """A factory of visitors of a service."""
    made: list[Visitor] = []

    def start(service: Service) -> Visitor:
        made.append(Visitor(service.url))
        return made[-1]

    yield start
    for visitor in made:
        visitor.http.close()


@pytest.fixture
def with_keys():
    """A function that makes a key in a service's store, which it knows at once."""

    def made(service: Service, role: str, **more) -> str:
        key = KeyStore(service.router.database).create(name="t", role=role, now=time.time(), actor="cli:test", **more)
        service.app.state.gate.ring.known = None
        return key.text

    return made


def answered(service, question="Who wrote Dracula?", *, answer="Bram Stoker", rating=None, rater=None, **more) -> str:
    """A decision with an outcome, judged where there is a rating; its id."""
    named = routed(service.http, question=question, **more)["decision_id"]
    service.http.post(
        "/v1/outcomes", json={"decision_id": named, "answer": answer, "steps": 1, "status": "answered"}
    ).raise_for_status()
    if rating is not None:
        body = {"decision_id": named, "rating": rating} | ({} if rater is None else {"rater": rater})
        service.http.post("/v1/feedback", json=body).raise_for_status()
    return named
