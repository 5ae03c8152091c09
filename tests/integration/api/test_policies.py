"""/v1/policies: versions are listed, moved and stopped over HTTP; of two operators who race one wins."""

import pytest

from ragbandit.router.storage.access.audit_log import entries
from tests.support.rollouts import add
from tests.support.servers.http_service import refused

WHY = {"reason": "it looked well"}


@pytest.fixture
def world(serve):
    service = serve(policy={"name": "uniform"}, rollout={"time_limit_s": 5.0})
    add(service.router.database, policy={"name": "fixed", "params": {"arm": "multi_step"}})
    return service


def move(service, verb, *, name="v1", **more):
    return service.http.post(f"/v1/policies/{name}/{verb}", json={**WHY, **more})


def test_a_version_is_moved_and_shows_its_evidence(world):
    """The list has every version and the switch; a version in shadow has its evidence and what can be done to it."""
    listed = world.http.get("/v1/policies").json()
    assert [one["name"] for one in listed["policies"]] == ["main", "v1"]
    assert listed["control"]["killed"] is None
    assert world.http.get("/v1/policies/v1").json()["evidence"] is None
    assert move(world, "shadow").json()["state"] == "shadow"
    world.router.refresh()
    world.http.post("/v1/route", json={"question": "why?"})
    shown = world.http.get("/v1/policies/v1").json()
    assert (shown["state"], shown["reason"], shown["possible"]) == ("shadow", WHY["reason"], ["promote", "retire"])
    assert shown["evidence"]["comparison"]["verdict"] == "not known yet"
    refused(move(world, "promote"), 409, "CONFLICT", field="force")
    assert move(world, "promote", force=True).json()["state"] == "champion"


def test_what_cannot_be_done_is_a_conflict(world):
    """Another state than was seen is 409, which no client should try again; so is a verb that does not fit."""
    reply = move(world, "shadow", revision=999)
    refused(reply, 409, "CONFLICT", field="revision")
    assert reply.headers["x-should-retry"] == "false"
    refused(move(world, "promote"), 409, "CONFLICT", field="state")
    refused(move(world, "shadow", name="nobody"), 404, "NOT_FOUND", field="name")
    refused(world.http.post("/v1/policies/unkill", json=WHY), 409, "CONFLICT", field="killed")
    assert move(world, "nonsense").status_code == 422
    assert world.http.post("/v1/policies/v1/shadow", json={}).status_code == 422


def test_the_switch_is_thrown_and_taken_back(world):
    """From the next question on the pinned arm is played; then the policy decides again. Both are audited."""
    kill, ask = "/v1/policies/kill", {"question": "why?"}
    refused(world.http.post(kill, json=WHY | {"arm": "nonsense"}), 422, "INVALID_INPUT", field="arm")
    assert world.http.post(kill, json=WHY | {"arm": "no_retrieval"}).json()["killed"] == "arm"
    decision = world.http.post("/v1/route", json=ask).json()
    assert (decision["arm"], decision["propensity"]) == ("no_retrieval", 1.0)
    assert world.http.post("/v1/policies/unkill", json=WHY).json()["killed"] is None
    assert len(world.http.post("/v1/route", json=ask).json()["pmf"]) == 3
    assert [one.action for one in entries(world.router.database)][-2:] == ["policy.kill", "policy.unkill"]
