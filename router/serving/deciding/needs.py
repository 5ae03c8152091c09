"""Needs of requests and abilities of arms: an arm that cannot do what a request needs is not offered for it.

Requests in chats may bring tools, images, files, audio, a form of the answer (`json`) or a wish for log-probabilities.
Arms of the class `model` pass them on to a generator that says what it takes (`generator.supports`); all other arms
answer questions of text in text. What only a model can read (parts of other types, a question that is too long for
features, a chat that does not end with a question) is the need `chat`. The row of a decision has the needs in
`request.needs`, the arms that were offered, and in the fact LACKING what the others lack.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from ragbandit.router.config.settings import DEFAULT, Settings
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Query

#: keys of a query's `request`: its needs, its optional needs, and an estimate of its tokens
NEEDS: Final = "needs"
OPTIONAL: Final = "optional_needs"
TOKENS: Final = "tokens"
#: the key of a decision's facts with the arms that could not do it: {arm: [what it lacks]}
LACKING: Final = "lacking"
_CONTEXT: Final = "context"
#: the messages as they came, which every arm that passes chats on is sent
CHAT: Final = "chat"
#: what an arm can do, and the tokens of its context; None: not known
Ability = tuple[frozenset[str], int | None]
#: need -> parameters that bring it, in addition to the messages
_PARAMETERS: Final = {
    "json": ("response_format",),
    "logprobs": ("logprobs", "top_logprobs"),
    "tools": ("tool_choice", "function_call"),
}


class UnmetNeed(InvalidInput):
    """No arm can do what a request needs."""

    code = "UNSUPPORTED_PARAMETER"


def passing_arms(settings: Settings) -> dict[ArmName, Ability]:
    """Arms that pass chats on as they came -> what they can do, and the tokens of their context."""
    arms = dict[ArmName, Ability]()
    for name, params in settings.worker_arms.items():
        generator = settings.named_generators.get(str(params.get("generator", DEFAULT)))
        is_model = params.get("class", name) == "model"
        if is_model and generator is not None and generator.name == "openai":
            told = {CHAT, *(["logprobs"] if generator.openai.logprobs else [])}
            arms[ArmName(name)] = (frozenset(generator.supports) | told, generator.known_context)
    return arms


def lacks_of(
    query: Query, *, arms: Collection[ArmName], passing: Mapping[ArmName, Ability]
) -> dict[ArmName, list[str]]:
    """Arms that may not answer this query -> the needs that they lack. An optional need counts if an arm meets it."""
    given = (query.request.get(key) for key in (NEEDS, OPTIONAL))
    hard, soft = ({str(need) for need in needs} if isinstance(needs, list) else set[str]() for needs in given)
    tokens = query.request.get(TOKENS)
    size = tokens if query.chat and isinstance(tokens, int) else 0
    lacking: dict[ArmName, list[str]] = {}
    for wanted in (hard | soft, hard) if hard or soft or passing else ():
        lacking = {}
        for arm in arms:
            abilities, context = passing.get(arm, (frozenset[str](), size))
            if missing := (wanted - abilities) | ({_CONTEXT} if size > (context or size) else set()):
                lacking[arm] = sorted(missing)
        if len(lacking) < len(arms):
            break
    return lacking


def no_arm(query: Query, *, lacking: Mapping[ArmName, list[str]], passing: Mapping[ArmName, Ability]) -> UnmetNeed:
    """The error for a request that no arm can answer, with what each could do."""
    unmet = sorted({need for lacks in lacking.values() for need in lacks})
    needs, field = ", ".join(unmet), "messages"
    for need in unmet:
        field = next((name for name in _PARAMETERS.get(need, ()) if query.chat.get(name)), field)
    able = "; ".join(_in_words(arm, ability=passing.get(arm)) for arm in lacking)
    message = f"no arm can answer this request: it needs {needs}"
    tokens = query.request.get(TOKENS)
    message += f", for some {tokens} tokens" if _CONTEXT in needs else ""
    remedy = "leave that out, name another model, or configure an arm of the class model whose generator.supports"
    return UnmetNeed(f"{message} ({able})", field=field, remedy=f"{remedy} or context_tokens have it")


def as_text(query: Query) -> Query:
    """The query of a chat for an arm that reads only the question; parameters that it cannot use are in `ignored`."""
    known = query.request.get("ignored")
    unused = query.chat.keys() - {"messages"}
    ignored = sorted({*(known if isinstance(known, list) else ()), *unused})
    request = {name: value for name, value in query.request.items() if name != OPTIONAL}
    return replace(query, chat={}, request=request | ({"ignored": ignored} if ignored else {}))


def _in_words(arm: str, *, ability: Ability | None) -> str:
    abilities, context = ability or (frozenset[str](), None)
    return f"{arm}: {', '.join(sorted(abilities)) or 'text'}" + (f" in {context} tokens" if context else "")
