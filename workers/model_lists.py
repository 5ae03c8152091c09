"""Model servers: the one that a configuration is drafted for, and what its list of models says of each."""

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from rich.markup import escape

from ragbandit.router.cli.console import errors
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.outbound import shown_address
from ragbandit.shared.redaction import credentials_in, without_secrets

#: servers of one machine, each with the port that it takes by default
USUAL_PORTS: Final = {"Ollama": 11434, "vLLM": 8000, "llama.cpp": 8080, "LM Studio": 1234}
OPENAI: Final = "https://api.openai.com/v1"
#: wait for a server that the user named, and for one that may not be there
_NAMED_S: Final = 10.0
_GUESSED_S: Final = 1.0
#: models that write no answers to questions
_OTHER_USES: Final = re.compile(
    r"embed|rerank|whisper|tts|dall-e|moderation|image|audio|realtime|transcribe|sora|diffusion|guard", re.IGNORECASE
)
#: tokens that a context may have; other numbers stand for "not known"
_LEAST_CONTEXT, _MOST_CONTEXT = 256, 1e9
#: most names of models in a message
MOST_NAMED: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model that a server lists."""

    name: str
    #: tokens of prompt and answer together; None if the list lacks them
    context_tokens: int | None = None
    #: seconds since 1970; 0 or less: not known
    created: float = 0.0
    #: what it takes in addition to text, and dollars per million tokens; None if the list lacks them
    supports: tuple[str, ...] | None = None
    price: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelServer:
    """A server, with the models on it that write answers."""

    url: str
    models: tuple[Model, ...]


def find_server(*, url: str | None, key_env: str, environ: Mapping[str, str]) -> ModelServer | None:
    """The server of this URL, else of OPENAI_BASE_URL, else OpenAI if its key is set, else one on a usual port.

    key_env: the variable with the key, which is sent only to named servers. Returns None if no server is there.
    Raises ConfigError if a named server gives no list of models.
    """
    key = environ.get(key_env)
    names = {"--url": url, "OPENAI_BASE_URL": environ.get("OPENAI_BASE_URL"), key_env: OPENAI if key else None}
    for source, named in names.items():
        if named:
            return _listed(named, key=key, source=source)
    for port in USUAL_PORTS.values():
        with contextlib.suppress(ConfigError):
            return _listed(f"http://127.0.0.1:{port}/v1", key=None, source="")
    return None


def _listed(url: str, *, key: str | None, source: str) -> ModelServer:
    """The server with its models. source: option or variable that named it, or "". Raises ConfigError."""
    if credentials_in(url, field="url") is not None:
        message = "the address has a user, a password or a key in it, and would stand in the file"
        raise ConfigError(message, field=source, remedy="set the key by the variable that --key-env names")
    try:
        base = httpx.URL(url).copy_with(fragment=None)
        base = base.copy_with(path=base.path.rstrip("/") or "/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = _NAMED_S if source else _GUESSED_S
        asked = base.copy_with(path=f"{base.path}/models")
        response = httpx.get(asked, headers=headers, timeout=timeout, trust_env=bool(source))
        rows, name = _rows(response.raise_for_status().json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        fault = f"status {status}" if status else f"{type(error).__name__}: {without_secrets(str(error))}"
        message = f"{shown_address(url)} gives no list of models: {fault}"
        remedy = "check the address and that the server runs; the key is read from the variable that --key-env names"
        raise ConfigError(message, field=source, remedy=remedy) from error
    shown = shown_address(str(base))
    unread = [f"{row!r:.60}" for row in rows if not _is_name(row.get(name))]
    if unread:
        message = f"{shown}/models: rows without {name} are left out: {', '.join(unread[:MOST_NAMED])}"
        errors.print(escape(message), soft_wrap=True, highlight=False)
    models = {str(row[name]): _model(row, name=row[name]) for row in rows if _is_name(row.get(name))}
    chats = tuple(model for model in models.values() if not _OTHER_USES.search(model.name))
    if not chats:
        raise ConfigError(f"{shown} lists no model that answers questions", field=source, remedy="load one there")
    return ModelServer(url=str(base), models=chats)


def _rows(tree: Any) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of a list, bare or under `data` or `models`, and their key of a model's name. Raises ValueError."""
    lists = [tree, *(tree.get(name) for name in ("data", "models"))] if isinstance(tree, Mapping) else [tree]
    known = next((rows for rows in lists if isinstance(rows, list)), None)
    if known is None:
        raise ValueError("the reply is no list, and has none under `data` or `models`")
    rows = [row if isinstance(row, Mapping) else {"id": row} for row in known]
    return rows, next((name for name in _NAMES if any(_is_name(row.get(name)) for row in rows)), "id")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


#: keys of a model's name in a row; keys of its context in tokens, as it is served before what it could have
_NAMES: Final = ("id", "name", "model")
_CONTEXTS: Final = (
    *("max_model_len", "n_ctx", "loaded_context_length", "num_ctx", "context_length", "context_window"),
    *("max_context_length", "max_input_tokens", "inputTokenLimit", "input_token_limit", "context_size"),
    *("max_context_window_tokens", "max_context_tokens", "context_tokens", "max_position_embeddings", "n_ctx_train"),
)
#: objects in a row that may have them
_PARTS: Final = ("meta", "metadata", "top_provider", "limits", "capabilities", "model_info", "details")


def _model(row: Mapping[str, Any], *, name: str) -> Model:
    """The model of a row."""
    parts = [row, *(part for key in _PARTS if isinstance(part := row.get(key), Mapping))]
    parts += [limits for part in parts[1:] if isinstance(limits := part.get("limits"), Mapping)]
    contexts = (_number(part.get(key)) for key in _CONTEXTS for part in parts)
    return Model(
        name=name,
        context_tokens=next((int(tokens) for tokens in contexts if _LEAST_CONTEXT <= tokens <= _MOST_CONTEXT), None),
        created=_number(row.get("created")),
        supports=_supports(row),
        price=_price(row.get("pricing")),
    )


def _number(value: object) -> float:
    """The value as a number from 0 on, which may be written as text; -1 for anything else."""
    try:
        read = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        return -1.0
    return read if 0.0 <= read < math.inf else -1.0


#: words of OpenRouter's lists -> ours
_ABILITIES: Final = {
    "tools": "tools",
    "response_format": "json",
    "structured_outputs": "json",
    "logprobs": "logprobs",
    "image": "images",
    "file": "files",
    "audio": "audio",
}
_PRICES: Final = {"prompt": "input", "completion": "output", "input_cache_read": "cached_input"}


def _supports(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What a model takes in addition to text, in the form of OpenRouter's lists; None if the row lacks it."""
    parameters, architecture = row.get("supported_parameters"), row.get("architecture")
    if not isinstance(parameters, list) or not isinstance(architecture, Mapping):
        return None
    modalities = architecture.get("input_modalities")
    words = [*parameters, *(modalities if isinstance(modalities, list) else ())]
    return tuple(sorted({_ABILITIES[word] for word in words if isinstance(word, str) and word in _ABILITIES}))


def _price(pricing: object) -> Mapping[str, float] | None:
    """Dollars per million tokens, from dollars per token; None if that of input or output is missing."""
    if not isinstance(pricing, Mapping):
        return None
    numbers = {ours: _number(pricing.get(theirs)) * 1e6 for theirs, ours in _PRICES.items()}
    price = {name: dollars for name, dollars in numbers.items() if dollars >= 0.0}
    return price if {"input", "output"} <= price.keys() else None
