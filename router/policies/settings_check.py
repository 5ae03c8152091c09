"""Checks that a policy fits the configured arms, because a mistyped arm would silently change its decisions."""

import difflib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import CONSERVATIVE, untrained_policy
from ragbandit.router.policies.base import PARAMS_KEY, Policy, TableTrained, needs_every_arm, schema_of
from ragbandit.router.policies.needs import need_source
from ragbandit.shared.errors import ConfigError

log = logging.getLogger("ragbandit.policies")


def check_policy(settings: Settings) -> None:
    """Raise ConfigError if the policy is unknown, is not trained, or has wrong params or unknown arms."""
    configured, arms = settings.policy, sorted(settings.arms)
    check_fallback(configured, arms=arms)
    _check_incumbent(configured, arms=arms)
    _check_holdback(configured, arms=arms)
    unprotected = configured.model_copy(update={"incumbent": None})
    policy = untrained_policy(replace(settings.policy_definition, settings=unprotected))
    check_arms(policy, arms=arms, where=PARAMS_KEY)
    for need in sorted(policy.needs - {"features", "text"}):
        undescribed = sorted(settings.arms.keys() - settings.arm_descriptions.keys())
        need_source(need).check(configured, generator=settings.generator, undescribed=undescribed)
    if settings.log.text != "full":
        _check_without_texts(policy, worker_arms=sorted(settings.worker_arms))
    if settings.context and not schema_of(policy):
        details = {"action": "context_unused"}
        log.warning("context: %s does not learn from it; mba, linucb and vw do", policy.algorithm, extra=details)


def _check_without_texts(policy: Policy, *, worker_arms: Sequence[str]) -> None:
    """Raise ConfigError if the policy or workers read stored texts, since none are stored."""
    if "text" in policy.needs:
        fault = f"{policy.algorithm} learns from questions, and log.text: none does not store them"
        remedy = "set it to full, or choose a policy that needs only features"
        raise ConfigError(fault, field="log.text", remedy=remedy)
    if worker_arms:
        fault = f"workers read questions for {worker_arms[0]} in the database, and log.text: none does not store them"
        raise ConfigError(fault, field="log.text", remedy="set it to full, or set run_by: caller for every arm")


def check_fallback(policy: PolicySettings, *, arms: Sequence[str]) -> None:
    _check_arm(policy.fallback, field="policy.fallback", arms=arms)


def _check_incumbent(policy: PolicySettings, *, arms: Sequence[str]) -> None:
    _check_arm(policy.incumbent, field="policy.incumbent", arms=arms)
    if policy.incumbent is not None and policy.name == CONSERVATIVE:
        message = f"the policy {CONSERVATIVE} has an incumbent of its own"
        remedy = "remove it, or set policy.name to the inner policy"
        raise ConfigError(message, field="policy.incumbent", remedy=remedy)


def _check_holdback(policy: PolicySettings, *, arms: Sequence[str]) -> None:
    holdback, incumbent = policy.holdback, policy.incumbent
    if holdback is None:
        return
    arm = holdback.arm
    _check_arm(arm, field="policy.holdback.arm", arms=arms)
    if incumbent not in (None, arm):
        message = f"{arm!r} would keep its share even if it loses reward against policy.incumbent, {incumbent!r}"
        remedy = f"set it to {incumbent}, or remove one of the two"
        raise ConfigError(message, field="policy.holdback.arm", remedy=remedy)


def _check_arm(arm: str | None, *, field: str, arms: Sequence[str]) -> None:
    if arm is None or arm in arms:
        return
    similar = difflib.get_close_matches(arm, arms, n=1)
    raise ConfigError(
        f"{arm!r} is not among the arms {sorted(arms)}",
        field=field,
        remedy=f"is it the arm {similar[0]!r}? Correct one of the two" if similar else "name one, or leave it out",
    )


def check_arms(policy: Policy, *, arms: Sequence[str], where: str) -> None:
    """Raise ConfigError if the policy names an arm that is not in `arms`, or if it is not trained for all arms in
    `arms`.

    where: the path of the params, for messages.
    """
    for name, arm in policy.arms_named.items():
        if arm not in arms:
            remedy = f"use one of {', '.join(arms)}"
            raise ConfigError(f"{arm!r} is not among the arms", field=f"{where}.{name}", remedy=remedy)
    for part, prefix in _policy_and_inner(policy, where=where):
        if isinstance(part, TableTrained):
            _check_training(part, arms=arms, field=f"{prefix}.trained")


def _policy_and_inner(policy: Policy, *, where: str) -> Iterator[tuple[Policy, str]]:
    yield policy, where
    inner = getattr(policy, "inner", None)
    if inner is not None:
        yield from _policy_and_inner(inner, where=f"{where}.params")


def _check_training(policy: TableTrained, *, arms: Sequence[str], field: str) -> None:
    retrain = f"`ragbandit policy train --policy {policy.algorithm} --table T.jsonl --out FOLDER`"
    if not policy.trained_arms:
        setting = f"set {field}: FOLDER" if field.startswith(PARAMS_KEY) else f"give --param {field}=FOLDER"
        message = f"{policy.algorithm} is not trained, and does not learn from a log"
        raise ConfigError(message, field=field, remedy=f"{retrain}; then {setting}")
    unknown = [arm for arm in arms if arm not in policy.trained_arms]
    if unknown and needs_every_arm(policy):
        fault = "it would choose at random" if len(unknown) == len(arms) else "it would never choose them"
        message = f"trained on {sorted(policy.trained_arms)}, and does not know the arms {unknown}: {fault}"
        remedy = f"give the arms the table's names, take those out, or train on a table that has them: {retrain}"
        raise ConfigError(message, field=field, remedy=remedy)
