"""The table of roles: it has every endpoint of the app, and what it does not allow is refused."""

from starlette.routing import Mount, Route

from ragbandit.router.api.app import create_app
from ragbandit.router.api.security.rules import RULES, rule_of
from ragbandit.router.storage.access.api_keys import ROLES
from tests.support.servers.http_service import QUESTION, refused, routed


def endpoints() -> set[str]:
    """Method and path of every route of the app, as the table writes them."""
    found = set()
    for route in create_app(lambda: None).routes:
        if isinstance(route, Mount):
            assert not route.routes, "an app of its own has routes that nobody looks at here"
            found |= {f"{method} {route.path}/{{path:path}}" for method in ("GET", "HEAD")}
        else:
            assert isinstance(route, Route) or hasattr(route, "methods"), f"{route} is of a kind that has no rule"
            found |= {f"{method} {route.path}" for method in route.methods}
    return found


def concrete(endpoint: str) -> tuple[str, str]:
    """Method and a path that the pattern of an endpoint takes."""
    examples = {
        "{decision_id}": "d1",
        "{response_id}": "d1",
        "{path:path}": "swagger-ui.css",
        "{model:path}": "arm/single_step",
    }
    examples |= {"{session_id:path}": "chat/17", "{name}": "v1", "{verb}": "shadow", "{arm}": "single_step"}
    for pattern, example in examples.items():
        endpoint = endpoint.replace(pattern, example)
    method, path = endpoint.split(" ", 1)
    assert "{" not in path, "give an example for this pattern"
    return method, path


def test_every_route_is_in_the_table():
    """The table has exactly one rule for every route of the app."""
    assert endpoints() == set(RULES)


def test_only_probes_need_no_key():
    """Open to all are the probes, the way to the pages, and the login with its files."""
    free = {endpoint for endpoint, rule in RULES.items() if rule.roles is None}
    pages = {f"{way} /ui/login" for way in ("GET", "POST")}
    pages |= {"GET /ui/static/{path:path}", "HEAD /ui/static/{path:path}"}
    assert free == {"GET /", "GET /health", "GET /ready"} | pages


def test_a_role_may_call_its_own_endpoints_only(keyed):
    """Every endpoint replies 403 to roles that the table does not list, and something else to the others."""
    world = keyed()
    clients = {role: world.client(role) for role in ROLES}
    for endpoint in sorted(endpoints()):
        method, path = concrete(endpoint)
        for role, client in clients.items():
            status = client.request(method, path, json={} if method == "POST" else None).status_code
            allowed = rule_of(method, path).roles
            if allowed is None or role in allowed:
                assert status not in (401, 403), (role, endpoint, status)
            else:
                assert status == 403, (role, endpoint, status)


def test_a_refusal_says_which_role_is_needed(keyed):
    """403 names the role of the key and those that may call the endpoint."""
    error = refused(keyed().client("reader").post("/v1/route", json={"question": QUESTION}), 403, "FORBIDDEN")
    assert "reader" in error["message"]
    assert error["remedy"] == "use a key of the role admin or app"


def test_a_route_without_a_line_is_refused(keyed):
    """A route without a rule is closed to every role, admin included."""
    world = keyed()

    @world.service.app.get("/v1/forgotten")
    async def forgotten() -> dict[str, str]:
        return {"secret": "told"}

    refused(world.client("admin").get("/v1/forgotten"), 403, "FORBIDDEN")


def test_what_is_no_endpoint_is_told_as_ever(keyed):
    """With a key, an unknown path is 404 and a wrong method 405; without one, both are 401."""
    world = keyed()
    client = world.client("reader")
    refused(client.get("/v1/nothing"), 404, "NOT_FOUND")
    refused(client.get("/v1/route"), 405, "METHOD_NOT_ALLOWED")
    refused(world.service.http.get("/v1/nothing"), 401, "UNAUTHORIZED")
    refused(world.service.http.get("/v1/route"), 401, "UNAUTHORIZED")


def test_the_short_way_is_behind_the_gate(keyed):
    """A plain POST /v1/route, which goes around FastAPI, needs a key as all others do."""
    world = keyed()
    refused(world.service.http.post("/v1/route", json={"question": QUESTION}), 401, "UNAUTHORIZED")
    routed(world.client())
