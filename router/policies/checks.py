"""Checks of a policy against the configuration: params that name arms, and trained classifiers."""

import difflib

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.finetuned.table_classifier import TableClassifier

__all__ = ["check_fallback", "check_policy"]


#: params that name an arm for deciding; those for training are compared with the table when `fit` reads it
_ARM_PARAMS = ("arm", "first", "second", "below", "above", "fallback")


def check_policy(settings: Settings) -> None:
    """Refuse what cannot decide here: an unknown policy, wrong params, arms that are not there, no training for these.

    Raises ConfigError.
    """
    check_fallback(settings)
    policy = make_policy(settings.policy.name, params=settings.policy.params)
    _check_params(policy, settings=settings, at="policy.params")
    inner = getattr(policy, "inner", None)  # of a policy that wraps another one
    if inner is not None:
        _check_params(inner, settings=settings, at="policy.params.params")


def check_fallback(settings: Settings) -> None:
    """Refuse a fallback that is no arm. Raises ConfigError."""
    fallback = settings.policy.fallback
    if fallback is None or fallback in settings.arms:
        return
    alike = difflib.get_close_matches(fallback, settings.arms, n=1)
    raise ConfigError(
        f"{fallback!r} is not among the arms {sorted(settings.arms)}",
        field="policy.fallback",
        # Not to be named as the remedy: the arm's own name may be the wrong one.
        remedy=f"is it the arm {alike[0]!r}? Correct one of the two" if alike else "name one of them, or leave it out",
    )


def _check_params(policy: Policy, *, settings: Settings, at: str) -> None:
    for name in _ARM_PARAMS:
        arm = policy.params.get(name)
        if arm is not None and arm not in settings.arms:
            raise ConfigError(
                f"{arm!r} is not among the arms", field=f"{at}.{name}", remedy=f"use one of {sorted(settings.arms)}"
            )
    if isinstance(policy, TableClassifier):
        _check_training(policy, settings=settings, at=at)


def _check_training(policy: TableClassifier, *, settings: Settings, at: str) -> None:
    """It chooses among the arms of its table alone; it may know more arms than are offered."""
    retrain = f"ragbandit train --policy {policy.algorithm} --table T.jsonl --out FOLDER"
    if policy.params.get("trained") is None:
        raise ConfigError(f"{policy.algorithm} has not been trained", field=f"{at}.trained", remedy=retrain)
    unknown = sorted(set(settings.arms) - set(policy.trained_arms))
    if unknown:
        fault = "all arms would be alike" if len(unknown) == len(settings.arms) else "it would never choose them"
        raise ConfigError(
            f"trained on {sorted(policy.trained_arms)}, and does not know the configured arms {unknown}: {fault}",
            field=f"{at}.trained",
            remedy=f"give the arms the table's names, take those out, or train on a table that has them: {retrain}",
        )
