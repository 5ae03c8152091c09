"""Headers of questions: facts about its questions that a request sends in headers, at every interface.

The edge reads them once, before the body. It refuses a header that leaves open whether a rule of the operator applies:
a client may have sent one value, and a proxy another.

Other modules read headers that concern no question:

- server.py: the address and the path of a proxy
- edge.py: whose request it is (the gate), its id and trace, and the form of its body
- routes.py: the parameters of an endpoint, as Idempotency-Key, and the type of a body
- asking.py: whether the caller chose the id of the request, which is then stored
- openai/endpoints.py: whether Open WebUI shows the reply
- app.py: pages for a browser
- additions: headers that only their interfaces have, which their docstrings name
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Final

from fastapi import Request
from starlette.datastructures import Headers

from ragbandit.router.api.request_state import QuestionHeaders, request_state
from ragbandit.router.api.schemas.requests import Malformed
from ragbandit.router.config.context_schema import ContextKey, ContextSchema
from ragbandit.router.config.rules import LONGEST_HEADER, UndecidedRule, is_valid_value, values_in_words
from ragbandit.router.serving.checks.questions import MAX_SESSION, checked_session, checked_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import UNITS, ArmName, DecisionUnit, Json

#: header of requests that are only previewed -> its values
PREVIEW: Final = "x-ragbandit-preview"
_PREVIEWS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}
#: headers of Codex with its conversation, which its sub-agents share, and with the thread of one agent
_CODEX_SESSIONS: Final = ("session_id", "session-id")
_CODEX_THREADS: Final = ("thread-id", "thread_id")
#: header of Codex with the thread that started this thread
_CODEX_PARENT: Final = "x-codex-parent-thread-id"
#: headers that name the conversation of a request; the first one that was sent counts. After ours come those of Claude
#: Code, Codex, Open WebUI, LibreChat, opencode and pi
_SESSIONS: Final = (
    "x-ragbandit-session-id",
    "x-claude-code-session-id",
    *_CODEX_SESSIONS,
    "conversation_id",
    "x-openwebui-chat-id",
    "x-librechat-conversation-id",
    "x-session-affinity",
    _CODEX_PARENT,
    *_CODEX_THREADS,
)
#: headers that name the agent that asks, unless it is the main agent of the conversation
_AGENTS: Final = ("x-ragbandit-agent", "x-claude-code-agent-id")
#: header of Codex with the kind of its sub-agent, and the kind that the main agent sends for a turn of its own
_CODEX_KIND: Final = "x-openai-subagent"
_OWN_TURN: Final = "compact"
#: headers with the id that a client gives the answer, and maximum characters of such an id
_MESSAGES: Final = ("x-openwebui-message-id",)
_LONGEST_MESSAGE: Final = 512
#: header that names the unit of the decision: turn or task
_UNIT: Final = "x-ragbandit-unit"
#: maximum characters of the name of an arm
_LONGEST_ARM: Final = 64
#: header that names the arm, in place of the body's model; if the body has `arms`, it must be one of them
ARM: Final = "x-ragbandit-arm"
#: names of all headers above, as bytes
_NAMES: Final = frozenset(
    name.encode() for name in (PREVIEW, *_SESSIONS, *_AGENTS, _CODEX_KIND, *_MESSAGES, _UNIT, ARM)
)
_name: Final = itemgetter(0)


_NOTHING: Final = QuestionHeaders()


def headers_of(request: Request) -> QuestionHeaders:
    """The headers of a request's questions, as the edge has read them."""
    return request_state(request.scope).headers or _NOTHING


def read_headers(request: Request, *, schema: ContextSchema, rule_keys: Collection[str], by_proxy: bool) -> None:
    """Read the headers of a request's questions, for `headers_of`. Raises InvalidInput.

    schema: setting `context`. rule_keys: context keys that rules read. by_proxy: whether a trusted proxy sent it.
    """
    if not schema and _NAMES.isdisjoint(map(_name, request.scope["headers"])):
        return
    headers = request.headers
    request_state(request.scope).headers = QuestionHeaders(
        context=_context(headers, schema=schema, rule_keys=rule_keys, by_proxy=by_proxy) if schema else {},
        session=_first_id(headers, _SESSIONS, check=checked_session),
        agent=_agent(headers),
        message=_first_id(headers, _MESSAGES, check=partial(checked_text, most=_LONGEST_MESSAGE)),
        unit=_unit(headers),
        arm=_arm(headers),
        is_preview=asks_preview(headers),
    )


def asks_preview(headers: Headers) -> bool:
    """Whether a request asks for a preview. Raises Malformed unless the header was sent once, as true or false."""
    values = headers.getlist(PREVIEW)
    if not values:
        return False
    preview = _PREVIEWS.get(values[0].strip().lower()) if len(values) == 1 else None
    if preview is None:
        sent = f"was sent {len(values)} times" if len(values) > 1 else f"is {values[0]!r:.40}"
        raise Malformed(f"the header {PREVIEW} {sent}", field=PREVIEW, remedy='send it once, as "true" or "false"')
    return preview


def _first_id(headers: Headers, names: Iterable[str], *, check: Callable[..., str]) -> str | None:
    """The first id in these headers; None if there is none. check: returns an id, or raises InvalidInput."""
    for name in names:
        for value in headers.getlist(name):
            value = _decoded(value)
            # A client that did not fill in its template sends {{...}}, which names nothing.
            if value and "{{" not in value:
                return check(value, field=name)
    return None


def _agent(headers: Headers) -> str | None:
    """The agent that asks; None for the main agent. A thread of Codex is a sub-agent unless it is the conversation's
    main thread. The kind of an agent counts only for releases of Codex that send no thread.
    """
    check = partial(checked_text, most=MAX_SESSION)
    agent = _first_id(headers, _AGENTS, check=check)
    if agent is not None:
        return agent
    thread = _first_id(headers, _CODEX_THREADS, check=check)
    if thread is None:
        kind = _first_id(headers, (_CODEX_KIND,), check=check)
        return None if kind == _OWN_TURN else kind
    root = _first_id(headers, _CODEX_SESSIONS, check=check) or _first_id(headers, (_CODEX_PARENT,), check=check)
    return None if root in (None, thread) else thread


def _unit(headers: Headers) -> DecisionUnit | None:
    given = ", ".join(value.strip() for value in headers.getlist(_UNIT))
    if given and given not in UNITS:
        raise InvalidInput(f"the unit {given!r:.40} is unknown", field=_UNIT, remedy=f"send {' or '.join(UNITS)}")
    return given or None


def _arm(headers: Headers) -> ArmName | None:
    sent = ", ".join(_decoded(value) for value in headers.getlist(ARM))
    return ArmName(checked_text(sent, field=ARM, most=_LONGEST_ARM)) if sent else None


def _context(headers: Headers, *, schema: ContextSchema, rule_keys: Collection[str], by_proxy: bool) -> dict[str, Json]:
    context = dict[str, Json]()
    for key, declared in schema.items():
        if declared.header is None or (declared.proxy and not by_proxy):
            continue
        sent = [_decoded(value) for value in headers.getlist(declared.header)]
        value = _ruled_value(sent, declared=declared) if key in rule_keys else _value(sent, declared=declared)
        if value is not None:
            context[key] = value
    return context


def _value(sent: Sequence[str], *, declared: ContextKey) -> Json:
    """The value of a header that no rule reads; None unless it was sent exactly once."""
    text = "" if len(sent) != 1 else sent[0][:LONGEST_HEADER]
    text = declared.map.get(text, text) if len(sent) < 2 else ""
    return header_value(text, declared=declared, field=str(declared.header)) if text else None


def _ruled_value(sent: Sequence[str], *, declared: ContextKey) -> Json:
    """The value of a header that rules read; None if it was not sent. Raises UndecidedRule if it is not certain."""
    header, text = str(declared.header), sent[0] if sent else ""
    text = declared.map.get(text, text)
    if len(sent) > 1:
        remedy = "send it once; a proxy has to replace what a client sends, not to add its own"
        raise _undecided(f"was sent {len(sent)} times", header=header, remedy=remedy)
    if not text:
        return None
    if len(text) > LONGEST_HEADER:
        raise _undecided(f"has {len(text)} characters", header=header, remedy=f"send at most {LONGEST_HEADER}")
    value = None
    with suppress(InvalidInput):
        value = header_value(text, declared=declared, field=header)
    is_certain = declared.values is not None or declared.type == "words" or text in declared.map.values()
    if not is_valid_value(value, declared=declared) or ("," in text and not is_certain):  # a comma may join two headers
        remedy = f"send {values_in_words(declared)}, once; letter case counts"
        raise _undecided(f"is {text!r:.80}", header=header, remedy=remedy)
    return value


def _undecided(fault: str, *, header: str, remedy: str) -> UndecidedRule:
    return UndecidedRule(f"the header {header} {fault}, and a rule reads it", field=header, remedy=remedy)


def _decoded(value: str) -> str:
    """The value of a header as UTF-8 (Starlette decodes headers as Latin-1), without blanks at its ends."""
    try:
        return value.encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        return value.strip()


def header_value(text: str, *, declared: ContextKey, field: str) -> Json:
    """Convert a text to the type of a context key. Raises InvalidInput."""
    match declared.type:
        case "number":
            try:
                return float(text)
            except ValueError:
                raise InvalidInput(f'"{field}" is not a number', field=field, remedy='send for example "3.5"') from None
        case "boolean":
            if text.strip().lower() not in ("true", "false"):
                raise InvalidInput(f'"{field}" is not true or false', field=field, remedy='send "true" or "false"')
            return text.strip().lower() == "true"
        case "words":
            return [word.strip() for word in text.split(",") if word.strip()]
        case _:
            return text
