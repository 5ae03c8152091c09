"""Open Responses: replies and events as OpenAI's types and clients read them, and the decisions behind them."""

import json
import math
import re

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from sqlalchemy import select

from ragbandit.additions.responses import stored_responses
from ragbandit.additions.responses.endpoints import DOOR
from ragbandit.additions.responses.stored_responses import conversation_of
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import DeltaPiece, StatusNote, TextPiece, request_json
from ragbandit.testing.doors import check_door
from tests.integration.api.openai.conftest import COST, outcome_of
from tests.support.cases import every_case
from tests.support.pages import DOCS
from tests.support.servers.http_service import QUESTION, Keyed, worker_answers

PIECES = ("Br", "am Sto", "ker: ", "🧛", "‍♂️ é")
EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def service(serve_module):
    """One service for these tests."""
    return serve_module(context={"premium": {"type": "boolean"}})


def posted(http, headers=None, **more):
    return http.post("/v1/responses", json={"model": "auto", "input": QUESTION} | more, headers=headers)


def error_of(reply):
    """(status, code, param) of a refusal, which has OpenAI's shape."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status_code, error["code"], error["param"]


def events_of(http, headers=None, **more):
    """The events of a stream, each named by its type and numbered in its turn, and the reply's headers."""
    reply = posted(http, headers=headers, stream=True, **more)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *blocks, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events, reply.headers


def said_by(service, response):
    """The messages of a stored conversation, the last answer included."""
    return conversation_of(service.router.store, service.router.decision(response["id"]).decision)


def test_a_response(client, service, answers):
    """The answer of a worker comes as a response under the decision's id; read by it, it is the same."""
    answers()
    raw = client.responses.with_raw_response.create(model="auto", input=QUESTION, metadata={"page": "faq"}, user="u-1")
    reply = raw.parse()
    Response.model_validate(json.loads(raw.text), strict=True)
    record = service.router.decision(reply.id)
    assert (reply.output_text, reply.status, reply.error) == ("Bram Stoker", "completed", None)
    assert reply.id == raw.headers["x-ragbandit-decision-id"]
    assert reply.id.startswith("resp_")
    assert reply.model == f"ragbandit/{record.decision.arm}"
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (310, 12, 322)
    assert (reply.metadata, reply.safety_identifier, reply.store) == ({"page": "faq"}, "u-1", True)
    assert reply.ragbandit["cost"]["retriever_calls"] == COST.retriever_calls
    assert request_json(record.decision.query) == {
        "surface": "responses",
        "metadata": {"page": "faq"},
        "user": "u-1",
        "named_id": False,
    }
    assert client.responses.retrieve(reply.id) == reply
    judged = service.http.post("/v1/feedback", json={"decision_id": reply.id, "rating": True})
    assert judged.status_code == 202


SENT = {
    "instructions": "Answer in one line.",
    "temperature": 0.3,
    "top_p": 0.8,
    "max_output_tokens": 77,
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "truncation": "disabled",
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"page": "faq"},
    "service_tier": "flex",
    "prompt_cache_key": "cache-1",
    "max_tool_calls": 3,
    "presence_penalty": 0.5,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}],
}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_repeats_what_was_sent(http, answers, streamed):
    """Parameters come back as the request sent them: whole, in every event of a stream, and read again by the id."""
    answers()
    for sent in (SENT, {**SENT, "store": False}, {"temperature": 2, "text": {"verbosity": "high"}}):
        if streamed:
            replies = [event["response"] for event in events_of(http, **sent)[0] if "response" in event]
        else:
            replies = [posted(http, **sent).json()]
        if sent.get("store", True):
            replies.append(http.get(f"/v1/responses/{replies[0]['id']}").json())
        wanted = {**sent, "text": {"format": {"type": "text"}} | sent["text"]}
        for reply in replies:
            Response.model_validate(reply)
            assert {name: reply[name] for name in wanted} == wanted


def test_what_was_not_sent_has_the_default_of_the_specification(http, answers):
    """Null is as if it was not sent; credentials of a tool's server are left out."""
    answers()
    plain = posted(http).json()
    defaults = ("auto", True, 1.0, None, [])
    names = ("tool_choice", "parallel_tool_calls", "temperature", "max_output_tokens", "tools")
    assert tuple(plain[name] for name in names) == defaults
    null = dict.fromkeys(("temperature", "truncation", "reasoning", "service_tier"))
    assert {name: posted(http, **null).json()[name] for name in null} == {name: plain[name] for name in null}
    lone = {"type": "function", "name": "f", "description": "\ud800"}
    body = {"model": "auto", "input": QUESTION, "tools": [lone], "tool_choice": "none", "temperature": math.nan}
    reply = http.post("/v1/responses", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert reply.status_code in (200, 400), reply.text
    secret = {"name": "f", "parameters": {}, "headers": {"X-Key": "s3cr3t"}, "authorization": "s3cr3t"}
    reply = posted(http, tools=[{"type": "function", **secret}], tool_choice="none")
    assert reply.json()["tools"] == [{"type": "function", "name": "f", "parameters": {}}]
    assert "s3cr3t" not in http.get(f"/v1/decisions/{reply.json()['id']}").text


def test_the_order_of_a_stream(http, in_pieces, service):
    """The events come in the specification's order, each is as OpenAI's types have it, and the pieces are the text."""
    in_pieces(StatusNote(text="searching"), *(TextPiece(text=text) for text in PIECES))
    events, headers = events_of(http, metadata={"page": "faq"})
    for event in events:
        EVENT.validate_python(event, strict=True)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas, cited = ["output_text.delta"] * len(PIECES), ["output_text.annotation.added"] * 2
    begin, end = ["created", "in_progress"], ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds == [*begin, "output_item.added", "content_part.added", *deltas, *cited, *end]
    by_kind = dict(zip(kinds, events, strict=True))
    assert tuple(event["delta"] for event in events if "delta" in event) == PIECES
    whole = by_kind["completed"]["response"]
    item = whole["output"][0]
    assert by_kind["output_text.done"]["text"] == "".join(PIECES) == item["content"][0]["text"]
    assert (by_kind["content_part.done"]["part"], by_kind["output_item.done"]["item"]) == (item["content"][0], item)
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert (by_kind["created"]["response"]["output"], by_kind["output_item.added"]["item"]["content"]) == ([], [])
    assert [event["annotation"] for event in events if "annotation" in event] == item["content"][0]["annotations"]
    ours = f"{service.url}/v1/decisions/{whole['id']}#2"
    cited = [(each["type"], each["title"], each["url"]) for each in item["content"][0]["annotations"]]
    assert cited == [("url_citation", "Dracula", "https://books.example/d1"), ("url_citation", "d2", ours)]
    assert headers["x-ragbandit-decision-id"] == whole["id"]
    assert http.get(ours).json()["request"]["metadata"] == {"page": "faq"}


def test_thoughts_and_refusals_are_in_the_output(http, in_pieces, answers, client):
    """Reasoning is an item of its own and a refusal a part of the message, in the stream and in the response."""
    message = {"reasoning_content": "I think.", "refusal": "I will not."}
    thoughts = [DeltaPiece(delta={"reasoning_content": text}) for text in ("I ", "think.")]
    refusal = DeltaPiece(delta={"refusal": "I will not."})
    in_pieces(*thoughts, refusal, reply={"message": message})
    events = events_of(http)[0]
    for event in events:
        EVENT.validate_python(event, strict=True)
    kinds = [event["type"].removeprefix("response.") for event in events]
    begin, end = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    first = [*begin, "reasoning_text.delta", "reasoning_text.delta", *begin, "refusal.delta"]
    last = ["reasoning_text.done", *end, "refusal.done", *end, "completed"]
    assert kinds == ["created", "in_progress", *first, *last]
    reasoning, said = events[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I think."}]
    assert said["content"] == [{"type": "refusal", "refusal": "I will not."}]
    assert [events[2]["item"]["id"], events[6]["item"]["id"]] == [reasoning["id"], said["id"]]
    in_pieces(*thoughts, TextPiece(text="Rome"), refusal, reply={"message": message})
    last_event = events_of(http)[0][-1]
    assert [part["type"] for part in last_event["response"]["output"][1]["content"]] == ["output_text", "refusal"]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_response_that_its_model_cut_is_incomplete(http, in_pieces, finish, reason):
    """A response is incomplete, with the reason, if the model's limit or its filter cut it."""
    in_pieces(TextPiece(text="Bram "), reply={"message": {}, "finish_reason": finish})
    last = events_of(http)[0][-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": reason}
    assert (last["response"]["status"], last["response"]["output"][0]["status"]) == ("incomplete", "incomplete")


def test_streams_that_end_otherwise(http, in_pieces, client):
    """A spent budget is an incomplete response with its draft, a failure a failed one; no event follows but [DONE]."""
    in_pieces(TextPiece(text="Bram "), status="exhausted", stop_reason="budget_tokens")
    last = events_of(http)[0][-1]
    assert (last["type"], last["response"]["incomplete_details"]) == (
        "response.incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]
    in_pieces(status="answered", answer=None)
    assert [event["type"] for event in events_of(http)[0]].count("response.output_text.done") == 1
    failed = {"status": "failed", "answer": None, "error": "the model is gone", "stop_reason": "failed"}
    in_pieces(TextPiece(text="Bram "), **failed)
    last = events_of(http)[0][-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert (last["response"]["error"]["code"], last["response"]["output"]) == ("arm_failed", [])
    assert "the model is gone" in last["response"]["error"]["message"]
    for error, code in ((TimeoutError("ending"), "not_ready"), (RuntimeError("ours"), "internal")):
        in_pieces(TextPiece(text="Bram "), error)
        assert events_of(http)[0][-1]["response"]["error"]["code"] == code
    in_pieces(TextPiece(text="Bram "), **failed)
    with client.responses.stream(model="auto", input=QUESTION) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] == "response.failed"


def test_a_conversation(http, service, answers, decided):
    """A response goes on from another: its turns come before the question, in one session; its instructions do not."""
    answers()
    first = posted(http, instructions="Answer like a pirate.").json()
    assert first["instructions"] == "Answer like a pirate."
    second = posted(http, input="And who filmed it?", previous_response_id=first["id"]).json()
    assert (second["previous_response_id"], second["instructions"]) == (first["id"], None)
    third = posted(http, input="When?", previous_response_id=second["id"], instructions="Be brief.").json()
    queries = [service.router.decision(reply["id"]).decision.query for reply in (first, second, third)]
    assert [query.session for query in queries] == [first["id"]] * 3
    said = [("user", QUESTION), ("assistant", "Bram Stoker")]
    more = [("user", "And who filmed it?"), ("assistant", "Bram Stoker")]
    assert [(each.role, each.text) for each in queries[1].messages] == said
    assert [(each.role, each.text) for each in queries[2].messages] == [("system", "Be brief."), *said, *more]
    assert queries[2].asked == "When?"
    assert decided() == 3


def test_a_chain_stores_each_message_once(http, service, answers):
    """The rows of 40 turns of 4 kB take the words and a bounded history; the last turn goes on from all of them."""
    answers()
    last, rows = {"id": None}, []
    for number in range(40):
        last = posted(http, input=f"{number} {'x' * 4000}", previous_response_id=last["id"]).json()
        with service.router.database.read() as connection:
            rows.append(
                connection.execute(select(decisions.c.request).where(decisions.c.id == last["id"])).scalar_one()
            )
    assert max(map(len, rows)) < 4000 + service.router.settings.conversation.chars + 3000
    said = [each["content"] for each in said_by(service, last)]
    assert said[::2] == [f"{number} {'x' * 4000}" for number in range(40)]
    assert set(said[1::2]) == {"Bram Stoker"}


def test_a_chain_that_is_not_whole(http, service, answers, monkeypatch):
    """A chain with a deleted, erased or overlong response, or with too many, is refused by the field and the reason."""

    def refused(key, reason):
        reply = posted(http, input="Why?", previous_response_id=key)
        assert error_of(reply) == (400, "invalid_input", "previous_response_id")
        assert reason in reply.json()["error"]["message"]

    answers()
    chain = [posted(http).json()["id"]]
    for _ in range(3):
        chain.append(posted(http, input="Why?", previous_response_id=chain[-1]).json()["id"])
    with monkeypatch.context() as patched:
        patched.setattr(stored_responses, "MOST_TURNS", 3)
        refused(chain[3], "more than 3 responses")
    refused(posted(http, input=[{"role": "user", "content": "x" * 9000}] * 30).json()["id"], "characters")
    erase(service.router.database, Selection(decision=chain[2]), features=False, actor="cli:me", now=9.0)
    refused(chain[2], "erased")
    refused(chain[3], "erased")
    with service.router.database.write() as connection:
        connection.execute(outcomes.delete().where(outcomes.c.decision_id == chain[0]))
        connection.execute(decisions.delete().where(decisions.c.id == chain[0]))
    service.jobs.enqueued.remove(chain[0])  # no worker of later tests answers it
    refused(chain[1], f"{chain[0]} was deleted")


REASONED = {
    "reasoning_content": "Let me look.",
    "reasoning_details": [{"type": "reasoning.text", "text": "Let me look.", "signature": "s1"}],
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "s2"}},
        }
    ],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fields", [["reasoning_content"], ["reasoning_details"], list(REASONED)])
def test_reasoning_goes_back(http, service, answers, streamed, fields):
    """Reasoning and its signatures are in a chain, and in the items that a client sends back or names, as they came."""
    message = {name: REASONED[name] for name in fields}
    answers(reply={"message": message, "finish_reason": "stop"})
    events = events_of(http)[0][-1]["response"] if streamed else posted(http).json()
    wanted = {"role": "assistant", "content": "Bram Stoker", **message}
    assert said_by(service, events)[-1] == wanted
    references = [{"type": "item_reference", "id": item["id"]} for item in events["output"]]
    for items in (events["output"], references):
        on = posted(http, input=[*items, {"role": "user", "content": "Why?"}]).json()
        assert said_by(service, on)[0] == wanted


def test_responses_that_are_not_stored(http, service, answers):
    """`store: false` is kept with the decision; by its id the response is as one that was never made."""
    answers()
    reply = posted(http, store=False).json()
    assert reply["store"] is False
    decision = http.get(f"/v1/decisions/{reply['id']}").json()
    assert (decision["request"]["store"], decision["session_id"]) == (False, None)
    path, unknown = f"/v1/responses/{reply['id']}", "/v1/responses/resp_never"
    for method, more in (("GET", ""), ("POST", "/cancel")):
        there, none = http.request(method, path + more), http.request(method, unknown + more)
        assert error_of(there) == error_of(none) == (404, "not_found", "response_id")
        assert there.content == none.content
    gone_on, none = (posted(http, previous_response_id=key) for key in (reply["id"], "resp_never"))
    assert error_of(gone_on) == (404, "not_found", "previous_response_id")
    assert gone_on.content == none.content


def test_tenants(serve, in_pieces):
    """Another tenant's response is one that was never made, to a key of all tenants too where it goes on from it."""
    service = serve()
    keyed = Keyed(service)
    acme, globex, anyone = (keyed.client("app", tenant=name) for name in ("acme", "globex", None))
    in_pieces(TextPiece(text="Bram Stoker"))
    key = posted(acme).json()["id"]
    worker_answers(service, key, "Bram Stoker")
    assert posted(acme, previous_response_id=key).json()["previous_response_id"] == key
    for stranger in (globex, anyone):
        there, none = (posted(stranger, previous_response_id=one) for one in (key, "resp_never"))
        assert error_of(there) == error_of(none) == (404, "not_found", "previous_response_id")
        assert there.content == none.content
    for method, more in (("GET", ""), ("POST", "/cancel")):
        there, none = (globex.request(method, f"/v1/responses/{one}{more}") for one in (key, "resp_never"))
        assert (there.status_code, there.content) == (404, none.content)
    assert anyone.get(f"/v1/responses/{key}").json()["status"] == "completed"
    assert keyed.client("rater").get(f"/v1/responses/{key}").status_code == 403


def said_in(part):
    """A question with this part."""
    return {"input": [{"role": "user", "content": [part]}]}


REFUSED = [
    ({"input": 5}, "invalid_input", "input"),
    ({"input": []}, "invalid_input", "input"),
    ({"input": [{"role": "assistant", "content": "Hello"}]}, "invalid_input", "input"),
    ({"input": [{"type": "function_call_output", "output": "4"}]}, "invalid_input", "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_parameter", "input[0].id"),
    ({"input": [{"id": "fc_1_0"}]}, "unsupported_parameter", "input[0].id"),
    ({"input": [{"role": "tool", "content": "4"}]}, "invalid_input", "input[0].role"),
    (said_in({"type": "input_image", "image_url": "x"}), "unsupported_parameter", "input"),
    (said_in({"type": "x"}), "unsupported_parameter", "input[0].content[0].type"),
    (said_in({"type": "x"}) | {"instructions": "Hi."}, "unsupported_parameter", "input[0].content[0].type"),
    ({"model": "gpt-5"}, "model_not_found", "model"),
    ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    ({"background": True}, "unsupported_parameter", "background"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "unsupported_parameter", "tool_choice"),
    ({"max_output_tokens": 0}, "invalid_input", "max_output_tokens"),
    ({"tool_choice": {"type": "function", "name": "weather"}}, "unsupported_parameter", "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "unsupported_parameter", "text.format"),
    ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
    ({"top_logprobs": 3}, "unsupported_parameter", "include"),
    ({"include": ["message.output_text.logprobs"]}, "unsupported_parameter", "include"),
    ({"metadata": {"premium": "perhaps"}}, "invalid_input", "metadata.premium"),
    ({"cost_weight": 1, "aim": {"quality": 0.9}}, "invalid_input", "aim"),
    ({"previous_response_id": "a b"}, "not_found", "previous_response_id"),
]


def test_what_is_refused(http, decided):
    """What would change the meaning of the answer is refused by its name, and nothing is decided."""
    with every_case() as cases:
        for more, code, param in REFUSED:
            with cases(str(more)):
                status = 404 if code.endswith("not_found") else 400
                assert error_of(posted(http, **more)) == (status, code, param)
    assert decided() == 0


def test_cancelling_and_deleting(http, service, answers):
    """A response that waits is cancelled, one that has ended stays; none is deleted."""
    key = http.post("/v1/answer?wait_s=0", json={"question": QUESTION}).json()["decision_id"]
    assert http.post(f"/v1/responses/{key}/cancel").json()["status"] == "in_progress"
    service.router.store.add_outcome(outcome_of(key, status="failed", answer=None, stop_reason="cancelled"))
    ended = http.get(f"/v1/responses/{key}").json()
    assert (ended["status"], ended["error"]["code"]) == ("cancelled", "cancelled")
    answers()
    reply = posted(http).json()
    assert http.post(f"/v1/responses/{reply['id']}/cancel").json() == reply
    assert http.delete(f"/v1/responses/{reply['id']}").status_code == 405
    assert http.get(f"/v1/responses/{reply['id']}").json() == reply


#: further fields of a model's reply; two of them have names that responses use otherwise
MORE = {"citations": ["x"], "service_tier": "flex", "text": 5, "id": "up-1"}


def test_further_fields_of_a_models_reply(http, in_pieces):
    """An image is an item of its own, citations of the model are annotations, other fields are in the message."""
    cited = {"url": "https://a.example", "title": "A"}
    message = {
        "annotations": [{"type": "url_citation", "url_citation": cited}, {"type": "file", "file": 1}],
        "images": [
            {"image_url": {"url": "data:image/png;base64,AAAA"}},
            {"image_url": "https://b.example"},
            {"b": 1},
            5,
        ],
        "audio": {"data": "BBBB"},
    }
    in_pieces(TextPiece(text="Here."), reply={"message": message, "more": MORE, "choice": {"why": 7}})
    events, _ = events_of(http)
    for response in (events[-1]["response"], posted(http).json()):
        text, *images = response["output"]
        assert text["content"][0]["annotations"] == [{"type": "url_citation", **cited}, {"type": "file", "file": 1}]
        assert (text["audio"], response["citations"], response["why"]) == ({"data": "BBBB"}, ["x"], 7)
        assert (response["service_tier"], response["text"]) == ("flex", {"format": {"type": "text"}})
        assert {image["type"] for image in images} == {"image_generation_call"}
        assert [image.get("result") for image in images] == ["AAAA", "https://b.example", None]
        assert len({image["id"] for image in images}) == 3
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["message", *["image_generation_call"] * 3]


def test_the_door_follows_the_contract():
    """Damaged items, unknown ids, wrong keys and large bodies are answered, or refused in OpenAI's form."""
    items = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    tools = [{"type": "function", "name": "look", "parameters": {}}]
    check_door(DOOR, bodies={"POST /v1/responses": {"model": "auto", "input": items, "tools": tools}})


def test_the_python_of_the_page_runs(service, answers, capsys):
    """The code of docs/responses.md runs against a service, and prints the answer and the state of the next one."""
    answers()
    page = (DOCS / "responses.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    names: dict = {}
    exec(compile(code.replace("http://127.0.0.1:8100", service.url), "docs/responses.md", "exec"), names)
    names["client"].close()
    printed = capsys.readouterr().out
    assert printed.startswith("Bram Stoker")
    assert printed.endswith("completed\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_reached_limit_is_no_status_that_hides_its_reason(serve, stream):
    """A turn beyond a limit is a 400 with its code, since Codex prints the message of a 400, but not that of a 429."""
    http = serve(conversation={"session_limit": {"turns": 1}}).http
    assert http.post("/v1/route", json={"question": "Who?", "session_id": "s"}).status_code == 200
    body = {"model": "auto", "input": "Who?", "stream": stream}
    refused = http.post("/v1/responses", json=body, headers={"x-ragbandit-session-id": "s"})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "limit_reached")
    page = " ".join((DOCS / "conversations.md").read_text(encoding="utf-8").split())
    assert f"`{error['code']}`, and `/v1/responses` sends {refused.status_code} instead of 429" in page
    assert "conversation.session_limit.turns" in error["message"]
    assert refused.headers["x-ragbandit-session-turns-remaining"] == "0"
