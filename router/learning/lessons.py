"""Lessons: the updates of a ledger, for a policy to learn in their order; and the policy that learns them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.policies import CONSERVATIVE, configured_policy, make_policy, protected
from ragbandit.router.policies.base import Policy, is_lean
from ragbandit.router.storage.ledgers.lean_updates import lean_updates
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.types import ERASED, Decision, Update

__all__ = ["is_erased_for", "lessons", "policy_of"]


def policy_of(settings: PolicySettings, *, registered: Mapping[str, Any] | None) -> Policy:
    """The configured policy, fresh, held back to the incumbent if there is one.

    registered: the row of its ledger, None before the first router opened it.
    """
    algorithm = None if registered is None else registered["algorithm"]
    recorded = {} if registered is None else json.loads(registered["params"])
    if algorithm == CONSERVATIVE and settings.name != CONSERVATIVE:  # what it holds back goes on as it began
        algorithm, recorded = recorded["policy"], recorded["params"]
    policy = configured_policy(settings.name, params=settings.params, algorithm=algorithm, recorded=recorded)
    if settings.incumbent is None:
        return policy
    name, params = protected(policy.algorithm, params=policy.params, settings=settings)
    return make_policy(name, params=params)


def lessons(ledger: Ledger, *, policy: Policy, after: int, upto: int | None = None) -> Iterator[Update]:
    """The updates with seq > after (and <= upto), in order, with as much of each as this policy learns from."""
    return lean_updates(ledger, after=after, upto=upto) if is_lean(policy) else ledger.read(after=after, upto=upto)


def is_erased_for(policy: Policy, decision: Decision) -> bool:
    """Whether what this policy needs of the decision was erased."""
    erased = decision.facts.get(ERASED)
    features_gone = erased == "texts and features" and "features" in policy.needs
    return features_gone or (erased is not None and "text" in policy.needs)
