"""Limits in /openapi.json: patterns, lengths and ranges that serving/validation.py enforces, as JSON Schema says them.

A request that fits the document is not refused as invalid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from ragbandit.router.config.context_schema import MOST_NUMBER, ContextKey, ContextSchema
from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.serving.conversations.checks import MAX_SESSION, MAX_STICKY_TURNS
from ragbandit.router.serving.field_checks import ID_PATTERN
from ragbandit.router.serving.link_checks import LINK_KIND, LINK_VALUE, MAX_LINKS
from ragbandit.router.serving.validation import (
    MAX_ANSWERS,
    MAX_CAP,
    MAX_RATER,
    MAX_WORDS,
)
from ragbandit.router.storage.sessions import MOST_LISTED
from ragbandit.router.types import MAX_TEXT, Cost

__all__ = ["add_limits"]

#: a character that is no space (str.isspace) and can be stored
_VISIBLE: Final = r"[^\u0000\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NO_NUL: Final = r"[^\u0000]*"

_ID: Final = {"pattern": f"^{ID_PATTERN.pattern}$"}
_TEXT: Final = {"minLength": 1, "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}{_VISIBLE}{_NO_NUL}$"}
#: a text that may be empty, but not blank
_ANY_TEXT: Final = {"maxLength": MAX_TEXT, "pattern": f"^({_NO_NUL}{_VISIBLE}{_NO_NUL})?$"}
_COUNT: Final = {"minimum": 1, "maximum": int(MAX_CAP)}
#: above 0; OpenAPI 3.0 and 3.1 write an open bound in two ways
_AMOUNT: Final = {"minimum": 1e-9, "maximum": int(MAX_CAP)}
_FROM_0: Final = {"minimum": 0, "maximum": int(MAX_CAP)}
_NOT_NULL: Final = {"not": {"type": "null"}}

#: body and field -> what its schema says besides its type; a keyword holds for values of its own type alone
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "RouteBody.question": _TEXT,
    "RouteBody.decision_id": _ID,
    "RouteBody.tenant": _ID,
    "RouteBody.session_id": {**_TEXT, "maxLength": MAX_SESSION},
    "RouteBody.sticky_turns": {"minimum": 0},
    "MessageBody.content": _ANY_TEXT,
    "RouteBody.context": {"propertyNames": _TEXT},
    "RouteBody.links": {"maxProperties": MAX_LINKS, "propertyNames": {"pattern": f"^{LINK_KIND.pattern}$"}},
    "BudgetBody.rounds": _COUNT,
    "BudgetBody.passages": _COUNT,
    "BudgetBody.tokens": _COUNT,
    "BudgetBody.seconds": _AMOUNT,
    "BudgetBody.dollars": _AMOUNT,
    "FeedbackTokenBody.decision_id": _ID,
    "FeedbackTokenBody.kinds": {"minItems": 1},
    "FeedbackTokenBody.expires_s": {"minimum": 1e-9},
    "BrowserFeedbackBody.rating": {"minimum": 0, "maximum": 5},
    "BrowserFeedbackBody.scale": {"enum": ["0-1", "1-5"]},
    "BrowserFeedbackBody.event": {"pattern": "^[A-Za-z0-9_.-]{1,64}$"},
    "FeedbackBody.decision_id": _ID,
    "FeedbackBody.feedback_id": _ID,
    "FeedbackBody.label": {**_TEXT, "minItems": 1, "maxItems": MAX_ANSWERS},
    "FeedbackBody.rating": {"minimum": 0, "maximum": 5},
    "FeedbackBody.scale": {"enum": ["0-1", "1-5"]},
    "FeedbackBody.source": {"enum": ["human", "judge", "code", None]},
    "FeedbackBody.event": {"pattern": "^[A-Za-z0-9_.-]{1,64}$"},
    "FeedbackTokenBody.rater": {**_TEXT, "maxLength": MAX_RATER},
    "BrowserFeedbackBody.retract": {"enum": ["rating", None]},
    "FeedbackBody.retract": {"enum": ["label", "rating", "reward", None]},
    "FeedbackBody.rater": {**_TEXT, "maxLength": MAX_RATER},
    "FeedbackBatchBody.items": {"minItems": 1},
    "RouteBatchBody.items": {"minItems": 1},
    "OutcomeBody.decision_id": _ID,
    "OutcomeBody.answer": _ANY_TEXT,
    "OutcomeBody.error": {"pattern": _ANY_TEXT["pattern"]},
    "OutcomeBody.stop_reason": {**_ANY_TEXT, "maxLength": 64},
    "OutcomeBody.steps": _FROM_0,
    "OutcomeBody.cost": {
        "properties": {
            field.name: {"type": "integer" if isinstance(field.default, int) else "number", **_FROM_0}
            for field in fields(Cost)
        },
        "additionalProperties": False,
    },
}
_ONE_OF: Final = ("label", "rating", "reward", "retract", "event")
#: body -> what holds between its fields
_BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "FeedbackBody": {
        "oneOf": [{"required": [name], "properties": {name: _NOT_NULL}} for name in _ONE_OF],
        "allOf": [{"anyOf": [{"properties": {name: {"type": "null"}}} for name in ("event", "source")]}],
        "anyOf": [
            {"properties": {"scale": {"enum": ["0-1"]}, "rating": {"maximum": 1}}},
            {"required": ["scale"], "properties": {"scale": {"enum": ["1-5"]}, "rating": {"minimum": 1}}},
        ],
    },
    "BrowserFeedbackBody": {
        "oneOf": [{"required": [name], "properties": {name: _NOT_NULL}} for name in ("rating", "event", "retract")],
        "anyOf": [
            {"properties": {"scale": {"enum": ["0-1"]}, "rating": {"maximum": 1}}},
            {"required": ["scale"], "properties": {"scale": {"enum": ["1-5"]}, "rating": {"minimum": 1}}},
        ],
    },
    # What a cost is charged by is a setting; with steps every cost is taken.
    "OutcomeBody": {"anyOf": [{"required": ["steps"]}, {"properties": {"cost": {"maxProperties": 0}}}]},
}
#: of a chat completion: what OpenAI's clients may send of its parameters. That the last message of user and assistant
#: must be the user's is in no schema
_CHAT: Final[Mapping[str, Mapping[str, Any]]] = {
    "messages": {
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
                "content": {
                    "anyOf": [
                        {"type": "null"},
                        {"type": "string", "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}$"},
                        {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["type", "text"],
                                "properties": {
                                    "type": {"enum": ["text"]},
                                    "text": {"type": "string", "pattern": f"^{_NO_NUL}$"},
                                },
                            },
                        },
                    ]
                },
            },
        },
    },
    "metadata": {
        "maxProperties": 16,
        "propertyNames": {**_TEXT, "maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512, "pattern": f"^{_NO_NUL}$"},
    },
    "user": {**_ANY_TEXT},
    "safety_identifier": {**_ANY_TEXT},
    "n": {"enum": [1, None]},
    "tool_choice": {"enum": ["none", "auto", None]},
    "function_call": {"enum": ["none", "auto", None]},
    "response_format": {"required": ["type"], "properties": {"type": {"enum": ["text"]}}},
    "logprobs": {"enum": [False, None]},
    "top_logprobs": {"enum": [0, None]},
    "modalities": {"items": {"enum": ["text"]}},
    "audio": {"enum": [None]},
}
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "decision_id": _ID,
    "idempotency-key": _ID,
    "wait_s": {"minimum": 0, "maximum": 600},
    "session_id": {**_TEXT, "maxLength": MAX_SESSION},
    "tenant": _ID,
    "limit": {"minimum": 1, "maximum": MOST_LISTED},
}


def add_limits(
    api: dict[str, Any],
    *,
    arms: Sequence[str] = (),
    reward: RewardSettings | None = None,
    events: Sequence[str] | None = None,
    most_items: Mapping[str, int] | None = None,
    context: ContextSchema = MappingProxyType({}),
    token_s: float | None = None,
    sticky_turns: int = MAX_STICKY_TURNS,
) -> dict[str, Any]:
    """Put the limits into an OpenAPI document; the same document.

    arms: on offer. reward: its bounds. events: those that are known. most_items: body of a batch -> most items.
    context: what is declared of it. token_s: longest life of a browser's token. sticky_turns: most in a call. They
    differ from service to service.
    """
    schemas = api["components"]["schemas"]
    for name, limits in _BODIES.items():
        schemas[name].update(limits)
    for key, limits in _FIELDS.items():
        body, _, field = key.partition(".")
        schemas[body]["properties"][field].update(limits)
    token = schemas["FeedbackTokenBody"]["properties"]
    _branch(token["kinds"], "array")["items"].update(enum=["rating", "event"])
    token["expires_s"].update({"maximum": token_s} if token_s else {})
    for field, limits in _CHAT.items():
        schemas["ChatBody"]["properties"][field].update(limits)
    route, feedback = schemas["RouteBody"]["properties"], schemas["FeedbackBody"]["properties"]
    route["sticky_turns"]["maximum"] = sticky_turns
    _branch(route["context"]["additionalProperties"], "string").update(maxLength=MAX_TEXT, pattern=f"^{_NO_NUL}$")
    _branch(route["links"], "object")["additionalProperties"].update(pattern=f"^{LINK_VALUE.pattern}$")
    words = _branch(route["context"]["additionalProperties"], "array")
    words.update(maxItems=MAX_WORDS, items={"type": "string", **_TEXT})
    _branch(feedback["label"], "array")["items"].update(_TEXT)
    if context:
        route["context"]["properties"] = {key: _declared(one) for key, one in context.items()}
    named = {"enum": list(arms)} if arms else {"pattern": "^[A-Za-z0-9_.-]{1,64}$"}
    _branch(route["arms"], "array").update(minItems=1, uniqueItems=True, items={"type": "string", **named})
    if reward is not None:
        feedback["reward"].update(minimum=reward.minimum, maximum=reward.maximum)
    if events is not None:
        feedback["event"]["enum"] = [*sorted(events), None]
    for body, most in (most_items or {}).items():
        schemas[body]["properties"]["items"]["maxItems"] = most
    for call in (call for calls in api["paths"].values() for call in calls.values()):
        for parameter in call.get("parameters", ()):
            parameter["schema"].update(_PARAMETERS.get(parameter["name"], {}))
    return api


def _declared(one: ContextKey) -> dict[str, Any]:
    """What callers may send under a declared key."""
    if one.is_own:
        return {"not": {}, "description": f"read off the question (type: {one.type})"}
    words = {"type": "array", "maxItems": min(one.most_words, MAX_WORDS), "items": {"type": "string", **_TEXT}}
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": "number", "minimum": -MOST_NUMBER, "maximum": MOST_NUMBER},
        "boolean": {"type": "boolean"},
        "category": {"type": "string", "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}$"},
        "words": words,
    }
    return {"anyOf": [kinds[one.type], {"type": "null"}]}


def _branch(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The part of a schema of several types that is of this one."""
    (found,) = [part for part in schema["anyOf"] if part.get("type") == kind]
    part: dict[str, Any] = found
    return part
