"""Rules of the operator: which questions may get which arms, and which other models may read them (setting `rules`).

`RuleBook.permission` applies them. It is called before any model gets a question: before a draw, when a queued question
is run, when another arm takes over after a failure, when a stored question is asked again, and before an auxiliary
model reads it. So the present rules apply, not those of the time of the decision.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from ragbandit.router.config.context_schema import MOST_NUMBER, ContextKey, ContextSchema, is_number
from ragbandit.router.config.section import Section
from ragbandit.shared.additions import surfaces
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Query

MOST_RULES: Final = 64
#: prefix of a condition on a context key
_CONTEXT: Final = "context."
#: conditions other than on context keys
_KEYS: Final = ("tenant", "key", "door", "agent")
#: values of the condition `door`: interfaces that receive questions
DOORS: Final = ("route", "openai", *surfaces())
#: values of the condition `agent`: the main agent of a conversation, or one that works for it
_AGENTS: Final = ("main", "subagent")
#: condition -> pattern of the values that it can have
_PATTERNS: Final = {"tenant": re.compile(r"[A-Za-z0-9_-]{1,64}"), "key": re.compile(r"[0-9A-Za-z]{10}")}
#: largest number of characters of a header that sets a context key
LONGEST_HEADER: Final = 512
#: maximum number of combinations of rules that are checked
_MOST_COMBINED: Final = 20_000

Value = str | float | bool
#: models besides those of the arms: the judge, the model that rewrites questions, the model that picks an arm for the
#: policy `llm`, and the server of embeddings
AuxiliaryModel = Literal["judge", "rewrite", "pick", "embeddings"]


class UndecidedRule(InvalidInput, code="UNDECIDED_RULE", status=400):
    """It is unknown whether a rule of the operator applies to the question."""


class Rule(Section):
    """Arms that a question may have if it meets all conditions."""

    #: name of the rule, for logs, errors and `explain`; None: "rule N", N from 1
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    #: condition -> value, or list of values of which one must match: tenant, key (public id of an API key), door (the
    #: interface: docs/context.md), agent (main, subagent), context.KEY (a key of the setting `context`; null
    #: matches questions without a value; for words, one word of the list must match)
    when: dict[str, Value | list[Value | None] | None]
    #: the arms that such a question may have
    arms: Annotated[list[str], Field(min_length=1)]
    #: auxiliary models that may read such a question: judge, rewrite, pick, embeddings. Without the list, none may
    models: list[AuxiliaryModel] | None = None

    @field_validator("when")
    @classmethod
    def _check_conditions(cls, when: Mapping[str, object]) -> Mapping[str, object]:
        for key, given in when.items():
            if key not in _KEYS and not key.startswith(_CONTEXT):
                raise ValueError(f"{key!r:.80} is unknown (known: {', '.join(_KEYS)}, {_CONTEXT}KEY)")
            values = _values(given)
            if not values:
                raise ValueError(f"{key}: the list is empty, so the rule could never apply")
            for value in values if key in _KEYS else ():
                _check_value(key, value)
        return when

    @property
    def tenants(self) -> list[str]:
        """The tenants that the rule names."""
        return [str(tenant) for tenant in _values(self.when["tenant"])] if "tenant" in self.when else []


def _check_value(key: str, value: object) -> None:
    """Raises ValueError if `door`, `agent`, `tenant` or `key` can never have this value."""
    for name, known in (("door", DOORS), ("agent", _AGENTS)):
        if key == name and value not in known:
            raise ValueError(f"{name}: {value!r:.40} is unknown (known: {', '.join(known)})")
    pattern = _PATTERNS.get(key)
    if pattern is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        form = {"tenant": "1 to 64 letters, digits, dashes or underscores", "key": "10 letters and digits"}[key]
        raise ValueError(f"{key}: no {key} is called {value!r:.40}: a name has {form}")


def _values(given: object) -> list[object]:
    return list(given) if isinstance(given, list) else [given]


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """The arms and auxiliary models that the rules allow for a question."""

    #: names of the rules that apply
    names: tuple[str, ...]
    #: the arms that all applying rules allow; None for all arms
    arms: frozenset[str] | None
    #: the auxiliary models that all applying rules allow; None for all auxiliary models
    models: frozenset[str] | None

    def allows(self, arm: str) -> bool:
        return self.arms is None or arm in self.arms


_ALL: Final = Permission(names=(), arms=None, models=None)


class RuleBook:
    """The rules of a configuration, with the context keys that their conditions read."""

    def __init__(self, rules: Sequence[Rule], *, context: ContextSchema) -> None:
        self._rules, self._schema = named_rules(rules), context
        conditions = [(key, values) for rule in rules for key, values in rule.when.items() if key.startswith(_CONTEXT)]
        #: context keys that a condition reads
        self.keys = frozenset(key.removeprefix(_CONTEXT) for key, _ in conditions)
        #: conditions on context keys that a question without a value can meet
        self._optional = frozenset(key for key, values in conditions if None in _values(values))

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def open_keys(self) -> list[str]:
        """Context keys by which callers can evade a rule, since its condition is not met without a value: the key need
        not come from a proxy, no map sets it for a missing header, and no condition names null.
        """
        named_keys = {key.removeprefix(_CONTEXT) for key in self._optional}
        return [
            key
            for key in sorted(self.keys - named_keys)
            if not self._schema[key].proxy and "" not in self._schema[key].map
        ]

    def permission(self, query: Query) -> Permission:
        """The arms and models that the rules allow for a question. Raises UndecidedRule if a condition cannot be
        decided: the key's value is missing although a proxy must set it, is not in its list, or has another type.
        """
        if not self._rules:
            return _ALL
        applied = [(name, rule) for name, rule in self._rules if self._applies(name, rule, query=query)]
        if not applied:
            return _ALL
        return Permission(
            names=tuple(name for name, _ in applied),
            arms=frozenset.intersection(*(frozenset(rule.arms) for _, rule in applied)),
            models=frozenset.intersection(*(frozenset[str](rule.models or ()) for _, rule in applied)),
        )

    def permitted_arms(self, query: Query, *, arms: Iterable[str]) -> list[ArmName]:
        """The arms of `arms` that may get the question; [] if a rule cannot be decided."""
        try:
            permission = self.permission(query)
        except UndecidedRule:
            return []
        return [ArmName(arm) for arm in arms if permission.allows(arm)]

    def permits(self, query: Query, *, arm: str) -> bool:
        """Whether the arm may get the question; False if a rule cannot be decided."""
        return bool(self.permitted_arms(query, arms=(arm,)))

    def may_read(self, query: Query, *, model: AuxiliaryModel) -> bool:
        """Whether an auxiliary model may read the question; False if a rule cannot be decided."""
        try:
            models = self.permission(query).models
        except UndecidedRule:
            return False
        return models is None or model in models

    def _applies(self, name: str, rule: Rule, *, query: Query) -> bool:
        """Whether the question meets all conditions of a rule: False if it does not meet one, even if others cannot be
        decided. Raises UndecidedRule.
        """
        undecided = list[str]()
        for key, given in rule.when.items():
            is_met = self._meets(key, _values(given), query=query)
            if is_met is False:
                return False
            if is_met is None:
                undecided.append(key)
        if undecided:
            raise self._undecided(undecided[0], query=query, name=name)
        return True

    def _meets(self, key: str, values: Collection[object], *, query: Query) -> bool | None:
        """Whether the question meets a condition; None if that cannot be decided."""
        match key:
            case "tenant":
                return query.tenant in values
            case "key":
                return query.api_key in values
            case "door":
                return (query.sent.surface or "route") in values
            case "agent":
                return ("subagent" if query.sent.agent else "main") in values
        value = query.context.get(key.removeprefix(_CONTEXT))
        declared = self._schema[key.removeprefix(_CONTEXT)]
        if is_missing_value(value):
            is_decided = key in self._optional or not declared.proxy
            return None in values if is_decided else None
        if not is_valid_value(value, declared=declared):
            return None
        if isinstance(value, list | tuple):
            return any(word in values for word in value)
        return value in values

    def _undecided(self, key: str, *, query: Query, name: str) -> UndecidedRule:
        declared, value = self._schema[key.removeprefix(_CONTEXT)], query.context.get(key.removeprefix(_CONTEXT))
        header = "" if declared.header is None else f" (header {declared.header})"
        if is_missing_value(value):
            remedy = f"send the header {declared.header} through a proxy of server.trusted_proxies"
            message = f'"{key}"{header} has no value, and the rule {name!r} reads it'
            return UndecidedRule(message, field=key, remedy=f"{remedy}; docs/context.md has rules for missing values")
        message = f'"{key}"{header} is {value!r:.80}, and the rule {name!r} reads it'
        remedy = f"send {values_in_words(declared)}; letter case counts"
        return UndecidedRule(message, field=key, remedy=remedy)


def is_missing_value(value: object) -> bool:
    return value is None or (isinstance(value, list | tuple) and not value)


def is_valid_value(value: object, *, declared: ContextKey) -> bool:
    """Whether a key can have this value: its type fits and, if the key has `values`, it is in the list."""
    match declared.type:
        case "number":
            return is_number(value)
        case "boolean":
            return isinstance(value, bool)
        case "words":
            return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        case "category":
            return isinstance(value, str) and (declared.values is None or value in declared.values)
        case _:
            return False


def values_in_words(declared: ContextKey) -> str:
    if declared.values is not None:
        return f"one of {', '.join(declared.values)}"
    return {"number": "a number", "boolean": "true or false", "words": "a list of words"}.get(declared.type, "a text")


def named_rules(rules: Sequence[Rule]) -> list[tuple[str, Rule]]:
    """Each rule with its name."""
    return [(rule.name or f"rule {number}", rule) for number, rule in enumerate(rules, start=1)]


def check_rules(rules: Sequence[Rule], *, arms: Collection[str], context: ContextSchema) -> None:
    """Raises ValueError for a repeated name, an unknown arm or context key, a condition that no question can meet, and
    rules that can leave a question without any arm.
    """
    names = [name for name, _ in named_rules(rules)]
    if len(set(names)) < len(names):
        raise ValueError("rules: two rules have the same name; give each its own")
    for name, rule in named_rules(rules):
        for arm in rule.arms:
            if arm not in arms:
                raise ValueError(
                    f"rules: {name} names the arm {arm!r:.80}, which is not in `arms`; known: {', '.join(arms)}"
                )
        for condition, given in rule.when.items():
            if condition.startswith(_CONTEXT):
                _check_condition(condition, _values(given), name=name, context=context)
    _check_that_arms_are_left(rules, context=context)


def _check_condition(condition: str, values: Iterable[object], *, name: str, context: ContextSchema) -> None:
    """Raises ValueError if no question can meet a rule's condition on a context key. name: name of the rule"""
    declared = context.get(condition.removeprefix(_CONTEXT))
    if declared is None:
        raise ValueError(
            f"rules: {name} has the condition {condition!r:.80}, which is not a key of `context`; declare it"
        )
    for value in values:
        fault = _fault_of(value, declared=declared)
        if fault is not None:
            shown = "null" if value is None else repr(value)
            raise ValueError(f"rules: {name} can never apply: {condition} is never {shown:.80}, since {fault}")
    known = declared.map.values() if declared.values is None else declared.values
    for text in declared.map.values():
        if text not in known:
            raise ValueError(
                f"{condition}.map: {text!r:.80} is not in the values of the key, so the rule {name} would refuse the "
                f"question; add it to values, or map to {values_in_words(declared)}"
            )


def _fault_of(value: object, *, declared: ContextKey) -> str | None:
    """Why no question can have this value; None if a question can have it."""
    if declared.is_computed:
        return "keys of the type tenant are computed; use the condition tenant"
    if value is None:
        return None
    wanted = [value] if declared.type == "words" else value
    if not is_valid_value(wanted, declared=declared):
        too_large = isinstance(value, float) and declared.type == "number"
        return f"numbers are at most {MOST_NUMBER:g}" if too_large else f"its value is {values_in_words(declared)}"
    if declared.type == "words" and is_blank(str(value)):
        return "a word has a character that is not a space"
    if declared.header is not None and isinstance(value, str):
        return _header_fault(value, declared=declared)
    return None


def _header_fault(value: str, *, declared: ContextKey) -> str | None:
    """Why the header of a key can never set this text; None if it can."""
    if declared.type == "words":
        return "a header of words has a comma between two words" if "," in value or value != value.strip() else None
    if value in declared.map.values():
        return None
    if value in declared.map:
        return f"the map of the key makes {declared.map[value]!r:.40} of it"
    if value != value.strip() or not value or len(value) > LONGEST_HEADER:
        return f"a header has 1 to {LONGEST_HEADER} characters, without spaces at its ends"
    is_listed = declared.values is not None
    return "a header with a comma is refused as two values" if "," in value and not is_listed else None


def _check_that_arms_are_left(rules: Sequence[Rule], *, context: ContextSchema) -> None:
    """Raises ValueError for the smallest group of rules that can apply to one question, and share no arm."""
    groups = (group for size in range(2, len(rules) + 1) for group in combinations(named_rules(rules), size))
    for group in islice(groups, _MOST_COMBINED):
        left = set.intersection(*(set(rule.arms) for _, rule in group))
        if not left and _compatible([rule for _, rule in group], context=context):
            raise ValueError(
                f"rules: {' and '.join(name for name, _ in group)} can apply to the same question, and share no "
                "arm: let both name one arm, or make the conditions exclude each other"
            )


def _compatible(rules: Sequence[Rule], *, context: ContextSchema) -> bool:
    """Whether one question can meet the conditions of all rules."""
    allowed: dict[str, set[object]] = {}
    for rule in rules:
        for key, given in rule.when.items():
            declared = context.get(key.removeprefix(_CONTEXT)) if key.startswith(_CONTEXT) else None
            values = set(_values(given))
            if declared is not None and declared.type == "words":  # a question may have all words, or none
                values = {"a word" if value is not None else None for value in values}
            allowed[key] = allowed.get(key, values) & values
    return all(allowed.values())
