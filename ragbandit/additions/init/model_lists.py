"""Finds the model server for a first configuration, and reads its list of models."""

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from rich.markup import escape

from ragbandit.additions.init.model_abilities import supports_of
from ragbandit.router.cli.console import errors
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.outbound import shown_address
from ragbandit.shared.proxies import httpx_options
from ragbandit.shared.texts.redaction import credentials_in, without_secrets

#: product -> its default port
USUAL_PORTS: Final = {"Ollama": 11434, "vLLM": 8000, "llama.cpp": 8080, "LM Studio": 1234}
OPENAI: Final = "https://api.openai.com/v1"
#: parts of the names of models that do not answer questions
_OTHER_USES: Final = re.compile(
    r"embed|rerank|whisper|tts|dall-e|moderation|image|audio|realtime|transcribe|sora|diffusion|guard", re.IGNORECASE
)
_EMBEDDINGS: Final = re.compile(r"embed|\b(bge|e5|gte|minilm)\b(?!.*rerank)", re.IGNORECASE)
#: kinds of models that do not answer questions, in lists that have kinds (Together, LM Studio)
_OTHER_KINDS: Final = ("embedding", "embeddings", "image", "rerank", "moderation", "audio", "transcribe", "video")
MOST_NAMED: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """A model in a server's list. None means that the list does not contain the fact."""

    name: str
    #: maximum number of tokens of prompt and answer together
    context_tokens: int | None = None
    #: seconds since 1970; 0 or less if unknown
    created: float = 0.0
    #: supported features besides text, as in `generator.supports`
    supports: tuple[str, ...] | None = None
    #: dollars per million tokens
    price: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCatalog:
    url: str
    #: models that answer questions
    models: tuple[ModelDescription, ...]
    #: models for embeddings
    embeddings: tuple[ModelDescription, ...] = ()
    #: API key for the server
    key: str | None = field(default=None, repr=False)


def find_server(*, url: str | None, key_env: str, environ: Mapping[str, str]) -> ModelCatalog | None:
    """The server at `url`, else at OPENAI_BASE_URL, else OpenAI if its key is set, else the first on a usual port.

    key_env: name of the variable with the key, which servers on usual ports do not get. Returns None if there is no
    server. Raises ConfigError if a server gives no list of models, except on usual ports.
    """
    key = environ.get(key_env)
    urls = {"--url": url, "OPENAI_BASE_URL": environ.get("OPENAI_BASE_URL"), key_env: OPENAI if key else None}
    for source, address in urls.items():
        if address:
            return _read_catalog(address, key=key, source=source)
    for port in USUAL_PORTS.values():
        with contextlib.suppress(ConfigError):
            return _read_catalog(f"http://127.0.0.1:{port}/v1", key=None, source="")
    return None


def _read_catalog(url: str, *, key: str | None, source: str) -> ModelCatalog:
    """The server with its models. source: option or variable with the URL; "" for a usual port. Raises ConfigError."""
    if credentials_in(url, field="url") is not None:
        message = "the address has a user, a password or a key in it, and would stand in the file"
        raise ConfigError(message, field=source, remedy="set the key by the variable that --key-env names")
    try:
        given = httpx.URL(url).copy_with(fragment=None)
        path = given.raw_path.partition(b"?")[0].decode().rstrip("/") or "/v1"
        base, list_url = (given.copy_with(path=each) for each in (path, f"{path}/models"))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        response = httpx.get(list_url, headers=headers, timeout=10.0 if source else 1.0, **httpx_options(url))
        rows, name = _find_rows(response.raise_for_status().json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        is_plain = status is not None and status >= 400  # the text of the error about a redirect has the new address
        fault = f"status {status}" if is_plain else f"{type(error).__name__}: {without_secrets(str(error))}"
        message = f"{shown_address(url)} gives no list of models: {fault}"
        remedy = "check the address and that the server runs; the key is read from the variable that --key-env names"
        raise ConfigError(message, field=source, remedy=remedy) from error
    shown = shown_address(str(base))
    unread = [f"{row!r:.60}" for row in rows if not _is_name(row.get(name))]
    if unread:
        message = f"{shown}/models: rows without {name} are left out: {', '.join(unread[:MOST_NAMED])}"
        errors.print(escape(message), soft_wrap=True, highlight=False)
    named = {str(row[name]): row for row in rows if _is_name(row.get(name))}
    models = {each: _describe_model(row, name=each) for each, row in named.items()}
    others = {each for each, row in named.items() if _OTHER_USES.search(each) or row.get("type") in _OTHER_KINDS}
    others |= {each for each in models if _EMBEDDINGS.search(each)}
    chats = tuple(model for each, model in models.items() if each not in others)
    if not chats:
        raise ConfigError(f"{shown} lists no model that answers questions", field=source, remedy="load one")
    embeddings = (each for each, row in named.items() if _EMBEDDINGS.search(each) or "embed" in str(row.get("type")))
    return ModelCatalog(url=str(base), models=chats, embeddings=tuple(map(models.__getitem__, embeddings)), key=key)


def _find_rows(tree: Any) -> tuple[list[Mapping[str, Any]], str]:
    """Find the list of models, which may be under `data` or `models`. Returns (rows, key of a row's name)."""
    lists = [tree.get("data"), tree.get("models")] if isinstance(tree, Mapping) else [tree]
    models = max((rows for rows in lists if isinstance(rows, list)), key=len, default=None)
    if models is None:
        raise ValueError("the reply is not a list, and has no list under `data` or `models`")
    rows = [row if isinstance(row, Mapping) else {"id": row} for row in models]
    names = ("id", "name", "model")
    return rows, next((name for name in names if any(_is_name(row.get(name)) for row in rows)), "id")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


#: possible keys of the context length in tokens: first the served length, then the model's maximum
_CONTEXTS: Final = (
    *("max_model_len", "n_ctx", "loaded_context_length", "num_ctx", "context_length", "context_window"),
    *("max_context_length", "max_input_tokens", "inputTokenLimit", "input_token_limit", "context_size"),
    *("max_context_window_tokens", "max_context_tokens", "context_tokens", "max_position_embeddings", "n_ctx_train"),
)
#: objects in a row that may contain the context length
_PARTS: Final = ("meta", "metadata", "top_provider", "limits", "capabilities", "model_info", "details")


def _describe_model(row: Mapping[str, Any], *, name: str) -> ModelDescription:
    parts = [part for part in (row, *map(row.get, _PARTS)) if isinstance(part, Mapping)]
    parts += [part["limits"] for part in parts[1:] if isinstance(part.get("limits"), Mapping)]
    contexts = (_number(part.get(key)) for key in _CONTEXTS for part in parts)
    return ModelDescription(
        name=name,
        context_tokens=next((int(tokens) for tokens in contexts if 256 <= tokens <= 1e9), None),  # if plausible
        created=_number(row.get("created")),
        supports=supports_of(row),
        price=_price(row.get("pricing")),
    )


def _number(value: object) -> float:
    """A finite number >= 0, or the text of one, as float; -1 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return -1.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return -1.0
    return number if 0.0 <= number < math.inf else -1.0


_PRICES: Final = {"prompt": "input", "completion": "output", "input_cache_read": "cached_input"}


def _price(pricing: object) -> Mapping[str, float] | None:
    """Dollars per million tokens, from dollars per token; None if the price of input or output is missing."""
    if not isinstance(pricing, Mapping):
        return None
    numbers = {name: _number(pricing.get(key)) * 1e6 for key, name in _PRICES.items()}
    price = {name: dollars for name, dollars in numbers.items() if dollars >= 0.0}
    return price if {"input", "output"} <= price.keys() else None
