"""Messages in pieces: what deltas make together, and what is missing to a whole."""

from ragbandit.shared.dialects.chat.message_parts import MessageParts
from ragbandit.shared.model_servers.openai_client import connect
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, base_url_of

WHOLE = {
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
        {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ],
    "reasoning_content": "I ask.",
    "logprobs": {"content": [{"token": "a"}, {"token": "b"}]},
}


def called(index, arguments, **more):
    return {"tool_calls": [{"index": index, **more, "function": {"arguments": arguments}}]}


def parts(*deltas):
    message = MessageParts()
    for delta in deltas:
        message.add(delta)
    return message


def test_pieces_make_the_whole():
    """Arguments, texts and log-probabilities grow; ids and names come once."""
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    message = parts(
        {"reasoning_content": "I "},
        {"reasoning_content": "ask."},
        {"tool_calls": [first]},
        called(0, '{"city": '),
        called(0, '"Paris"}'),
        {"logprobs": {"content": [{"token": "a"}]}},
        {"tool_calls": [{"index": 1, **WHOLE["tool_calls"][1]}]},
        {"logprobs": {"content": [{"token": "b"}]}},
    )
    assert message.whole == WHOLE
    assert message.rest(WHOLE) == {}


def test_the_rest_of_a_whole():
    """What was given out is not given again; what contradicts the whole has no rest."""
    assert parts().rest(WHOLE)["tool_calls"] == [{"index": at, **call} for at, call in enumerate(WHOLE["tool_calls"])]
    begun = parts({"tool_calls": [{"index": 0, **WHOLE["tool_calls"][0], "function": {"name": "weather"}}]})
    rest = begun.rest(WHOLE)
    assert rest["tool_calls"][0] == {"index": 0, "function": {"arguments": '{"city": "Paris"}'}}
    begun.add(rest)
    assert begun.whole == WHOLE
    assert parts({"reasoning_content": "You ask."}).rest(WHOLE) is None
    assert parts(called(0, "{}", id="c9")).rest(WHOLE) is None


def test_a_query_of_the_address(monkeypatch):
    """A query of the base URL, from the setting or the environment, goes with every request, and not into the path."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://host.example/b?flag=")
    given = {"key": None, "headers": {}}
    azure = connect(base_url="http://host.example/openai/deployments/a?api-version=1&x=%20", **given)
    assert azure.url == "http://host.example/openai/deployments/a/chat/completions?api-version=1&x=%20"
    assert connect(base_url=base_url_of(OpenAiOptions()), **given).url == "http://host.example/b/chat/completions?flag="
    for bare in ("https://host.example", "https://host.example/", "https://host.example?v=1", "http://host.example:81"):
        host, _, query = connect(base_url=bare, **given).url.partition("/chat/completions")
        assert (host, query) == (bare.partition("?")[0].rstrip("/"), "?v=1" if "?" in bare else "")
