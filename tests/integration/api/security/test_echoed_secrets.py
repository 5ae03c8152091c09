"""A model's server repeats what it was sent, keys and all: no reply, no row and no line of the log has a secret."""

import itertools
import json
import logging
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.additions import ANTHROPIC, is_served
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

KEY, TOKEN = "company/key+0123456789=", "Zq81-internal-gateway-token"
QUESTION = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 50}
#: door -> body
DOORS = {
    "/v1/chat/completions": QUESTION,
    "/v1/responses": {"input": "Who?"},
    "/v1/messages": QUESTION,
    "/v1/answer?wait_s=20": {"question": "Who?"},
    "/v1/embeddings": {"input": "Who?"},
}
DOORS = {path: body for path, body in DOORS.items() if is_served(path)}
STATUSES = (200, 400, 401, 404, 413, 429, 503)


def forms_of(headers):
    """What servers write about a request: its key, and its headers in some notation."""
    key, token = headers.get("authorization", headers.get("x-api-key", "")), headers["x-gateway"]
    yield from (f"Incorrect API key provided: {key}.", f"x-gateway: {token}", repr(headers)[-150:], quote(token))
    yield from (quote(key), quote(key.removeprefix("Bearer "), safe=""), json.dumps({"authorization": key}))
    yield from (
        json.dumps(json.dumps({"x-api-key": key, "x": token})),
        f"curl -H 'Authorization: {key}'",
        key.split()[-1],
    )
    yield f"http://gateway/?key={quote(key.split()[-1], safe='')}&token={token}"


def echo(seen, *, status, number):
    """An error that repeats secrets of the request in its message, its code, its type and further fields."""
    headers = {name.lower(): value for name, value in seen[1].items()}
    message = [*forms_of(headers)][number % 11]
    error = {"message": message, "type": message, "code": message, "param": message, "headers": headers}
    body = json.dumps({"type": "error", "error": error}) if number % 3 else f"<html><h1>{message}</h1></html>"
    return Scripted(status=status, body=body.encode())


@pytest.fixture
def secrets(monkeypatch):
    monkeypatch.setenv("COMPANY_KEY", KEY)
    return [KEY, TOKEN, quote(KEY, safe="")]


def test_no_secret_comes_back(serve, tmp_path, caplog, secrets):
    """Whatever status an error has, at every door and for every kind of server, its secrets are kept nowhere."""
    caplog.set_level(logging.DEBUG, logger="ragbandit")
    status = [0]
    with ScriptedHttp(answer=lambda _body: echo(server.seen[-1], status=status[0], number=len(server.seen))) as server:
        options = {"api_key_env": "COMPANY_KEY", "headers": {"x-gateway": TOKEN}, "retries": 0}
        options["base_url"] = f"{server.url}/v1"
        generators = {
            "gpt": {"name": "openai", "model": "gpt", "openai": options},
        }
        other = "anthropic" if ANTHROPIC is not None else "openai"
        generators["claude"] = {"name": other, "model": "claude", other: options}
        service = serve(
            inline=True,
            generators=generators,
            generator=generators["gpt"],
            arms={name: {"class": "model", "generator": name} for name in generators},
            health={"failures": 0},
            log={"format": "json"},
        )
        shown = []
        for number, (door, body) in itertools.product(range(11), DOORS.items()):
            status[0] = STATUSES[number % len(STATUSES)]
            is_chat = "answer" not in door and "embeddings" not in door
            more = {"model": "auto", "stream": number % 2 == 0} if is_chat else {}
            more |= {"model": "gpt"} if "embeddings" in door else {}
            reply = service.http.post(door, json=body | more)
            shown.append(reply.text)
            if key := reply.headers.get("x-ragbandit-decision-id"):
                shown.append(service.http.get(f"/v1/decisions/{key}").text)
        shown += [service.http.get(path).text for path in ("/v1/status", "/v1/health", "/metrics", "/health")]
        assert len(server.seen) > 11 * len(DOORS) - 11
        service.close()
    shown += [str(record.__dict__) for record in caplog.records]
    shown += [file.read_bytes().decode("latin-1") for file in Path(tmp_path).rglob("*") if file.is_file()]
    for secret in secrets:
        leaks = [text for text in shown if secret in text]
        assert not leaks, (secret, leaks[0][max(0, leaks[0].index(secret) - 200) :][:400])
