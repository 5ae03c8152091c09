"""Where the live service is, for the tests of all environments: only pytest and the standard library are there."""

import json
import os
import urllib.request

import pytest

URL, KEY = os.environ.get("RAGBANDIT_CLIENTS_URL", ""), os.environ.get("RAGBANDIT_CLIENTS_KEY", "")
#: in the service's own environment there are no clients
collect_ignore_glob = [] if URL else ["*"]
#: what the service answers, and the address of the passage that it saw
ANSWER, PASSAGE = "Paris 🗼 (sur Seine, là)", "https://geography.example/france"


class Service:
    """The live service: its address, a key that may ask and judge, and calls to our own endpoints."""

    url, base_url, key = URL, f"{URL}/v1", KEY
    answer, passage = ANSWER, PASSAGE
    messages = ({"role": "user", "content": "What is the capital of France?"},)

    def call(self, path, body=None):
        """The JSON of one of our own endpoints; a body makes it a POST."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", data, headers), timeout=30) as reply:
            return json.load(reply)

    def decision(self, key):
        """What is stored about a decision; also by the id of its completion."""
        return self.call(f"/v1/decisions/{key}")


class Gateway(Service):
    """The live service in front of models."""

    url = os.environ.get("RAGBANDIT_CLIENTS_GATEWAY_URL", "")
    base_url, key = f"{url}/v1", os.environ.get("RAGBANDIT_CLIENTS_GATEWAY_KEY", "")
    messages = ({"role": "user", "content": "What is the weather?"},)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Where `ragbandit.Client()` looks for the service."""
    monkeypatch.setenv("RAGBANDIT_URL", URL)
    monkeypatch.setenv("RAGBANDIT_API_KEY", KEY)


@pytest.fixture(scope="session")
def service():
    return Service()


@pytest.fixture(scope="session")
def gateway():
    return Gateway()


@pytest.fixture
def judged(monkeypatch):
    """The receipts of the judgements that the code sends."""
    from ragbandit import Client

    receipts, send = [], Client.feedback

    def feedback(client, decision_id, **body):
        receipts.append(send(client, decision_id, **body))
        return receipts[-1]

    monkeypatch.setattr(Client, "feedback", feedback)
    return receipts
