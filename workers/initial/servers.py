"""Model servers: the OpenAI-compatible server of this machine, and which of its models are the small and the large one.

Only GET /v1/models is called, which costs nothing.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import did_you_mean
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
#: billions of parameters, as names tell them: "qwen2.5:14b", "Llama-3.2-3B-Instruct"
_BILLIONS: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
#: what the name of a smaller sibling ends with
_SMALLER: Final = ("mini", "small", "lite", "nano")
#: most names of models in a message
_NAMED: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model that a server lists."""

    name: str
    #: tokens of prompt and answer together, as the server tells; None: it does not
    context_tokens: int | None = None
    #: seconds since 1970; 0: the server does not tell
    created: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelServer:
    """A server, with the models on it that write answers."""

    url: str
    models: tuple[Model, ...]


def find_server(*, url: str | None, key_env: str, environ: Mapping[str, str]) -> ModelServer | None:
    """The server of this URL, else of OPENAI_BASE_URL, else OpenAI where its key is set, else one on a usual port.

    key_env: the variable with the key, which is sent to a named server alone. None: no server is there.
    Raises ConfigError where a named server gives no list of models.
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
    """The server with its models. source: option or variable that named it; "": nobody did. Raises ConfigError."""
    if credentials_in(url, field="url") is not None:
        message = "the address has a user, a password or a key in it, and would stand in the file"
        raise ConfigError(message, field=source, remedy="set the key by the variable that --key-env names")
    base = url.rstrip("/")
    try:
        base += "" if httpx.URL(base).path.strip("/") else "/v1"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = _NAMED_S if source else _GUESSED_S
        response = httpx.get(f"{base}/models", headers=headers, timeout=timeout, trust_env=bool(source))
        rows = response.raise_for_status().json()["data"]
        models = tuple(_model(row) for row in rows if not _OTHER_USES.search(row["id"]))
    except (httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        fault = f"status {status}" if status else f"{type(error).__name__}: {without_secrets(str(error))}"
        remedy = "check the address and that the server runs; the key is read from the variable that --key-env names"
        raise ConfigError(f"{base}/models gives no list of models: {fault}", field=source, remedy=remedy) from error
    if not models:
        raise ConfigError(f"{base} lists no model that answers questions", field=source, remedy="load one there")
    return ModelServer(url=base, models=models)


def _model(row: Mapping[str, Any]) -> Model:
    context, created = row.get("max_model_len"), row.get("created")  # the first is vLLM's
    return Model(
        name=str(row["id"]),
        context_tokens=context if isinstance(context, int) else None,
        created=float(created) if isinstance(created, int | float) else 0.0,
    )


def pick(server: ModelServer, *, wanted: Sequence[str]) -> tuple[tuple[Model, ...], str]:
    """The models to route between, at most two, the small one first; and why these, in words.

    wanted: their names as the user gave them. Raises ConfigError for a name that is not there, for more than two, and
    where names do not tell which of many models to take.
    """
    models = {model.name: model for model in server.models}
    names = ", ".join([*list(models)[:_NAMED], *(["..."] if len(models) > _NAMED else [])])
    unknown = [name for name in wanted if name not in models]
    if unknown or len(wanted) > 2:
        fault = f"has no model {unknown[0]!r}" if unknown else "is set up with two models at most"
        remedy = f"{did_you_mean(unknown[0], models) if unknown else ''}it has {names}"
        raise ConfigError(f"{server.url} {fault}", field="--model", remedy=remedy)
    if wanted:
        return tuple(models[name] for name in wanted), "as --model says"
    if len(models) == 1:
        return server.models, "the only one there"
    if pair := _by_size(server.models):
        return pair, "the smallest and the largest by name; --model takes others"
    if pair := _siblings(models):
        return pair, "a model and its smaller sibling by name; --model takes others"
    if len(models) == 2:
        return server.models, "in the server's order, since names tell no size; --model SMALL --model LARGE says it"
    remedy = "name one, or the small one and the large one: --model SMALL --model LARGE"
    raise ConfigError(f"{server.url} has {len(models)} models: {names}", field="--model", remedy=remedy)


def _by_size(models: Sequence[Model]) -> tuple[Model, ...]:
    """The smallest and the largest where every name tells a size, and they differ; else none."""
    sizes = [max(map(float, _BILLIONS.findall(model.name)), default=0.0) for model in models]
    if not all(sizes) or len(set(sizes)) == 1:
        return ()
    return models[sizes.index(min(sizes))], models[sizes.index(max(sizes))]


def _siblings(models: Mapping[str, Model]) -> tuple[Model, ...]:
    """The newest model that has a smaller sibling by name, after that sibling; else none."""
    names = [(f"{large}-{ending}", large) for large in models for ending in _SMALLER]
    pairs = [(models[small], models[large]) for small, large in names if small in models]
    return max(pairs, key=lambda pair: pair[1].created, default=())
