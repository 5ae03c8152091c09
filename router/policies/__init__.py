"""Registry of policies: ours by name, those of installed packages by entry point, any class by its import path.

Classes are imported when they are asked for, since some need heavy packages.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ragbandit.router.config.context_schema import ContextSchema, plain_schema
from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.policies.base import WHERE, Policy
from ragbandit.router.policies.context import PARAM
from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.shared.formats import known_choices
from ragbandit.shared.plugins import import_class, installed, load
from ragbandit.shared.types import Json

_CLASS_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Z]\w*")

#: our policies: name -> class
POLICIES: dict[str, str] = {
    "adaptive_rag": "ragbandit.router.policies.finetuned.classifiers:AdaptiveRag",
    "conservative": "ragbandit.router.policies.kinds.conservative:ConservativePolicy",
    "fixed": "ragbandit.router.policies.kinds.fixed:Fixed",
    "linucb": "ragbandit.router.policies.mba:LinUcb",
    "llm": "ragbandit.router.policies.kinds.llm:Llm",
    "mba": "ragbandit.router.policies.mba:MbaRag",
    "mba_paper": "ragbandit.router.policies.finetuned.mba_paper:MbaPaper",
    "mixture": "ragbandit.router.policies.kinds.fixed:Mixture",
    "multi_label": "ragbandit.router.policies.finetuned.classifiers:MultiLabel",
    "popularity": "ragbandit.router.policies.kinds.popularity:Popularity",
    "uniform": "ragbandit.router.policies.kinds.fixed:Uniform",
    "vw": "ragbandit.router.policies.kinds.vw:VowpalWabbit",
}

#: policies that left -> what to use instead
_LEFT: Final[Mapping[str, str]] = {
    "budget": "an aim of the question, or a dollar budget (docs/price.md)",
    "lints": "mba",
    "softmax": "mba or linucb",
}
#: the policy that holds another one back
CONSERVATIVE: Final = "conservative"

GROUP: Final = "ragbandit.policies"
#: of a policy; its class has them before it is made
_METHODS: Final = ("pmf", "learn", "state", "restore")
#: the param that holds what the arms are made of
FACTS: Final = "facts"
#: longest name that a ledger and a snapshot can record
MAX_NAME: Final = 40


def known_policies() -> tuple[str, ...]:
    """The names that need no class path: ours and those of installed packages, sorted."""
    return tuple(sorted({*POLICIES, *installed(GROUP)}))


def is_class_path(name: str) -> bool:
    """True if a name has the form of a class's import path, "package.module:Class"."""
    return _CLASS_PATH.fullmatch(name) is not None


def make_policy(name: str, *, params: Mapping[str, Json]) -> Policy:
    """A fresh policy that has seen no update.

    name: one of ours, one that an installed package offers by an entry point of the group "ragbandit.policies", or the
    import path "package.module:Class" of any class. What it is made by is what it is recorded as.
    Raises ConfigError for a name that is not known, a class that cannot be used, and for a param that is unknown,
    missing or out of range.
    """
    kind = _class_of(name)
    if is_class_path(name):
        # The name and the params may come from a database or a backup: nothing but a policy is called with them.
        _check_has(kind, _METHODS, name=name)
    try:
        policy = kind(**params)
    except RagBanditError:
        raise
    except Exception as error:  # whatever a class of others does; the params stay out of the message
        raise ConfigError(
            f"{name} cannot be made: {type(error).__name__}: {error}",
            field="policy.params",
            remedy="it is called with the params as keywords",
        ) from error
    return policy if name in POLICIES else _checked(policy, name=name)


def protected(name: str, *, params: Mapping[str, Json], settings: PolicySettings) -> Policy:
    """The policy of this name, fresh; held back to the incumbent where the settings have one."""
    if settings.incumbent is None:
        return make_policy(name, params=params)
    held = {"incumbent": settings.incumbent, "harm": settings.harm, "policy": name, "params": dict(params)}
    return make_policy(CONSERVATIVE, params=held)


def with_settings(
    name: str,
    *,
    params: Mapping[str, Json],
    schema: ContextSchema = MappingProxyType({}),
    facts: Mapping[str, Mapping[str, Json]] = MappingProxyType({}),
    incumbent: bool = False,
) -> dict[str, Json]:
    """The params, with what other settings say of them.

    schema: the setting `context`, for a policy that learns from contexts by a schema. facts: what the arms are made of,
    for a policy that learns what they share. incumbent: the policy will be held back to one, and has other defaults
    where its class says so (`with_incumbent`). Raises ConfigError for params that bring a schema of their own.
    """
    kind = _class_of(name)
    complete = {**(getattr(kind, "with_incumbent", {}) if incumbent else {}), **params}
    if facts and getattr(kind, "takes_facts", False):
        complete = {FACTS: {arm: dict(own) for arm, own in sorted(facts.items())}, **complete}
    if not schema or not getattr(kind, "takes_context", False):
        return complete
    if PARAM in params:
        raise ConfigError(
            "the schema of the context is a setting of its own",
            field=f"{WHERE}.{PARAM}",
            remedy="move it to `context:`",
        )
    return {**complete, PARAM: plain_schema(schema)}


def needs_of(name: str, *, params: Mapping[str, Json]) -> frozenset[str]:
    """What a recorded policy is given of a question, "features" and "text"; of one that wraps another, that one's.

    Raises ConfigError for a policy that is not known here.
    """
    inner = params.get("policy")
    if isinstance(inner, str):
        nested = params.get("params")
        return needs_of(inner, params=nested if isinstance(nested, Mapping) else {})
    needs: object = getattr(_class_of(name), "needs", None)
    return needs if isinstance(needs, frozenset) else frozenset({"features", "text"})


def _class_of(name: str) -> Any:
    if is_class_path(name):
        return import_class(name, where="policy.name")
    kind = load(name, group=GROUP, ours=POLICIES, where="policy.name", instead='policy.name: "package.module:Class"')
    if kind is not None:
        return kind
    if name in _LEFT:
        remedy = f"use {_LEFT[name]}, with a policy.label of its own"
        raise ConfigError(f"the policy {name!r} left the product", field="policy.name", remedy=remedy)
    remedy = f'{known_choices(known_policies(), given=name)}; for your own give "package.module:Class"'
    raise ConfigError(f"unknown policy {name!r}", field="policy.name", remedy=remedy)


def _checked(policy: Any, *, name: str) -> Policy:
    """A policy of others, if it has all of the protocol; its name is recorded as its algorithm."""
    if len(name) > MAX_NAME:
        raise ConfigError(
            f"{name!r} has {len(name)} characters, and a snapshot records {MAX_NAME} at most",
            field="policy.name",
            remedy=f"offer the class under a shorter name, by an entry point of the group {GROUP!r}",
        )
    _check_has(policy, ("needs", "deterministic", "params", "arms_named", "seen", *_METHODS), name=name)
    policy.algorithm = name
    return policy  # type: ignore[no-any-return] # checked above


def _check_has(policy: Any, wanted: Iterable[str], *, name: str) -> None:
    missing = [each for each in wanted if not hasattr(policy, each)]
    if missing:
        raise ConfigError(
            f"{name} has no {', '.join(missing)}",
            field="policy.name",
            remedy="follow ragbandit.router.policies.base.Policy; ragbandit.testing.policies checks all of it",
        )
