"""Needs of requests and abilities of arms: which arms can answer a request, and what the others lack.

Chats may need tools, images, files, audio, answers in a given format (`json`) or log-probabilities. Arms of the class
`model` pass chats on to a generator with the abilities in `generator.supports`; other arms read and write only text. An
arm with the param `effort` can answer only a request that allows this effort.
A chat has the need `chat` if only a model can answer it: it asks for audio, has parts other than text, images, files
and audio, ends with a question that is too long for features, or does not end with a question.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from ragbandit.router.config.named_sections import DEFAULT
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.shared.dialects.registry import NATIVE_NEEDS, conversation_parameters
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.efforts import EFFORTS, sent_effort
from ragbandit.shared.model_servers.refusals import too_long_message
from ragbandit.shared.types import NO_CONVERSATION, ArmName, Json, Query

_CONTEXT: Final = "context"
#: need of chats that only a model can read; every arm that passes chats on has this ability
CHAT: Final = "chat"
#: fields of a request, and of `Sent`: the lowest and the highest effort that the caller allows
BOUNDS: Final = ("effort_min", "effort_max")
#: name of the need for an allowed effort; an arm with the effort "low" has the ability "effort:low"
EFFORT: Final = "effort"
#: (abilities of an arm, context length in tokens or None if unknown)
Ability = tuple[frozenset[str], int | None]
#: need -> request parameters that can cause the need; messages can cause it, too
_PARAMETERS: Final = {
    "json": ("response_format",),
    "logprobs": ("logprobs", "top_logprobs"),
    "tools": ("tool_choice", "function_call"),
    CHAT: ("modalities", "audio"),
    EFFORT: ("reasoning_effort", "reasoning", *BOUNDS),
} | NATIVE_NEEDS
#: pattern of the names of parameters, tools and namespaces that are stored, and maximum number of ignored names
SHORT_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MOST_IGNORED: Final = 64
#: fields of a chat that the service itself reads, so `Sent.ignored` never lists them
_USED: Final = frozenset({"user", "safety_identifier", "metadata"})


class UnmetNeed(InvalidInput):
    code = "UNSUPPORTED_PARAMETER"


class ContextExceeded(UnmetNeed):
    """The prompt is too long for every arm; a shorter conversation can be answered."""

    code = "CONTEXT_LENGTH_EXCEEDED"


def passing_arms(
    worker_arms: Mapping[str, Mapping[str, Json]], *, generators: Mapping[str, GeneratorSettings]
) -> dict[ArmName, Ability]:
    """Arms that pass chats on unchanged -> their abilities."""
    arms = dict[ArmName, Ability]()
    for name, params in worker_arms.items():
        generator = generators.get(str(params.get("generator", DEFAULT)))
        is_model = params.get("class", name) == "model"
        if is_model and generator is not None and generator.server is not None and generator.server.api == "chat":
            abilities = {CHAT, *generator.supports, *(NATIVE_NEEDS.keys() & {generator.name})}
            if generator.server.logprobs:
                abilities.add("logprobs")
            if params.get(EFFORT) is not None:
                abilities.add(f"{EFFORT}:{params[EFFORT]}")
            arms[ArmName(name)] = (frozenset(abilities), generator.known_context)
    return arms


def unmet_needs(
    query: Query, *, arms: Collection[ArmName], passing: Mapping[ArmName, Ability]
) -> dict[ArmName, list[str]]:
    """Arm that may not answer this query -> its unmet needs. Optional needs count only if some arm meets all needs."""
    needs, optional = set(query.sent.needs), set(query.sent.optional_needs)
    size = query.sent.tokens or 0 if query.conversation.fields else 0
    forbidden = _forbidden_efforts(query)
    if not (needs or optional or passing):
        return {}
    for required in (needs | optional, needs):
        lacking: dict[ArmName, list[str]] = {}
        for arm in arms:
            abilities, context = passing.get(arm, (frozenset[str](), size))
            missing = required - abilities | ({EFFORT} if abilities & forbidden else set())
            if context is not None and size > context:
                missing |= {_CONTEXT}
            if missing:
                lacking[arm] = sorted(missing)
        if len(lacking) < len(arms):
            break
    return lacking


def _forbidden_efforts(query: Query) -> set[str]:
    """The abilities of arms whose effort the request does not allow. Raises InvalidInput for an unknown bound."""
    sent, bounds = sent_effort(query.conversation.fields), [getattr(query.sent, name) for name in BOUNDS]
    if sent is None and bounds == [None, None]:
        return set()
    for name, bound in zip(BOUNDS, bounds, strict=True):
        if bound is not None and bound not in EFFORTS:
            remedy = f"send one of {', '.join(EFFORTS)}"
            raise InvalidInput(f"{bound!r:.40} is not an effort", field=name, remedy=remedy)
    names = list[Json](EFFORTS)
    low, high = (names.index(bound or end) for bound, end in zip(bounds, (names[0], names[-1]), strict=True))
    return {f"{EFFORT}:{one}" for one in EFFORTS if one not in names[low : high + 1] or sent not in (None, one)}


def no_arm_error(
    query: Query, *, lacking: Mapping[ArmName, list[str]], passing: Mapping[ArmName, Ability]
) -> UnmetNeed:
    """The error for a request that no arm can answer."""
    windows = [passing[arm][1] or 0 for arm, lacks in lacking.items() if lacks == [_CONTEXT]]
    if windows:
        message = too_long_message(tokens=query.sent.tokens, most=max(windows))
        remedy = (
            "shorten the conversation, name another model, or configure an arm whose generator has more context_tokens"
        )
        return ContextExceeded(f"{message}, by the setting context_tokens", field="messages", remedy=remedy)
    unmet = sorted({need for lacks in lacking.values() for need in lacks})
    needs, field = ", ".join(unmet), "messages"
    for need in unmet:
        sent = {**{name: getattr(query.sent, name) for name in BOUNDS}, **query.conversation.fields}
        field = next((name for name in _PARAMETERS.get(need, ()) if sent.get(name)), field)
    able = "; ".join(_in_words(arm, ability=passing.get(arm)) for arm in lacking)
    message = f"no arm can answer this request: it needs {needs}"
    message += f", for some {query.sent.tokens} tokens" if _CONTEXT in needs else ""
    remedy = "leave that out, name another model, or configure an arm of the class model that has it: set"
    return UnmetNeed(f"{message} ({able})", field=field, remedy=f"{remedy} generator.supports, effort, context_tokens")


def without_chat(query: Query) -> Query:
    """The query of a chat for an arm that reads only the question; `Sent.ignored` lists the unused parameters."""
    sent = {name for name, value in query.conversation.fields.items() if value is not None} - _USED
    if sent:
        sent -= conversation_parameters(query.conversation)
    ignored = short_names({*query.sent.ignored, *sent})
    return replace(
        query, conversation=NO_CONVERSATION, sent=replace(query.sent, optional_needs=(), ignored=tuple(ignored))
    )


def short_names(names: Collection[str]) -> list[str]:
    """Names that a request contains, in the form to store, sorted. A name that SHORT_NAME does not match is "other"."""
    short = sorted({name if SHORT_NAME.fullmatch(name) else "other" for name in names})
    return short[:_MOST_IGNORED]


def _in_words(arm: str, *, ability: Ability | None) -> str:
    abilities, context = ability or (frozenset[str](), None)
    return f"{arm}: {', '.join(sorted(abilities)) or 'text'}" + (f" in {context} tokens" if context else "")
