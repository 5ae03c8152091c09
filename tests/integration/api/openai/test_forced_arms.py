"""OpenAI's interface: an arm that the caller chooses is no draw of the policy."""

import time

import pytest

from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.storage.access.api_keys import KeyStore
from tests.integration.api.openai.conftest import AnsweringWorker
from tests.integration.api.openai.test_completions import posted


@pytest.mark.parametrize("prefix", ["arm", "ragbandit"])
def test_an_arm_is_forced(http, service, answers, prefix):
    """The decision is over one arm, with the propensity 1, and says that it was forced."""
    answers()
    reply = posted(http, model=f"{prefix}/multi_step").json()
    assert reply["model"] == "ragbandit/multi_step"
    assert (reply["ragbandit"]["propensity"], reply["ragbandit"]["forced"]) == (1.0, True)
    decision = service.router.decision(reply["ragbandit"]["decision_id"]).decision
    assert (decision.arms, decision.pmf, decision.query.arm_by) == (("multi_step",), (1.0,), "caller")
    assert http.get(f"/v1/decisions/{decision.id}").json()["forced"] is True


def test_a_forced_arm_is_not_learned(http, service, answers):
    """The learner closes the decision, its feedback is kept and shown, the counters balance and verify passes."""
    answers()
    forced, free = (posted(http, model=name).json()["ragbandit"]["decision_id"] for name in ("arm/multi_step", "auto"))
    for key in (forced, free):
        assert http.post("/v1/feedback", json={"decision_id": key, "rating": True}).status_code == 202
    assert service.router.learn() == 2
    shown = http.get(f"/v1/decisions/{forced}").json()
    assert (shown["state"], shown["reason"]) == ("closed", "the caller chose the arm")
    assert [(item["value"], item["kind"]) for item in shown["feedback"]] == [(1.0, "rating")]
    assert http.get(f"/v1/decisions/{free}").json()["state"] == "learned"
    status = service.router.status()
    assert (status.counters.learned, status.counters.closed, status.counters.waiting) == (1, 1, 0)
    assert status.counters.balanced
    late = http.post("/v1/feedback", json={"decision_id": forced, "rating": False}).json()
    assert late["late"] is True
    assert service.router.verify(deep=True).ok


def test_replays_leave_forced_arms_out(http, service, answers):
    """Neither the ledger's rows nor the rated ones have the decision whose arm was chosen."""
    answers()
    keys = [posted(http, model=name).json()["ragbandit"]["decision_id"] for name in ("arm/multi_step", "auto")]
    for key in keys:
        http.post("/v1/feedback", json={"decision_id": key, "rating": True})
    service.router.learn()
    assert [row.decision.id for row in ledger_rows(service.router.ledger)] == [keys[1]]


@pytest.mark.parametrize(
    ("scopes", "listed", "allowed"),
    [
        ({}, ["auto", "arm/no_retrieval", "arm/single_step", "arm/multi_step"], {"auto", "arm/multi_step"}),
        ({"arms": ["single_step"]}, ["auto", "arm/single_step"], {"auto"}),
        ({"forced": False}, ["auto"], {"auto"}),
    ],
)
def test_keys_that_are_narrowed(serve, scopes, listed, allowed):
    """A key sees the models that it may use, by other names too; another arm is a 403, and nothing is decided."""
    aliases = {
        "claude-m": "arm/multi_step",
        "claude-*": "auto",
        "auto": "auto",
        "old": "arm/gone",
        "gpt-5": "auto",
    }
    service = serve(server={"model_aliases": aliases})
    named = {"arm/multi_step": "claude-m", "auto": "gpt-5"}
    listed = listed + [named[name] for name in ("arm/multi_step", "auto") if name in listed]
    new = KeyStore(service.router.database).create(
        name="test", role="app", now=time.time(), actor="cli:test", scopes=scopes
    )
    service.app.state.gate.ring.known = None
    headers = {"authorization": f"Bearer {new.text}"}
    found = service.http.get("/v1/models", headers=headers).json()["data"]
    assert [model["id"] for model in found] == listed
    worker = AnsweringWorker(service)
    worker.start()
    try:
        for model in ("auto", "arm/multi_step"):
            reply = posted(service.http, model=model, headers=headers)
            assert reply.status_code == (200 if model in allowed else 403), reply.text
    finally:
        worker.ended.set()
        worker.join(10)
    assert service.router.status().counters.decided == len(allowed)
