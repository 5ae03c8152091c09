"""OpenAI's interface: completions as its own client reads them, and the decisions behind them."""

import json
from dataclasses import replace

import openai
import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion

from ragbandit.shared.types import request_json
from tests.integration.api.openai.conftest import COST, SOURCES
from tests.support.additions import needs
from tests.support.servers.http_service import QUESTION

ASKED = [{"role": "user", "content": QUESTION}]

CITED = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}


def posted(http, headers=None, **more):
    return http.post("/v1/chat/completions", json={"model": "auto", "messages": ASKED} | more, headers=headers)


def test_models(client, service):
    """`auto` and every arm of our workers is listed and can be read, an unknown one is a 404 with its code."""
    names = [model.id for model in client.models.list()]
    assert names == ["auto", "arm/no_retrieval", "arm/single_step", "arm/multi_step"]
    for name in names:
        assert client.models.retrieve(name).id == name
    listed = service.http.get("/v1/models").json()
    assert listed["object"] == "list"
    for model in listed["data"]:
        Model.model_validate(model, strict=True)
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found"


def test_a_completion(client, service, answers):
    """The answer of a worker comes as a completion of the decision, with its tokens and what decided."""
    answers()
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=ASKED)
    reply = raw.parse()
    key = reply.id.removeprefix("chatcmpl-")
    decision = service.router.decision(key).decision
    assert reply.choices[0].message.content == "Bram Stoker"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == f"ragbandit/{decision.arm}"
    assert reply.system_fingerprint == f"{decision.policy}:{decision.version}"
    assert reply.created == int(decision.made_at)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (310, 12, 322)
    assert reply.usage.prompt_tokens_details.cached_tokens == COST.cached_tokens
    assert reply.usage.completion_tokens_details.reasoning_tokens == COST.reasoning_tokens
    assert raw.headers["x-ragbandit-decision-id"] == key
    assert raw.headers["x-request-id"]
    facts = reply.ragbandit
    assert (facts["decision_id"], facts["arm"], facts["propensity"]) == (key, decision.arm, decision.propensity)
    assert facts["policy_version"] == decision.version
    assert facts["cost"]["retriever_calls"] == COST.retriever_calls
    assert facts["forced"] is facts["abstained"] is False


def test_citations(http, service, answers):
    """The passages, of which one has no URL, come as OpenAI's annotations, and as our own; the JSON is of its types."""
    read = service.router.store.outcomes_by_id
    service.router.store.outcomes_by_id = lambda ids: {
        key: replace(outcome, sources=SOURCES) for key, outcome in read(ids).items()
    }
    answers()
    sourced = posted(http).json()
    ours = f"{service.url}/v1/decisions/{sourced['ragbandit']['decision_id']}#2"
    cited = [each["url_citation"] for each in sourced["choices"][0]["message"]["annotations"]]
    assert [each["url"] for each in cited] == ["https://books.example/d1", ours]
    assert [each["title"] for each in cited] == ["Dracula", "d2"]
    assert [(each["id"], each["score"]) for each in sourced["ragbandit"]["passages"]] == [("d1", 2.5), ("d2", None)]
    ChatCompletion.model_validate(sourced, strict=True)
    assert {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"} <= set(sourced)


def test_the_same_key(http, service, answers):
    """The same body under one Idempotency-Key is one decision and one reply; another body is a conflict."""
    answers()
    first, second = (posted(http, headers={"Idempotency-Key": "mine-1"}) for _ in range(2))
    assert first.status_code == 200
    assert first.json() == second.json()
    assert first.json()["id"] == "chatcmpl-mine-1"
    assert service.router.status().counters.decided == 1
    other = posted(http, headers={"Idempotency-Key": "mine-1"}, messages=[{"role": "user", "content": "Who else?"}])
    assert other.status_code == 409
    assert other.headers["x-should-retry"] == "false"
    assert other.json()["error"]["code"] == "conflict"


def test_what_is_kept_of_a_request(serve, http, answers, service):
    """Ignored parameters, the user and metadata are kept with the decision, and are no part of the request's body."""
    answers()
    more = {"temperature": 0.3, "seed": 7, "stop": ["\n"], "max_tokens": 5, "user": "u-17", "metadata": {"page": "faq"}}
    strange = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto", "x y": 1}
    headers = {"Idempotency-Key": "mine-1", "X-RagBandit-Session-Id": "talk-1"}
    reply = posted(http, headers=headers, **more, **strange)
    assert reply.status_code == 200, reply.text
    query = service.router.decision("mine-1").decision.query
    assert request_json(query) == {
        "surface": "openai",
        "ignored": ["max_tokens", "other", "seed", "stop", "temperature", "tool_choice", "tools"],
        "user": "u-17",
        "metadata": {"page": "faq"},
        "named_id": True,
    }
    assert (query.session, query.context) == ("talk-1", {})
    assert http.get("/v1/decisions/mine-1").json()["request"] == request_json(query)
    assert posted(http, headers=headers, temperature=0.9).status_code == 200


def test_metadata_that_is_declared(serve, answering):
    """A declared key becomes context of its type, so that the policy uses it; an invalid text is refused."""
    declared = {
        "premium": {"type": "boolean"},
        "age": {"type": "number"},
        "topics": {"type": "words"},
        "plan": {"type": "category", "values": ["free", "pro"]},
    }
    service = serve(context=declared)
    sent = {"premium": "True", "age": "3.5", "topics": "billing, urgent", "plan": "pro", "other": "x"}
    refused = posted(service.http, metadata=sent | {"age": "old"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata.age")
    answering(service)
    key = posted(service.http, metadata=sent).json()["ragbandit"]["decision_id"]
    query = service.router.decision(key).decision.query
    assert query.context == {"age": 3.5, "plan": "pro", "premium": True, "topics": ["billing", "urgent"]}
    assert query.sent.metadata == {"other": "x"}


def test_a_conversation(http, service, answers):
    """The question is the last message, the turns before it are kept for the arm, and both decide on the repetition."""
    answers()
    before = [{"role": "user", "content": "Who wrote Dracula?"}, {"role": "assistant", "content": "Bram Stoker."}]
    asked = {"role": "user", "content": "When was he born?"}
    headers = {"Idempotency-Key": "mine-1"}
    first, second = (posted(http, messages=[*before, asked], headers=headers) for _ in range(2))
    assert first.json() == second.json()
    query = service.router.decision("mine-1").decision.query
    assert (query.text, query.asked) == ("When was he born?",) * 2
    assert [(turn.role, turn.text) for turn in query.messages] == [(turn["role"], turn["content"]) for turn in before]
    assert posted(http, messages=[asked], headers=headers).status_code == 409
    ended = posted(http, messages=before)
    assert (ended.status_code, ended.json()["error"]["param"]) == (400, "messages")


def test_older_completions_are_a_404_with_the_remedy(client):
    """The error of /v1/completions names the setting that makes a client use chat completions."""
    with pytest.raises(openai.NotFoundError, match="is_chat_model=True"):
        client.completions.create(model="auto", prompt="Who wrote Dracula?")


#: the reply of a model's server, without its text
MORE = {
    "message": {"annotations": [CITED], "images": [{"image_url": {"url": "data:image/png;base64,AAAA"}}], "mood": "x"},
    "finish_reason": "stop",
    "more": {"citations": ["https://a.example"], "system_fingerprint": "fp_1", "service_tier": "flex"},
    "choice": {"native_finish_reason": "STOP", "index": 7},
    "usage": {"queue_time": 0.5, "prompt_tokens": 9},
    "omitted": ["results"],
    "ignored": ["top_k"],
}


@needs("responses")
def test_what_a_response_has_and_a_chat_lacks_is_named(http, service, answers):
    """A response at the door of chat completions stores what was left out of it, as /v1/responses does."""
    answers()
    body = {"model": "auto", "input": QUESTION, "tools": [{"type": "web_search"}], "truncation": "auto"}
    chat, response = (http.post(path, json=body).json() for path in ("/v1/chat/completions", "/v1/responses"))
    keys = chat["id"].removeprefix("chatcmpl-"), response["id"]
    stored = [list(service.router.decision(key).decision.query.sent.ignored) for key in keys]
    assert stored == [["tools.web_search", "truncation"]] * 2
    assert chat["ragbandit"]["ignored"] == stored[0]


def test_further_fields_of_a_reply(http, answers, service):
    """They come in addition to the usual fields, whole and streamed; the facts name the fields that were left out."""
    answers(reply=MORE)
    whole = posted(http, seed=3).json()
    *_, last = [line for line in posted(http, stream=True, seed=3).text.splitlines() if "ragbandit" in line]
    for reply, choice in ((whole, whole["choices"][0]), (tree := json.loads(last[6:]), tree["choices"][0])):
        assert {name: reply[name] for name in MORE["more"]} == MORE["more"]
        assert (choice["native_finish_reason"], choice["index"], choice["finish_reason"]) == ("STOP", 0, "stop")
        assert (reply["ragbandit"]["omitted"], reply["ragbandit"]["ignored"]) == (["results"], ["seed", "top_k"])
    assert {name: whole["choices"][0]["message"][name] for name in MORE["message"]} == MORE["message"]
    assert (whole["usage"]["queue_time"], whole["usage"]["prompt_tokens"]) == (0.5, 310)


def test_metadata_that_is_not_stored(http, answers, service):
    """The first sixteen keys with short texts are stored; other metadata is not, and does not count as ignored."""
    answers()
    pairs = {f"k{number:02}": "x" for number in range(17)}
    key = posted(http, metadata={"long": "x" * 513, "tags": [1]} | pairs).json()["ragbandit"]["decision_id"]
    stored = service.router.decision(key).decision.query.sent
    assert (len(stored.metadata), "k16" in stored.metadata) == (16, False)
    assert stored.ignored == ()
