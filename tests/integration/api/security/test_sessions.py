"""Conversations of tenants: a key of one tenant sees its own alone."""

from tests.support.servers.http_service import refused


def test_a_conversation_is_its_tenants(keyed):
    """The same session id of two tenants is two conversations; a key asks for its own, and for no other."""
    world = keyed()
    clients = {tenant: world.client("app", tenant=tenant) for tenant in ("acme", "umbrella")}
    made = {
        tenant: client.post("/v1/route", json={"question": "who?", "session_id": "s"}).json()["decision_id"]
        for tenant, client in clients.items()
    }
    for tenant, client in clients.items():
        found = client.get("/v1/sessions/s").json()
        assert [each["decision_id"] for each in found["decisions"]] == [made[tenant]]
        assert found["tenant"] == tenant
    refused(clients["acme"].get("/v1/sessions/s", params={"tenant": "umbrella"}), 403, "FORBIDDEN")
