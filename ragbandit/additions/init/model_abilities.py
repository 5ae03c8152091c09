"""What models read and do besides text, as servers describe it in their lists of models or elsewhere."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import httpx

from ragbandit.shared.proxies import httpx_options

#: name of a feature in OpenRouter's list, which is complete -> our name
_FEATURES: Final = {
    "tools": "tools",
    "response_format": "json",
    "structured_outputs": "json",
    "logprobs": "logprobs",
    "image": "images",
    "file": "files",
    "audio": "audio",
}
#: name of a feature in lists of LiteLLM, Mistral, Ollama, llama.cpp, LM Studio and Anthropic -> our name
_WORDS: Final = {
    **dict.fromkeys(("supports_vision", "vision", "image", "image_input", "multimodal", "vlm"), "images"),
    **dict.fromkeys(("supports_function_calling", "function_calling", "tools", "tool_use"), "tools"),
    **dict.fromkeys(("supports_pdf_input", "pdf_input"), "files"),
    **dict.fromkeys(("supports_audio_input", "audio_input"), "audio"),
}
#: keys whose value has names of features: a list of names, or a mapping from names to bool
_PARTS: Final = ("capabilities", "modalities", "input_modalities", "input", "model_info", "architecture")
#: models of OpenAI that read images and files; OpenAI's list contains no abilities
_OPENAI: Final = re.compile(r"(chatgpt-)?(gpt-4o|gpt-4\.1|gpt-[5-9]|o4-mini|o[134](?!-mini)).*")
#: method and path of a description: LiteLLM's of all models, Ollama's of one model, LM Studio's of all models
_DESCRIPTIONS: Final = (("GET", "/v1/model/info"), ("POST", "/api/show"), ("GET", "/api/v0/models"))
_TIMEOUT_S: Final = 3.0


def supports_of(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The abilities of a model of a list, in our names; None if the row does not show whether it reads images."""
    features, architecture = row.get("supported_parameters"), row.get("architecture")
    if isinstance(features, list) and isinstance(architecture, Mapping):
        modalities = architecture.get("input_modalities")
        names = features + modalities if isinstance(modalities, list) else features
        return tuple(sorted({ours for name, ours in _FEATURES.items() if name in names}))
    abilities: dict[str, bool] = {}
    for name, is_able in _named_features(row):
        if name in _WORDS:
            abilities[_WORDS[name]] = abilities.get(_WORDS[name], False) or is_able
    if "images" not in abilities:
        return None
    lacking = {name for name, is_able in abilities.items() if not is_able}
    return tuple(sorted({"json", "tools", *abilities} - lacking))


def _named_features(row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield (name of a feature, whether the model has it) for all features that a row names."""
    if row.get("type") in ("llm", "vlm"):  # types of LM Studio
        yield "vlm", row["type"] == "vlm"
    for key, value in row.items():
        if isinstance(value, bool):
            yield key, value
        elif isinstance(value, Mapping) and isinstance(value.get("supported"), bool):
            yield key, value["supported"]
        elif isinstance(value, Mapping) and key in _PARTS:
            yield from _named_features(value)
        elif isinstance(value, list) and key in _PARTS:
            yield "image", False  # a True that follows, from the list, wins
            yield from ((name, True) for name in value if isinstance(name, str))


def abilities_by_model(names: Sequence[str], *, url: str, key: str | None) -> dict[str, tuple[str, ...]]:
    """Model -> its abilities, for models that a server describes outside its list. Sends no prompt to a model.

    Abilities of OpenAI's models follow from their names.
    """
    base, found = httpx.URL(url), dict[str, tuple[str, ...]]()
    if base.host == "api.openai.com":
        able, unable = ("files", "images", "json", "tools"), ("json", "tools")
        return {name: able if _OPENAI.fullmatch(name) else unable for name in names}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(headers=headers, timeout=_TIMEOUT_S, **httpx_options(url)) as client:
        for name in names:
            for method, path in _DESCRIPTIONS:
                body = {"model": name} if method == "POST" else None
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    reply = client.request(method, base.copy_with(path=path, query=None), json=body)
                    abilities = _abilities(reply.raise_for_status().json(), name=name)
                    if abilities is not None:
                        found[name] = abilities
                        break
    return found


def _abilities(tree: object, *, name: str) -> tuple[str, ...] | None:
    """The abilities of a model in its description, or in a description of all models."""
    if not isinstance(tree, Mapping):
        return None
    rows = tree.get("data")
    if not isinstance(rows, list):
        return supports_of(tree)
    row = next((row for row in rows if isinstance(row, Mapping) and name in (row.get("model_name"), row.get("id"))), {})
    return supports_of(row)
