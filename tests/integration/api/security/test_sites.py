"""An open service and web sites: names that are not ours, and requests that a browser sends for another site."""

import pytest
from fastapi.responses import JSONResponse

from ragbandit.router.api import app
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.security.rules import APP
from tests.support.servers.http_service import QUESTION, refused


@pytest.fixture
def http(shared):
    """The client of a service that many tests share."""
    return shared.http


def ask(client, **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/v1/route", json={"question": QUESTION}, headers=given)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8100", "localhost.evil.example", "localhost.", "127.0.0.1.nip.io", "127.0.0.2"),
        *("[::1]x", "[::1", "localhost:80:80", "localhost:x", "", "0.0.0.0"),
    ],
)
def test_another_name_is_refused(http, host):
    """A name that a foreign site may point at this machine is refused, for reads too; probes answer all the same."""
    refused(ask(http, host=host), 403, "FORBIDDEN", field="Host")
    refused(http.get("/v1/status", headers={"host": host}), 403, "FORBIDDEN", field="Host")
    assert http.get("/health", headers={"host": host}).status_code == 200


def test_further_names_may_be_allowed(serve):
    """server.allowed_hosts adds names, in any case of letters."""
    http = serve(server={"allowed_hosts": ["RAG.example"]}).http
    assert ask(http, host="rag.EXAMPLE:443").status_code == 200
    refused(ask(http, host="other.example"), 403, "FORBIDDEN")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000", "host": "localhost:8100"},
        {"origin": "http://[broken", "host": "localhost:8100"},
        {"origin": "http://localhost:8100, http://evil.example", "host": "localhost:8100"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "null", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site", "origin": "http://localhost:8100", "host": "localhost:8100"},
    ],
    ids=str,
)
def test_writes_of_other_sites_are_refused(http, headers):
    """A page of another site, or of another port of this machine, cannot send a question."""
    refused(ask(http, **headers), 403, "FORBIDDEN")


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"host": host}
            for host in ("localhost", "LOCALHOST:8100", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8100")
        ),
        {"origin": "http://localhost:8100", "host": "localhost:8100"},
        {"origin": "http://localhost:8100", "host": "localhost:8100", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "null", "sec_fetch_site": "same-origin"},
        {"origin": "https://rag.example", "host": "127.0.0.1:8100", "sec_fetch_site": "same-origin"},
    ],
    ids=str,
)
def test_names_of_this_machine_and_our_own_page_are_taken(http, headers):
    """An open service answers to the names of this machine, with any port; its page at /docs may send requests to its
    own service, and so may programs.
    """
    assert ask(http, **headers).status_code == 200


def test_a_keyed_service_may_have_any_name(keyed):
    """With keys the name does not matter: no browser sends a key by itself."""
    client = keyed().client()
    assert ask(client, host="rag.example", origin="http://evil.example").status_code == 200


def test_endpoints_outside_v1(serve, monkeypatch):
    """Pages of listed origins may call an addition's endpoint for programs wherever its path is; pages for people,
    documents, probes and metrics stay closed, and a path that nothing has is refused in words that a page can read.
    """
    own = Endpoints()

    @own.post("/beta/models/{name}", rule=APP)
    async def generate(name: str) -> JSONResponse:
        return JSONResponse({"name": name})

    monkeypatch.setattr(app, "ENDPOINTS", [*app.ENDPOINTS, *own.routes])
    http = serve(server={"cors_origins": ["https://chat.example"]}).http

    def allowed(method, path):
        asks = {"origin": "https://chat.example", "access-control-request-method": method}
        return http.options(path, headers=asks).headers.get("access-control-allow-origin")

    assert allowed("POST", "/beta/models/m") == "https://chat.example"
    reply = http.post("/beta/models/m", headers={"origin": "https://chat.example"})
    assert (reply.json(), reply.headers["access-control-allow-origin"]) == ({"name": "m"}, "https://chat.example")
    lost = http.post("/beta/others", headers={"origin": "https://chat.example"})
    assert (lost.status_code, lost.headers["access-control-allow-origin"]) == (404, "https://chat.example")
    closed = ("/health", "/ready", "/metrics", "/docs", "/openapi.json", "/ui", "/ui/labels", "/ui/nothing")
    assert {path: allowed(method, path) for path in closed for method in ("GET", "POST")} == dict.fromkeys(closed)


def test_pages_of_other_origins(serve):
    """Only pages of listed origins may call endpoints, with a key or on an open service; by default none may."""
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    page = {"origin": "https://chat.example"}
    path, listed = "/v1/chat/completions", {"cors_origins": ["https://chat.example"]}

    def allowed(http, path=path, origin="https://chat.example"):
        reply = http.options(path, headers=asks | {"origin": origin})
        return reply.headers.get("access-control-allow-origin")

    assert allowed(serve().http) is None
    http = serve(server=listed).http
    assert allowed(http) == page["origin"]
    assert allowed(http, str(http.base_url.join("/")) + path) == page["origin"]
    assert (allowed(http, origin="https://evil.example"), allowed(http, "/ui")) == (None, None)
    reply = http.post("/v1/route", json={"question": "Who?"}, headers=page | {"sec-fetch-site": "cross-site"})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, page["origin"])
    other = http.post("/v1/route", json={"question": "Who?"}, headers={"origin": "https://evil.example"})
    assert other.status_code == 403
    refused = serve(server={"cors_origins": ["*"]}).http.post(path, json={}, headers=page)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, "*")
