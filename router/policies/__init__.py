"""Registry of policies. Built-in policies and policies of packages have names; other classes have an import path.

A built-in policy is a class in the package `algorithms` that declares its name: `algorithm: ClassVar[str] = "mba"`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from ragbandit.router.config.context_schema import ContextSchema, plain_schema
from ragbandit.router.config.learning import PolicyDefinition
from ragbandit.router.policies.base import PARAMS_KEY, Policy, PolicyNeed
from ragbandit.router.policies.context import PARAM
from ragbandit.shared.additions import with_additions, with_faults
from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.shared.plugins import declared_classes, import_class, installed_entry_points, load_class
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Json

_CLASS_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Z]\w*")

CONSERVATIVE: Final = "conservative"

GROUP: Final = "ragbandit.policies"
_METHODS: Final = ("pmf", "learn", "state", "restore")
#: name of the policy param that contains the parts that arms share
FACTS: Final = "facts"
#: largest number of characters of a policy's name in a ledger or snapshot
MAX_NAME: Final = 40


@cache
def built_in_policies() -> Mapping[str, type[Any]]:
    """Name -> class, for the policies of the core and of RagBandit's additions."""
    ours = declared_classes("ragbandit.router.policies.algorithms", attribute="algorithm")
    return with_additions(ours, hook="policies")


def known_policies() -> tuple[str, ...]:
    return tuple(sorted({*built_in_policies(), *installed_entry_points(GROUP)}))


def is_class_path(name: str) -> bool:
    return _CLASS_PATH.fullmatch(name) is not None


def make_policy(name: str, *, params: Mapping[str, Json]) -> Policy:
    """Make a policy that has not learned anything.

    name: a built-in policy, an entry point of the group "ragbandit.policies", or a class path "package.module:Class"

    Raises ConfigError for an unknown name, for a class that does not follow the protocol, and for wrong params.
    """
    kind = _class_of(name)
    if is_class_path(name):
        # Name and params may come from a database or a backup, which must not be able to call other classes.
        _check_has(kind, _METHODS, name=name)
    try:
        policy = kind(**params)
    except RagBanditError:
        raise
    except Exception as error:  # a plug-in may raise anything
        message = f"{name} cannot be made: {type(error).__name__}: {error}"
        remedy = "the class is called with the params as keywords"
        raise ConfigError(message, field="policy.params", remedy=remedy) from error
    return policy if name in built_in_policies() else _checked_plugin(policy, name=name)


def static_needs(name: str) -> frozenset[PolicyNeed]:
    """The needs that the class of a policy declares; empty for an unknown name, and if they depend on params."""
    try:
        needs = getattr(_class_of(name), "needs", None)
    except ConfigError:
        return frozenset()
    return needs if isinstance(needs, frozenset) else frozenset()


def untrained_policy(definition: PolicyDefinition) -> Policy:
    """The configured policy before it has learned anything, restrained to the incumbent. Raises ConfigError."""
    settings, has_incumbent = definition.settings, definition.settings.incumbent is not None
    more: dict[str, Any] = {"schema": definition.schema, "facts": definition.facts, "weight": definition.weight}
    params = with_settings(settings.name, params=settings.params, incumbent=has_incumbent, **more)
    if not has_incumbent:
        return make_policy(settings.name, params=params)
    promise = {"incumbent": settings.incumbent, "harm": settings.harm, "weight": definition.weight}
    return make_policy(CONSERVATIVE, params={**promise, "policy": settings.name, "params": params})


def with_settings(
    name: str,
    *,
    params: Mapping[str, Json],
    schema: ContextSchema = MappingProxyType({}),
    facts: Mapping[str, Mapping[str, Json]] = MappingProxyType({}),
    incumbent: bool = False,
    weight: float | None = None,
) -> dict[str, Json]:
    """The configured params of a policy, completed with values of other settings.

    schema: the setting `context`, added for classes with the attribute `takes_context`
    facts: arm -> its parts, added for classes with the attribute `takes_facts`
    incumbent: whether there is an incumbent, for which a class may have other defaults (`with_incumbent`)
    weight: the setting reward.weight, added for classes with the attribute `takes_weight`

    Raises ConfigError if the configured params have a `context` besides the setting.
    """
    kind = _class_of(name)
    complete = {**(getattr(kind, "with_incumbent", {}) if incumbent else {}), **params}
    if weight is not None and getattr(kind, "takes_weight", False):
        complete = {"weight": weight, **complete}
    if facts and getattr(kind, "takes_facts", False):
        complete = {FACTS: {arm: dict(parts) for arm, parts in sorted(facts.items())}, **complete}
    if not schema or not getattr(kind, "takes_context", False):
        return complete
    if PARAM in params:
        fault = "the schema of the context is a separate setting"
        raise ConfigError(fault, field=f"{PARAMS_KEY}.{PARAM}", remedy="move it to `context:`")
    return {**complete, PARAM: plain_schema(schema)}


def _class_of(name: str) -> Any:
    if is_class_path(name):
        return import_class(name, where="policy.name")
    ours = built_in_policies()
    kind = load_class(name, group=GROUP, core=ours, where="policy.name", option='policy.name: "package.module:Class"')
    if kind is not None:
        return kind
    remedy = f'{known_choices(known_policies(), given=name)}; for your own give "package.module:Class"'
    raise ConfigError(f"unknown policy {name!r}", field="policy.name", remedy=with_faults(remedy))


def _checked_plugin(policy: Any, *, name: str) -> Policy:
    """Check that a plug-in follows the protocol, and set its `algorithm` to `name`. Raises ConfigError."""
    if len(name) > MAX_NAME:
        message = f"{name!r} has {len(name)} characters, and a snapshot records {MAX_NAME} at most"
        remedy = f"offer the class under a shorter name, by an entry point of the group {GROUP!r}"
        raise ConfigError(message, field="policy.name", remedy=remedy)
    _check_has(policy, ("needs", "deterministic", "params", "arms_named", "seen", *_METHODS), name=name)
    policy.algorithm = name
    return policy  # type: ignore[no-any-return] # checked above


def _check_has(policy: Any, attributes: Iterable[str], *, name: str) -> None:
    missing = [attribute for attribute in attributes if not hasattr(policy, attribute)]
    if missing:
        message = f"{name} has no {', '.join(missing)}"
        remedy = "follow ragbandit.router.policies.base.Policy; ragbandit.testing.policies checks all of it"
        raise ConfigError(message, field="policy.name", remedy=remedy)
