"""Makes a Query from a question and keywords, for callers of the library."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypedDict

from ragbandit.router.serving.checks.questions import check_type
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Budget, DecisionUnit, Json, Message, Query


class QueryFields(TypedDict, total=False):
    """Optional fields of a question; see `Query`. A field that is None is not set."""

    id: str | None
    context: Mapping[str, Json] | None
    arms: Sequence[str] | None
    #: limits of the answer, or a mapping of them, such as {"seconds": 5}
    budget: Budget | Mapping[str, float] | None
    tenant: str | None
    session: str | None
    unit: DecisionUnit | None
    #: earlier messages, oldest first; a mapping has the keys `role` and `text`, or `content` as in a chat completion
    messages: Sequence[Message | Mapping[str, str]] | None
    cost_weight: float | str | None
    aim: Mapping[str, float] | None


#: field of a Query -> the clients' name for it, which is also its name in the HTTP interface
_IN_CLIENTS: Final = {"id": "decision_id", "session": "session_id"}
_BUDGET: Final = frozenset(field.name for field in fields(Budget))


def query_of(question: Query | str, given: Mapping[str, Any]) -> Query:
    """Returns the query of a question and its keywords (`QueryFields`). The service checks their values.

    Raises InvalidInput for an unknown keyword, and for keywords together with a Query, which has these fields itself.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if isinstance(question, Query):
        if values:
            name = min(values)
            remedy = f"set it in the Query: dataclasses.replace(query, {name}=...), or pass the question as a string"
            raise InvalidInput(f'"{name}" was passed together with a Query', field=name, remedy=remedy)
        return question
    check_type(question, str, field="question", wanted="a string or a Query")
    if unknown := sorted(given.keys() - QueryFields.__annotations__.keys()):
        raise _unknown_field(unknown[0])
    if "arms" in values:
        values["arms"] = _arms(values["arms"])
    if isinstance(values.get("budget"), Mapping):
        values["budget"] = _budget(values["budget"])
    if "messages" in values:
        check_type(values["messages"], list | tuple, field="messages", wanted="a list of messages")
        values["messages"] = tuple(_message(message) for message in values["messages"])
    return Query(text=question, **values)


def _unknown_field(name: str) -> InvalidInput:
    here = next((field for field, in_clients in _IN_CLIENTS.items() if in_clients == name), None)
    remedy = f"its name is {here!r} here" if here else known_choices(QueryFields.__annotations__, given=name)
    return InvalidInput(f'a question has no field "{name}"', field=name, remedy=remedy)


def _arms(given: object) -> tuple[str, ...]:
    check_type(given, list | tuple, field="arms", wanted="a list of names")
    assert isinstance(given, list | tuple)
    return tuple(given)


def _budget(given: Mapping[str, Any]) -> Budget:
    if unknown := sorted(map(str, given.keys() - _BUDGET)):
        raise InvalidInput(
            f'a budget has no limit "{unknown[0]}"',
            field=f"budget.{unknown[0]}",
            remedy=known_choices(sorted(_BUDGET), given=unknown[0]),
        )
    return Budget(**given)


def _message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    check_type(given, Mapping, field="messages", wanted="a list of messages, each with role and text")
    assert isinstance(given, Mapping)
    text = given.get("text", given.get("content"))
    if not isinstance(text, str) or not isinstance(given.get("role"), str):
        remedy = 'send messages such as {"role": "user", "text": "..."}'
        raise InvalidInput("a message has no role or no text", field="messages", remedy=remedy)
    return Message(role=given["role"], text=text)
