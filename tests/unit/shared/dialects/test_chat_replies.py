"""Replies of model servers in every form that a field can have: what is read is what OpenAI's schema says."""

import contextlib
import json

import pytest
from hypothesis import example, given, strategies as st

from ragbandit.shared.dialects.chat.message_parts import MessageParts
from ragbandit.shared.dialects.chat.replies import MAX_CALLS, MAX_MESSAGE, MAX_PARTS, ModelReply
from ragbandit.shared.model_servers.event_reader import BrokenReply, EventReader
from ragbandit.shared.model_servers.repeated_events import RepeatedEvents
from ragbandit.shared.texts.growing_text import GrowingText
from ragbandit.shared.types import MAX_TEXT
from tests.unit.shared.dialects.replies import calls_of, chunk, piece, read, whole

_FIELDS = (
    *("content", "tool_calls", "function_call", "function", "name", "arguments", "index", "finish_reason", "logprobs"),
    *("delta", "message", "text", "usage", "error", "audio", "images", "reasoning", "refusal", "type", "id", "tokens"),
)
_VALUES = st.recursive(
    st.sampled_from([None, True, 0, -1, 10**30, 0.5, "", "x", "stop", "\ud83d", "{}", "function", "text", "image"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4),
    max_leaves=12,
)


_KINDS = st.sampled_from(["delta", "message"])
_MESSAGES = st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4)
_CHOICES = st.builds(lambda choice, name, message: {**choice, name: message}, _MESSAGES, _KINDS, _VALUES | _MESSAGES)


@given(st.lists(_VALUES | st.builds(lambda choice: {"choices": [choice]}, _CHOICES), max_size=3), st.booleans())
@example([{"choices": [{"message": {"content": []}}]}], False)
@example([{"choices": [{"delta": {"function_call": "x"}}]}], True)
@example([{"choices": [{"delta": {"function_call": {"arguments": []}}}]}], True)
def test_a_field_of_any_type_is_read_or_a_broken_reply(values, uses_functions):
    """No type of a field raises another error than BrokenReply."""
    with contextlib.suppress(BrokenReply):
        read(*values, uses_functions=uses_functions)


_TEXTS = st.sampled_from(["a", "bc", "", None, "é", "\ud83d", "\ude00", "x" * 40, ["d"], 7])
_EXTRA = st.sampled_from([None, {}, {"role": "assistant"}, {"reasoning": "r"}, {"refusal": None}, {"n": 0}])
_MORE = st.sampled_from([{}, {"finish_reason": None}, {"finish_reason": "stop"}, {"c": ["d"]}, {"logprobs": None}])
_HEADS = st.sampled_from([{}, {"model": "m"}, {"model": "n", "x": 1}, {"usage": {"prompt_tokens": 3}}, {"error": "e"}])
_CHUNKS = st.builds(
    lambda text, extra, more, head: {
        **head,
        "choices": [{"index": 0, "delta": {**(extra or {}), "content": text}, **more}],
    },
    _TEXTS,
    _EXTRA,
    _MORE,
    _HEADS,
)


def _state(chunks, *, size, joins):
    """What was read after every part of the body, and at the end."""
    reply, states = ModelReply(), []
    reader = EventReader(reply.counts, joins=joins)
    body = b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in chunks)
    with contextlib.suppress(BrokenReply):
        for at in range(0, len(body), size):
            for value in reader.feed(body[at : at + size]):
                if not (isinstance(value, RepeatedEvents) and reply.take_texts(value)):
                    for event in value.values() if isinstance(value, RepeatedEvents) else [value]:
                        reply.take(event)
            states.append((reply.text, dict(reply.delta)))
        reply.end()
    left_out = ("_plain", "_text", "message", "counts")
    shown = {name: value for name, value in vars(reply).items() if name not in left_out}
    return states, reply.text, shown, reply.message.whole, {**reply.counts.totals, "values": 0}


def _with_text(value, text):
    (choice,) = value["choices"]
    return {**value, "choices": [{**choice, "delta": {**choice["delta"], "content": text}}]}


_GROUPS = st.builds(lambda one, texts: [_with_text(one, text) for text in texts], _CHUNKS, st.lists(_TEXTS, max_size=4))


@given(st.lists(_GROUPS, max_size=4), st.sampled_from([40, 300, 10_000]))
@example([[chunk({"content": text}) for text in ("a", "b", "", '", "x": "', "\\", "é\n", "c")]], 10_000)
def test_chunks_that_bring_only_text_are_read_like_others(groups, size):
    """Events that come joined, because they differ only in their text, leave the same state as single events."""
    chunks = [one for group in groups for one in group]
    assert _state(chunks, size=size, joins=True) == _state(chunks, size=size, joins=False)


@pytest.mark.parametrize(
    "content",
    [
        "Rome 7",
        [{"type": "text", "text": "Rome"}, " ", {"type": "output_text", "text": {"value": "7"}}],
        ["Rome ", None, {"type": "image_url", "image_url": {"url": "x"}}, 7],
        {"type": "text", "text": "Rome 7"},
        {"role": "model", "parts": [{"text": "Rome "}, {"text": "7"}]},
    ],
)
def test_a_content_of_any_form_is_its_text(content):
    """Parts, nested texts and numbers are the text of an answer, whole and in chunks."""
    assert read(whole({"role": "system", "content": content})).text == "Rome 7"
    assert read(chunk({"content": content})).text == "Rome 7"


def test_an_answer_that_is_an_object_is_its_json():
    """A server that parses the JSON of an answer sends an object. An empty text is no object of that kind."""
    answer = {"reasoning": "a capital", "city": "Zürich"}
    assert json.loads(read(whole({"content": answer, "annotations": [{"a": 1}]})).text) == answer
    assert json.loads(read(chunk({"content": answer})).text) == answer
    assert read(chunk({"content": {"type": "text", "text": ""}}), chunk({"content": "Rome"})).text == "Rome"


def test_thoughts_and_refusals_among_the_parts_are_fields():
    """Parts that think or refuse are no part of the text."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. "}]},
        {"type": "reasoning", "text": "So."},
        {"type": "refusal", "refusal": "No."},
        {"type": "text", "text": "Rome"},
    ]
    reply = read(
        whole({"content": parts, "annotations": ["x", {"type": "url_citation"}], "audio": 3, "mine": {"a": 1}})
    )
    assert reply.text == "Rome"
    assert reply.message.whole == {
        "reasoning_content": "Hm. So.",
        "refusal": "No.",
        "annotations": [{"type": "url_citation"}],
        "mine": {"a": 1},
    }


_NO_CHOICE = [{"choices": value} for value in (None, [], [None], "x")]


@pytest.mark.parametrize("nothing", [None, 7, "wait", [], {}, *_NO_CHOICE, chunk(), chunk([])])
def test_a_chunk_with_nothing_in_it_changes_nothing(nothing):
    """Signs of life, null choices and other empty chunks are passed over, and so is another answer."""
    other = {"choices": [{"index": 1, "delta": {"content": "Oslo"}, "finish_reason": "length"}]}
    first, second = (chunk({"content": text}) for text in ("Ro", "me"))
    reply = read(nothing, first, nothing, other, second, nothing, chunk(finish="stop"))
    assert (reply.text, reply.finish) == ("Rome", "stop")


@pytest.mark.parametrize("indexes", [(None, 0), (0, None), ("0", 0), (0, 0.0), (1, 1), (-1, 0)])
def test_an_index_that_comes_later_or_as_text_is_the_same_answer(indexes):
    """The pieces of an answer belong together, whether or not a server numbers each of them."""
    first, second = ({"choices": [{"index": index, "delta": {"content": "Ro"}}]} for index in indexes)
    assert read(first, chunk({}), second, {"choices": [{"index": 5, "delta": {"content": "x"}}]}).text == "RoRo"


def test_an_answer_may_be_in_a_later_choice():
    """An empty choice is no answer. The pieces of the choice with the first text are joined."""
    first, second = ({"index": 0, "message": {"content": None}}, {"index": 1, "message": {"content": "Rome"}})
    assert read({"choices": [first, {**second, "finish_reason": "length"}]}).finish == "length"
    pieces = [{"choices": [{"index": 1, "delta": {"content": text}}]} for text in ("Ro", "me")]
    assert read(chunk({"role": "assistant"}), *pieces, chunk({"content": "Oslo"})).text == "Rome"


@pytest.mark.parametrize("field", ["delta", "message"])
def test_text_and_calls_in_two_choices_are_one_message(field):
    """A server that sends the text and the calls of a message as two choices loses neither."""
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    reply = read({"choices": [{field: {"content": "Well"}}, {field: {"tool_calls": [call]}, "finish_reason": "stop"}]})
    assert (reply.text, reply.finish, calls_of(reply)) == ("Well", "tool_calls", [("a", "function", "f", "{}")])


def test_a_whole_message_after_its_deltas_repeats_them():
    """A last chunk with the whole message adds only what no delta had."""
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "Rome", "reasoning": "Hm", "refusal": "", "tool_calls": [call]}
    for last in (whole(message), chunk({}, message=message), chunk(message=message)):
        reply = read(chunk({"role": "assistant"}), chunk({"content": "Ro"}), chunk({"content": "me"}), last)
        assert (reply.text, reply.message.whole["reasoning"]) == ("Rome", "Hm")
        reply = read(piece("{}", name="f", id="a"), last)
        assert (reply.text, calls_of(reply)) == ("Rome", [("a", "function", "f", "{}")])


@pytest.mark.parametrize("field", ["delta", "message", "text"])
def test_a_choice_may_have_the_text_itself(field):
    """A text in place of a message is read as the answer, also after an empty delta."""
    assert read({"choices": [{"delta": {}, field: "Rome"}]}).text == "Rome"


FINISHES = {
    "stop": [
        *("tool_calls", "function_call", "stop", "STOP", "eos", "", "null", None, "not_finished", {"a": 1}),
        {"type": "stop", "message": "no error"},
    ],
    "length": [
        *("MAX_TOKENS", "model_length", "FinishReason.MAX_TOKENS", "FINISH_REASON_MAX_TOKENS", "maxTokens", ["length"]),
        {"type": "length", "length": 16},
    ],
    "content_filter": ["SAFETY", "content_filter: RECITATION", "content-filter", "guardrail_intervened"],
}


@pytest.mark.parametrize(("word", "finish"), [(word, finish) for finish in FINISHES for word in FINISHES[finish]])
def test_the_reason_for_the_end_is_one_of_openais(word, finish):
    """Other servers' reasons are read as OpenAI's; a reply that its server ends without one has an ordinary end."""
    assert read(chunk({"content": "x"}, finish=word)).finish == finish
    inside = read(chunk({"content": "x", "finish_reason": word}))
    assert (inside.finish, inside.message.whole) == (finish, {})


@pytest.mark.parametrize("word", ["not_finished", "FINISH_REASON_UNSPECIFIED", "in_progress", " ", "NULL"])
def test_a_chunk_that_is_not_the_last_has_no_reason(word):
    """A word that says that the reply goes on ends nothing, so an error or a break after it is a failure."""
    for more in ([], [{"error": "crashed"}]):
        with pytest.raises(BrokenReply, match=r"crashed|broke off"):
            read(chunk({"content": "half"}, finish=word), *more, done=False)


@pytest.mark.parametrize(
    "note",
    [
        {"code": 500, "message": "crashed", "success": False},
        {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "crashed"}},
        {"detail": "crashed"},
        {"text": "crashed", "error_code": 50002},
    ],
)
def test_a_message_in_place_of_the_end_is_a_failure(note):
    """A message after half a text is an error if no end follows. It is none before more text, or after the end."""
    half, end = chunk({"content": "half"}), chunk(finish="stop")
    with pytest.raises(BrokenReply, match="crashed"):
        read(half, note)
    assert read(half, note, half).text == "halfhalf"
    assert read(half, note, end).text == read(half, end, note).text == "half"


@pytest.mark.parametrize(
    "sign", [{"type": "ping"}, {"code": 200, "message": "Success"}, {"usage": {"total_tokens": 5}}]
)
def test_a_chunk_without_a_message_is_no_failure(sign):
    """A sign of life or of success after the text takes nothing back, though no reason for the end comes."""
    assert read(chunk({"content": "Rome"}), sign).text == "Rome"


def test_a_stream_without_any_end_broke_off():
    """A stream without a reason for its end is a failure if it has no last line, and also if it has no content."""
    for values in ([chunk({"content": "Ro"}), chunk(finish="null")], []):
        with pytest.raises(BrokenReply, match=r"broke off|no choices"):
            read(*values, done=False)
    begun = chunk({"role": "assistant", "content": ""})
    with pytest.raises(BrokenReply, match="without content"):
        read(begun)
    assert read(begun, chunk(finish="stop")).text == ""
    assert read(begun, chunk({"refusal": "no"})).finish == "stop"


QUOTA = {"message": "quota reached"}
FAILURES = [
    *({"error": "quota reached"}, {"choices": [], "x_groq": {"error": "quota reached"}}, [{"error": QUOTA}]),
    *({"object": "error", **QUOTA, "code": 40000}, {"type": "error", "msg": "quota reached"}, {"error": True, **QUOTA}),
    *({"choices": None, "base_resp": {"status_msg": "quota reached"}}, {"choices": [], "detail": "quota reached"}),
    *({"choices": [{"finish_reason": "error", "error": QUOTA}]}, whole({"content": "half", "error": QUOTA})),
]
SILENT = [
    *(
        whole({"content": "half"}, "error"),
        chunk({"content": "half"}, "NETWORK_ERROR"),
        whole({"content": ""}, "ERROR_X"),
    ),
    chunk({"content": "half"}, "function_call_filter: MALFORMED_FUNCTION_CALL"),
    chunk({"content": "half"}, {"type": "abort"}),
]


@pytest.mark.parametrize(
    ("failure", "words", "status"),
    [
        ({"error": {**QUOTA, "code": 429}}, "quota reached", 429),
        ({"error": [{"detail": "quota reached", "status": "503"}], "choices": []}, "quota reached", 503),
        *((failure, "quota reached", None) for failure in FAILURES),
        *((failure, "did not describe", None) for failure in SILENT),
        ({"error": {"mine": "odd"}}, '{"mine": "odd"}', None),
    ],
)
def test_an_error_with_status_200_is_a_failure_with_its_words(failure, words, status):
    """An error in a body, a chunk, a choice or the reason for the end is never an answer, after half a text neither."""
    before = [] if "choices" in failure and not failure["choices"] else [chunk({"content": "half"})]
    with pytest.raises(BrokenReply) as error:
        read(*before, failure)
    assert words in str(error.value)
    assert error.value.status_code == status


def test_the_words_of_an_error_may_come_after_the_reason():
    """A stream that ends with an error, and says which in a chunk of its own, fails with that."""
    with pytest.raises(BrokenReply, match="upstream left"):
        read(chunk({"content": "half"}), chunk(finish="error"), {"error": {"message": "upstream left"}})


def test_an_answer_that_has_come_stands():
    """Nothing that follows the reason for the end takes the answer back, and null errors are none."""
    for empty in ({"code": 0, "message": "success"}, {"code": 0, "message": "", "type": None}, "none"):
        assert read({"error": empty} | chunk({"content": "Rome"}, finish="stop")).text == "Rome"
    empty = {"error": {"code": 0, "message": ""}}
    reply = read(empty | chunk({"content": "Rome"}, error=None), chunk(finish="stop"), {"error": "counting failed"})
    assert (reply.text, reply.finish) == ("Rome", "stop")


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content", "refusal", "mine", "arguments"])
def test_a_character_that_a_server_cuts_is_whole(field):
    """Halves of a character in two chunks are one; a half in its middle is U+FFFD, and at its end nothing."""
    texts = ["a\ud83d", "\ude00b\ude00", "c\ud83d"]
    if field == "arguments":
        reply = read(*(piece(text, name="f", index=0, id="a") for text in texts))
        text = calls_of(reply)[0][3]
    else:
        reply = read(*(chunk({field: text}) for text in texts))
        text = reply.text if field == "content" else reply.message.whole[field]
    assert text == "a😀b\ufffdc"


@pytest.mark.parametrize(
    "entry",
    [None, 3, {"token": "a"}, {"token": 3, "logprob": -1}, {"token": "a", "logprob": "-1"}, {"logprob": float("nan")}],
)
def test_log_probabilities_that_are_none_cost_nothing_but_themselves(entry):
    """An entry that cannot be used is left out and noted; the answer and the other entries stand."""
    good = {"token": "b", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    reply = read(chunk({"content": "ab"}, logprobs={"content": [entry, good]}), chunk(logprobs="x"))
    assert (reply.text, reply.tokens, reply.has_broken_logprobs) == ("ab", [("b", -0.5)], True)
    assert reply.message.whole == {"logprobs": {"content": [good]}}


def test_log_probabilities_in_the_form_of_completions_are_read():
    """Lists of tokens, numbers and alternatives become entries of OpenAI's schema."""
    reply = read(chunk({"content": "ab"}, logprobs={"tokens": ["a", "b"], "token_logprobs": [None, -0.5]}))
    assert (reply.tokens, reply.has_broken_logprobs) == ([("b", -0.5)], True)
    lists = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -0.5], "top_logprobs": [{"c": -0.3, "d": "x"}, None]}
    for value in (
        {"choices": [{"index": 0, "text": "ab", "logprobs": lists, "finish_reason": "stop"}]},
        chunk({"content": "ab"}, logprobs=lists),
    ):
        reply = read(value)
        assert (reply.text, reply.tokens, reply.has_broken_logprobs) == ("ab", [("a", -1.0), ("b", -0.5)], False)
        first, second = reply.message.whole["logprobs"]["content"]
        assert first["top_logprobs"] == [{"token": "c", "logprob": -0.3}]
        assert second["top_logprobs"] == []


@pytest.mark.parametrize("sent", [[{"token": "a", "logprob": -0.5}], {"content": [{"token": "a", "logprob": -0.5}]}])
def test_log_probabilities_in_the_message_are_read(sent):
    """A server may send them in the message and as a list. Any other value is not passed on."""
    for value in (whole({"content": "a", "logprobs": sent}), chunk({"content": "a", "logprobs": sent})):
        reply = read(value)
        assert (reply.tokens, len(reply.message.whole["logprobs"]["content"])) == ([("a", -0.5)], 1)
    for other in ("none", [1], {"content": 5}, 7):
        assert read(whole({"content": "a", "logprobs": other})).message.whole == {}


@pytest.mark.parametrize("field", ["annotations", "images", "thinking_blocks"])
def test_objects_of_a_list_in_several_chunks_have_an_index(field):
    """A client of OpenAI joins lists by the index of each object, unless the list comes once."""
    reply = ModelReply()
    deltas = []
    for each in ({"a": 1}, {"a": 2}, {"index": 7, "a": 3}):
        reply.take(chunk({field: [each]}))
        deltas.append(reply.delta[field][0])
    assert deltas == [{"a": 1}, {"index": 1, "a": 2}, {"index": 7, "a": 3}]
    assert read(chunk({"mine": 1}), chunk({"mine": [{"a": 1}]})).message.whole == {"mine": 1}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x" * (MAX_TEXT + 1)},
        {"reasoning": "x" * (MAX_MESSAGE + 1)},
        {"mine": ["x" * MAX_TEXT] * 5},
        {"mine": [1] * (MAX_MESSAGE + 1)},
        {"tool_calls": [{"id": "x" * (MAX_MESSAGE + 1), "function": {"name": "f"}}]},
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "x" * (MAX_MESSAGE + 1)}}]},
        {"tool_calls": [{"id": "a", "function": {"name": "f"}}] * (MAX_CALLS + 1)},
    ],
    ids=["text", "reasoning", "field", "list", "id", "arguments", "calls"],
)
def test_a_message_beyond_the_cap_fails_at_once(message):
    """One cap holds for the whole message, and one for its calls, whole and in chunks."""
    for value in (whole(message), chunk(message)):
        with pytest.raises(BrokenReply, match="more than"):
            ModelReply().take(value)
    reply = ModelReply()
    for at in range(MAX_CALLS):
        reply.take(piece("{}", name="f", index=at, id=f"c{at}"))
    with pytest.raises(BrokenReply, match="more than"):
        reply.take(piece("{}", name="f", index=MAX_CALLS, id="last"))


def test_a_field_that_is_too_deep_or_no_json_is_left_out():
    """Fields that no parser takes lose what is wrong with them; the answer stands."""
    deep = {"a": 1}
    for _ in range(200):
        deep = {"a": [deep]}
    reply = read(whole({"content": "Rome", "mine": {"deep": deep, "number": float("inf"), "text": "\ud800"}}))
    assert reply.text == "Rome"
    assert reply.message.whole["mine"] | {"deep": 0} == {"deep": 0, "number": None, "text": "\ufffd"}


def test_further_fields_of_a_reply_are_kept():
    """The last value of each field counts; lists of a streamed choice and objects are joined; null tells nothing."""
    usage = {"prompt_tokens": 3, "cost": 0.25, "num_search_queries": 2}
    reply = read(
        {**chunk({"content": "Ro"}, token_ids=[1], hate={"filtered": False}), "citations": ["a"], "provider": "x"},
        {**chunk({"content": "me"}, token_ids=[2], hate={"severity": "safe"}), "citations": ["a", "b"]},
        {**chunk({}, "stop", stop_reason=7), "id": "up-1", "citations": None, "x_groq": {"id": "r"}, "usage": usage},
    )
    assert (reply.text, reply.dollars, reply.omitted) == ("Rome", 0.25, set())
    assert reply.more == {
        "more": {"citations": ["a", "b"], "provider": "x", "x_groq": {"id": "r"}},
        "choice": {"token_ids": [1, 2], "hate": {"filtered": False, "severity": "safe"}, "stop_reason": 7},
        "usage": {"cost": 0.25, "num_search_queries": 2},
    }


def test_further_fields_that_are_too_large_cost_no_answer():
    """They are left out by their names, and nothing else is."""
    long = "x" * (MAX_MESSAGE // 2)
    reply = read({**whole({"content": "Rome"}), "results": [long, long], "object": "x"}, {"a\ud800": "b"})
    assert (reply.text, reply.more["more"], reply.omitted) == ("Rome", {}, {"results", "a\ufffd"})
    assert read({**whole({"content": "Rome"}), "a": [float("nan")]}).more["more"] == {"a": [None]}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MAX_MESSAGE}}


@pytest.mark.parametrize(
    "message",
    [{"content": "Here.", "images": [IMAGE]}, {"content": [{"type": "text", "text": "Here."}, IMAGE]}],
)
@pytest.mark.parametrize("form", [whole, chunk])
def test_images_have_a_cap_of_their_own(message, form):
    """An image of the answer may be larger than all text, in a field or among the parts; a larger one fails."""
    reply = read(form(message, "stop"))
    images = [{name: one[name] for name in IMAGE} for one in reply.message.whole["images"]]
    assert (reply.text, images, reply.size) == ("Here.", [IMAGE], 5)
    with pytest.raises(BrokenReply, match="more than 10 characters of images") as broken:
        read(form(message), max_media=10)
    assert "media_chars" in broken.value.remedy


def test_an_answer_in_audio_comes_in_pieces():
    """Its data and transcript are joined, and it needs no text."""
    pieces = [{"id": "a1", "data": "AA"}, {"data": "BB", "transcript": "Ro"}, {"transcript": "me", "expires_at": 5}]
    reply = read(*(chunk({"audio": one}) for one in pieces))
    assert reply.message.whole["audio"] == {"id": "a1", "data": "AABB", "transcript": "Rome", "expires_at": 5}


@pytest.mark.parametrize(
    "value",
    [
        whole({"content": [{"type": "image"}] * (MAX_PARTS + 1)}),
        whole({"content": [{"type": "thinking", "thinking": "a"}] * (MAX_PARTS + 1)}),
        whole({"thinking_blocks": [{"a": 1}] * (MAX_PARTS + 1)}),
        {"choices": [{"index": 0, "delta": {"content": "a", "x": [1]}}] * (MAX_CALLS + 1)},
    ],
    ids=["images", "thoughts", "blocks", "choices"],
)
def test_the_objects_of_a_reply_are_counted(value):
    """A value with more parts, blocks or choices than a message may have fails, since each of them takes time."""
    with pytest.raises(BrokenReply, match="more than"):
        read(value)


def test_an_answer_is_not_lost_to_a_long_list():
    """A list of too many objects under an unknown name is left out and named; the answer stands."""
    reply = read(whole({"content": "a", "mine": [{}] * (MAX_PARTS + 1)}))
    assert (reply.text, reply.message.whole, reply.omitted) == ("a", {}, {"mine"})


@pytest.mark.parametrize("field", ["arguments", "reasoning_content", "content"])
def test_a_text_in_many_pieces_is_joined_once(field, monkeypatch):
    """The pieces of arguments, of thoughts and of the text are not copied again for each of the pieces after them."""
    joined = []
    whole_text = GrowingText.__str__
    monkeypatch.setattr(GrowingText, "__str__", lambda self: joined.append(1) or whole_text(self))
    reply = ModelReply()
    for number in range(500):
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "[" if not number else "1,"}}
        reply.take(chunk({"tool_calls": [call]} if field == "arguments" else {field: "1,"}))
    message = {"content": reply.text, **reply.message.whole}
    text = message["tool_calls"][0]["function"]["arguments"] if field == "arguments" else message[field]
    assert (len(text), len(joined) < 5) == (999 if field == "arguments" else 1000, True)


def test_what_a_reader_got_does_not_grow():
    """A delta that was passed on keeps its lists and objects when later deltas join the message."""
    parts = MessageParts()
    first = {"annotations": [{"a": 1}], "audio": {"id": "x", "list": [1]}}
    parts.add(first)
    parts.add({"annotations": [{"a": 2}], "audio": {"list": [2]}})
    assert first == {"annotations": [{"a": 1}], "audio": {"id": "x", "list": [1]}}
    assert parts.whole == {"annotations": [{"a": 1}, {"a": 2}], "audio": {"id": "x", "list": [1, 2]}}
