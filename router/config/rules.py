"""Rules of the operator: which questions may get which arms (setting `rules`)."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, islice
from typing import Annotated, Final

from pydantic import Field, field_validator

from ragbandit.router.config.sections import Section
from ragbandit.shared.types import Query

MOST_RULES: Final = 64
#: prefix of a condition on a context key
_CONTEXT: Final = "context."
#: conditions other than on context keys
_KEYS: Final = ("tenant", "key", "door", "agent")
#: values of the condition `door`: interfaces
DOORS: Final = ("route", "openai", "responses", "anthropic", "mcp")
#: values of the condition `agent`: the main agent of a conversation, or one that works for it
_AGENTS: Final = ("main", "subagent")
#: largest number of combinations of rules that are checked
_MOST_COMBINED: Final = 20_000

Value = str | float | bool


class Rule(Section):
    """Arms that a question may have if it meets all conditions."""

    #: name of the rule, for logs, errors and `explain`; None: "rule N", N from 1
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    #: condition -> value, or list of values of which one must match: tenant, key (public id of an API key), door
    #: (route, openai, responses, anthropic), agent (main, subagent), context.KEY (a key of the setting `context`)
    when: dict[str, Value | list[Value]]
    #: the arms that such a question may have
    arms: Annotated[list[str], Field(min_length=1)]

    @field_validator("when")
    @classmethod
    def _known(cls, when: Mapping[str, Value | list[Value]]) -> Mapping[str, Value | list[Value]]:
        for key, values in when.items():
            if key not in _KEYS and not key.startswith(_CONTEXT):
                raise ValueError(f"{key!r:.80} is unknown (known: {', '.join(_KEYS)}, {_CONTEXT}KEY)")
            for value in _values(values):
                for name, known in (("door", DOORS), ("agent", _AGENTS)):
                    if key == name and value not in known:
                        raise ValueError(f"{name}: {value!r:.40} is unknown (known: {', '.join(known)})")
        return when

    def applies_to(self, query: Query) -> bool:
        """Whether the question meets all conditions. A missing context key meets none."""
        return all(_value_of(query, key) in _values(values) for key, values in self.when.items())


def _values(values: Value | list[Value]) -> list[Value]:
    return values if isinstance(values, list) else [values]


def _value_of(query: Query, key: str) -> object:
    match key:
        case "tenant":
            return query.tenant
        case "key":
            return query.api_key
        case "door":
            return query.request.get("surface") or "route"
        case "agent":
            return "subagent" if query.request.get("agent") else "main"
        case _:
            return query.context.get(key.removeprefix(_CONTEXT))


def named(rules: Sequence[Rule]) -> list[tuple[str, Rule]]:
    """Each rule with its name."""
    return [(rule.name or f"rule {number}", rule) for number, rule in enumerate(rules, start=1)]


def check_rules(rules: Sequence[Rule], *, arms: Collection[str], context: Collection[str]) -> None:
    """Raises ValueError for an unknown arm or context key, and for rules that can leave a question without any arm."""
    names = [name for name, _ in named(rules)]
    if len(set(names)) < len(names):
        raise ValueError("rules: two rules have the same name; give each its own")
    for name, rule in named(rules):
        for arm in rule.arms:
            if arm not in arms:
                raise ValueError(
                    f"rules: {name} names the arm {arm!r:.80}, which is not in `arms`; known: {', '.join(arms)}"
                )
        for key in rule.when:
            if key.startswith(_CONTEXT) and key.removeprefix(_CONTEXT) not in context:
                raise ValueError(
                    f"rules: {name} has the condition {key!r:.80}, which is not a key of `context`; declare it"
                )
    _check_that_arms_are_left(rules)


def _check_that_arms_are_left(rules: Sequence[Rule]) -> None:
    """Raises ValueError for the smallest group of rules that can apply to one question, and share no arm."""
    groups = (group for size in range(2, len(rules) + 1) for group in combinations(named(rules), size))
    for group in islice(groups, _MOST_COMBINED):
        left = set.intersection(*(set(rule.arms) for _, rule in group))
        if not left and _compatible([rule for _, rule in group]):
            raise ValueError(
                f"rules: {' and '.join(name for name, _ in group)} can apply to the same question, and share no "
                "arm: let both name one arm, or make the conditions exclude each other"
            )


def _compatible(rules: Sequence[Rule]) -> bool:
    """Whether one question can meet the conditions of all rules."""
    allowed: dict[str, set[Value]] = {}
    for rule in rules:
        for key, values in rule.when.items():
            allowed[key] = allowed.get(key, set(_values(values))) & set(_values(values))
    return all(allowed.values())
