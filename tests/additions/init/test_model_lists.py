"""Lists of models as servers give them: names, contexts, prices; rows that name no model."""

import httpx
import pytest

from ragbandit.additions.init import model_lists
from ragbandit.additions.init.model_lists import find_server
from ragbandit.shared.errors import ConfigError


@pytest.fixture
def listed(monkeypatch):
    """A function: the server that gives this list, by the URL that is named."""
    asked = []

    def found(tree, url="http://host.example/api"):
        def get(address, **_):
            asked.append(str(address))
            more = {"headers": {"location": tree}} if isinstance(tree, str) else {"json": tree}
            return httpx.Response(307 if isinstance(tree, str) else 200, request=httpx.Request("GET", address), **more)

        monkeypatch.setattr(model_lists.httpx, "get", get)
        return find_server(url=url, key_env="NO_KEY", environ={})

    found.asked = asked
    return found


def names(server):
    return [model.name for model in server.models]


@pytest.mark.parametrize(
    "tree",
    [
        [{"id": "a"}, {"id": "b"}],
        ["a", "b"],
        {"data": [{"id": "a"}, None, {"id": " "}, 5, {"name": "c"}, {"id": "b"}, {"id": "a"}]},
        {"data": None, "models": [{"name": "a", "model": "x"}, {"name": "b"}]},
        {"models": [{"model": "a"}, {"model": "b"}, {"id": 7}]},
        {"data": [], "models": [{"name": "a"}, {"name": "b"}]},
        {"object": "list", "data": [{"id": "a"}, {"id": "b"}, {"id": "text-embed"}], "models": [{"name": "c"}]},
    ],
)
def test_forms_of_a_list(listed, tree):
    """Bare or under `data` or `models`, by one key for the names; rows without it are passed over."""
    assert names(listed(tree)) == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "context"),
    [
        ({}, None),
        ({"max_model_len": None, "context_length": 4000}, 4000),
        ({"context_length": "4000"}, 4000),
        ({"context_window": 4000.0}, 4000),
        ({"meta": {"n_ctx_train": 9000, "n_ctx": 4000}}, 4000),
        ({"top_provider": {"context_length": 4000}}, 4000),
        ({"inputTokenLimit": 4000}, 4000),
        ({"capabilities": {"limits": {"max_context_window_tokens": 4000}}}, 4000),
        ({"context_length": -1, "max_context_length": 0, "n_ctx": True, "context_window": "large"}, None),
        ({"context_length": float("1e308"), "meta": ["n_ctx"], "n_ctx": {"x": 1}}, None),
    ],
)
def test_contexts(listed, row, context):
    """The context is read under every name in use; without a number of tokens it is not known."""
    assert listed([{"id": "a", **row}]).models[0].context_tokens == context


@pytest.mark.parametrize(
    ("pricing", "price"),
    [
        ({"prompt": "1e-6", "completion": 2e-6, "input_cache_read": None}, {"input": 1.0, "output": 2.0}),
        ({"prompt": "1e-6"}, None),
        ({"prompt": "-1", "completion": "-1"}, None),
        ({"prompt": {}, "completion": "free"}, None),
        ("free", None),
    ],
)
def test_prices(listed, pricing, price):
    """A price is known if that of input and of output is; others are read if they are numbers."""
    row = {"id": "a", "pricing": pricing, "created": "1700000000", "supported_parameters": ["tools", None, {}]}
    model = listed([row | {"architecture": {"input_modalities": "text"}}]).models[0]
    assert model.price == (price and pytest.approx(price))
    assert (model.supports, model.created) == (("tools",), 1.7e9)


def test_addresses(listed):
    """The path of the list is added before a query, which stays in the address."""
    server = listed(["a"], url="http://host.example/x/?api-version=1")
    assert (server.url, listed.asked[-1]) == (
        "http://host.example/x?api-version=1",
        "http://host.example/x/models?api-version=1",
    )
    assert listed(["a"], url="http://host.example").url == "http://host.example/v1"
    assert listed(["a"], url="http://host.example/a%2Fb").url == "http://host.example/a%2Fb"
    assert listed.asked[-1] == "http://host.example/a%2Fb/models"


@pytest.mark.parametrize("tree", [{}, {"data": {}}, {"models": 5}, "a", None, [], [{"name": None}], ["whisper"]])
def test_what_is_no_list(listed, tree):
    """Without a model that answers questions the address is refused."""
    with pytest.raises(ConfigError, match=r"no list of models|lists no model"):
        listed(tree)


def test_a_redirect_is_not_followed(listed):
    """A server that redirects is an error with the new address, without secrets."""
    with pytest.raises(ConfigError, match=r"https://other\.example/v1") as error:
        listed("https://me:SECRET@other.example/v1?key=SECRET")
    assert "SECRET" not in error.value.message
