"""Roles: a key may call the endpoints whose rule has its role, and no other."""

import re

from ragbandit.router.api.app import ENDPOINTS
from ragbandit.router.storage.access.api_keys import ROLES
from tests.support.servers.http_service import QUESTION, refused

#: parameter in a path -> a value of it; "d1" for all others
VALUES = {"path:path": "swagger-ui.css", "model:path": "arm/single_step", "verb": "shadow", "arm": "single_step"}


def test_a_role_may_call_its_own_endpoints_only(keyed):
    """Every endpoint replies 401 without a key, 403 to roles that its rule does not have, and else neither."""
    world = keyed()
    clients = {role: world.client(role) for role in ROLES}
    for endpoint in ENDPOINTS:
        method, path = endpoint.method, re.sub(r"{([^}]*)}", lambda name: VALUES.get(name[1], "d1"), endpoint.path)
        without_key = world.service.http.request(method, path, json={} if method == "POST" else None).status_code
        assert (without_key == 401) == (endpoint.rule.roles is not None), (path, without_key)
        for role, client in clients.items():
            status = client.request(method, path, json={} if method == "POST" else None).status_code
            allowed = endpoint.rule.roles
            if allowed is None or role in allowed:
                assert status not in (401, 403), (role, path, status)
            else:
                assert status == 403, (role, path, status)


def test_a_refusal_says_which_role_is_needed(keyed):
    """403 names the role of the key and those that may call the endpoint."""
    error = refused(keyed().client("reader").post("/v1/route", json={"question": QUESTION}), 403, "FORBIDDEN")
    assert "reader" in error["message"]
    assert error["remedy"] == "use a key of the role admin or app"


def test_only_callers_with_a_key_learn_which_paths_exist(keyed):
    """With a key, an unknown path is 404 and a wrong method 405; without one, both are 401."""
    world = keyed()
    client = world.client("reader")
    refused(client.get("/v1/nothing"), 404, "NOT_FOUND")
    refused(client.get("/v1/route"), 405, "METHOD_NOT_ALLOWED")
    refused(world.service.http.get("/v1/nothing"), 401, "UNAUTHORIZED")
    refused(world.service.http.get("/v1/route"), 401, "UNAUTHORIZED")
