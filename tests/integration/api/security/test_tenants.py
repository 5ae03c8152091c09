"""Tenants: a key sees, judges and cancels only the decisions of its tenant."""

import pytest

from tests.support.servers.http_service import QUESTION, Keyed, refused, routed

UNKNOWN = "never-made"


@pytest.fixture(scope="module")
def world(serve_module):
    """One service with keys for all tests that need no setting of their own."""
    return Keyed(serve_module())


@pytest.fixture
def acme(world):
    return world.client("app", tenant="acme")


@pytest.fixture
def globex(world):
    return world.client("app", tenant="globex")


@pytest.fixture
def decision(acme):
    """A decision of acme's."""
    return routed(acme)["decision_id"]


def same_as_unknown(found, unknown, key):
    """Another tenant's decision has the reply of one that was never made, to the byte."""
    assert (found.status_code, unknown.status_code) == (404, 404)
    assert found.content == unknown.content
    own = {"date": "", "x-request-id": ""}
    assert dict(found.headers) | own == dict(unknown.headers) | own
    assert key.encode() not in found.content


def test_the_tenant_of_the_key_is_that_of_the_question(world, acme):
    """A question with a tenant's key belongs to this tenant, whether the body names it or not."""
    for more in ({}, {"tenant": "acme"}):
        key = routed(acme, **more)["decision_id"]
        query = world.service.router.decision(key).decision.query
        assert (query.tenant, len(query.api_key)) == ("acme", 10)


@pytest.mark.parametrize("path", ["/v1/route", "/v1/answer?wait_s=0"])
def test_another_tenant_is_refused(world, acme, path):
    """A question for another tenant is 403 naming the field, and nothing is stored."""
    before = world.service.router.status().counters.decided
    error = refused(acme.post(path, json={"question": QUESTION, "tenant": "globex"}), 403, "FORBIDDEN", field="tenant")
    assert "acme" in error["message"]
    assert world.service.router.status().counters.decided == before


def test_every_item_of_a_batch_has_its_tenant(acme):
    """In a batch the items of another tenant are refused, and the others decided."""
    items = [{"question": QUESTION}, {"question": QUESTION, "tenant": "globex"}, {"question": QUESTION}]
    replies = acme.post("/v1/route/batch", json={"items": items}).json()["items"]
    assert ["error" in reply for reply in replies] == [False, True, False]
    assert replies[1]["error"]["field"] == "tenant"
    assert acme.get(f"/v1/decisions/{replies[0]['decision_id']}").json()["tenant"] == "acme"


def test_a_tenant_reads_its_own_decisions(acme, globex, decision):
    """The owner reads a decision; for another tenant the decision does not exist."""
    assert acme.get(f"/v1/decisions/{decision}").status_code == 200
    same_as_unknown(globex.get(f"/v1/decisions/{decision}"), globex.get(f"/v1/decisions/{UNKNOWN}"), decision)


@pytest.mark.parametrize("role", ["app", "rater"])
def test_a_tenant_judges_its_own_decisions(world, globex, decision, role):
    """Keys of the owner judge a decision, and the key is kept with it; keys of another tenant cannot."""
    new = world.key(role, tenant="acme")
    client = world.with_header(f"Bearer {new.text}")
    other = world.client(role, tenant="globex")

    def judged(who, key):
        return who.post("/v1/feedback", json={"decision_id": key, "rating": True})

    same_as_unknown(judged(other, decision), judged(other, UNKNOWN), decision)
    assert judged(client, decision).status_code == 202
    [kept] = world.service.router.decision(decision).feedback
    assert kept.api_key == new.key.public_id


@pytest.mark.parametrize("path", ["/v1/route", "/v1/answer?wait_s=0"])
def test_an_id_of_another_tenant_shows_nothing(acme, globex, path):
    """The same question under an id of another tenant is a conflict that reveals nothing about the decision."""
    made = routed(acme, decision_id="shared-id")
    reply = globex.post(path, json={"question": QUESTION, "decision_id": "shared-id"})
    refused(reply, 409, "CONFLICT", field="decision_id")
    own = routed(globex, decision_id="own-id")
    assert own["decision_id"] == "own-id"
    mine = globex.post(path, json={"question": "Another question?", "decision_id": "own-id"})
    assert mine.content == reply.content
    assert made["version"] not in reply.text
    assert not [name for name in reply.headers if name.startswith("x-ragbandit")]


def test_keys_without_a_tenant_serve_all(world, decision):
    """A key of every tenant reads and judges any decision, and names the tenant of its questions."""
    client = world.client("app")
    assert client.get(f"/v1/decisions/{decision}").json()["tenant"] == "acme"
    assert client.post("/v1/feedback", json={"decision_id": decision, "rating": True}).status_code == 202
    assert client.get(f"/v1/decisions/{routed(client, tenant='globex')['decision_id']}").json()["tenant"] == "globex"


def test_what_tells_of_all_tenants_is_for_keys_of_all(world):
    """Status and metrics are of the whole service: a tenant's reader may not read them."""
    for path in ("/v1/status", "/metrics"):
        refused(world.client("reader", tenant="acme").get(path), 403, "FORBIDDEN", field="tenant")
        assert world.client("reader").get(path).status_code == 200


def test_a_key_is_narrowed_to_arms(world):
    """A key with the scope `arms` gets only these arms: by default, among requested arms, and in a batch."""
    client = world.client("app", scopes={"arms": ["no_retrieval", "multi_step", "gone"]})
    assert set(routed(client)["pmf"]) == {"no_retrieval", "multi_step"}
    assert set(routed(client, arms=["multi_step"])["pmf"]) == {"multi_step"}
    body = {"question": QUESTION, "arms": ["multi_step", "single_step"]}
    error = refused(client.post("/v1/route", json=body), 403, "FORBIDDEN", field="arms")
    assert "single_step" in error["message"]
    first, second = client.post("/v1/route/batch", json={"items": [body, {"question": QUESTION}]}).json()["items"]
    assert (first["error"]["field"], set(second["pmf"])) == ("arms", {"no_retrieval", "multi_step"})
    chat = {"model": "arm/single_step", "messages": [{"role": "user", "content": QUESTION}]}
    assert client.post("/v1/chat/completions", json=chat).status_code == 403
    lost = world.client("app", scopes={"arms": ["gone"]})
    refused(lost.post("/v1/route", json={"question": QUESTION}), 403, "FORBIDDEN", field="arms")


def test_a_scope_of_a_newer_version_closes_the_key(world):
    """A key whose scopes this version does not know may do nothing: what it is narrowed to is not seen here."""
    from ragbandit.router.storage.sql.tables import api_keys

    new = world.key("reader")
    with world.service.router.database.write() as connection:
        changed = api_keys.update().where(api_keys.c.public_id == new.key.public_id)
        connection.execute(changed.values(scopes='{"hours":[9,17]}'))
    world.forget()
    refused(world.with_header(f"Bearer {new.text}").get("/v1/status"), 403, "FORBIDDEN")
