"""Checks of a policy against the arms that are there: the arms that its params name, and a trained classifier's arms.

`serve`, `simulate` and `replay` use the same check: a mistyped arm would change what a policy does without a word.
"""

import difflib
import logging
from collections.abc import Iterator, Sequence

from ragbandit.router.config.context_schema import OF_TEXT, reads_text
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import CONSERVATIVE, make_policy, with_settings
from ragbandit.router.policies.base import WHERE, Policy, schema_of
from ragbandit.router.policies.finetuned.classifiers import TableClassifier
from ragbandit.shared.errors import ConfigError

log = logging.getLogger("ragbandit.policies")


def check_policy(settings: Settings) -> None:
    """Refuse a policy that cannot decide here: unknown, with wrong params, for other arms, or not trained.

    Raises ConfigError.
    """
    check_fallback(settings)
    check_incumbent(settings)
    _check_holdback(settings)
    configured = settings.policy
    params = with_settings(configured.name, params=configured.params, schema=settings.context, facts=settings.arm_facts)
    policy = make_policy(configured.name, params=params)
    check_arms(policy, arms=sorted(settings.arms), where=WHERE)
    _check_texts(policy, settings=settings)
    if settings.context and not schema_of(policy):
        log.warning(
            "context: %s does not learn from it; mba, linucb and vw do",
            policy.algorithm,
            extra={"action": "context_unused"},
        )


def _check_texts(policy: Policy, *, settings: Settings) -> None:
    """Refuse what cannot work where no texts are kept: learning from them again, and answering from the database."""
    if settings.log.text == "full":
        return
    if "text" in policy.needs:
        fault = f"{policy.algorithm} learns from questions, and log.text: {settings.log.text} keeps none"
        raise ConfigError(
            fault, field="log.text", remedy="set it to full, or choose a policy that needs features alone"
        )
    if reads_text(schema_of(policy)):
        key = next(key for key, one in settings.context.items() if one.type in OF_TEXT)
        fault = f"it is read off the question, and log.text: {settings.log.text} keeps none to learn it from again"
        raise ConfigError(
            fault, field=f"context.{key}", remedy="set log.text to full, or let callers send it under a type of its own"
        )
    if settings.worker_arms:
        arm = sorted(settings.worker_arms)[0]
        fault = (
            f"workers run the arm {arm} and read the question in the database, log.text: {settings.log.text} keeps none"
        )
        raise ConfigError(fault, field="log.text", remedy="set it to full, or set run_by: caller for every arm")


def check_fallback(settings: Settings) -> None:
    """Refuse a fallback that is no arm. Raises ConfigError."""
    _check_arm(settings.policy.fallback, field="policy.fallback", settings=settings)


def check_incumbent(settings: Settings) -> None:
    """Refuse an incumbent that is no arm, and one around a policy that has its own. Raises ConfigError."""
    _check_arm(settings.policy.incumbent, field="policy.incumbent", settings=settings)
    if settings.policy.incumbent is not None and settings.policy.name == CONSERVATIVE:
        raise ConfigError(
            f"the policy {CONSERVATIVE} has an incumbent of its own",
            field="policy.incumbent",
            remedy="leave it out, or name the policy inside in policy.name",
        )


def _check_holdback(settings: Settings) -> None:
    """Refuse a holdback whose arm is none, or another one than the incumbent, which nothing may fall behind."""
    holdback, incumbent = settings.policy.holdback, settings.policy.incumbent
    if holdback is None:
        return
    _check_arm(holdback.arm, field="policy.holdback.arm", settings=settings)
    if incumbent not in (None, holdback.arm):
        raise ConfigError(
            f"{holdback.arm!r} would have its share whatever it costs against policy.incumbent, {incumbent!r}",
            field="policy.holdback.arm",
            remedy=f"set it to {incumbent}, or leave one of the two out",
        )


def _check_arm(arm: str | None, *, field: str, settings: Settings) -> None:
    if arm is None or arm in settings.arms:
        return
    alike = difflib.get_close_matches(arm, settings.arms, n=1)
    raise ConfigError(
        f"{arm!r} is not among the arms {sorted(settings.arms)}",
        field=field,
        # Not to be named as the remedy: the arm's own name may be the wrong one.
        remedy=f"is it the arm {alike[0]!r}? Correct one of the two" if alike else "name one of them, or leave it out",
    )


def check_arms(policy: Policy, *, arms: Sequence[str], where: str, trains: bool = False) -> None:
    """Refuse a policy that names an arm which is not among these, or that was not trained for all of them.

    where: what the fields of errors begin with. trains: a policy that is not trained yet will be, before it decides.
    Raises ConfigError with field "<where>.<param>".
    """
    for name, arm in policy.arms_named.items():
        if arm not in arms:
            raise ConfigError(
                f"{arm!r} is not among the arms", field=f"{where}.{name}", remedy=f"use one of {', '.join(arms)}"
            )
    for one, prefix in _with_inner(policy, where=where):
        if isinstance(one, TableClassifier) and not (trains and one.params.get("trained") is None):
            _check_training(one, arms=arms, field=f"{prefix}.trained")


def _with_inner(policy: Policy, *, where: str) -> Iterator[tuple[Policy, str]]:
    """The policy, and the one inside of it where it wraps one, each with the prefix of its params."""
    yield policy, where
    inner = getattr(policy, "inner", None)
    if inner is not None:
        yield from _with_inner(inner, where=f"{where}.params")


def _check_training(policy: TableClassifier, *, arms: Sequence[str], field: str) -> None:
    """It chooses among the arms of its table alone; it may know more arms than are offered."""
    retrain = f"ragbandit policy train --policy {policy.algorithm} --table T.jsonl --out FOLDER"
    if policy.params.get("trained") is None:
        setting = f"set {field}: FOLDER" if field.startswith(WHERE) else f"give --param {field}=FOLDER"
        message = f"{policy.algorithm} is not trained, and learns nothing from a log"
        raise ConfigError(message, field=field, remedy=f"{retrain}; then {setting}")
    unknown = [arm for arm in arms if arm not in policy.trained_arms]
    if unknown:
        fault = "all arms would be alike" if len(unknown) == len(arms) else "it would never choose them"
        raise ConfigError(
            f"trained on {sorted(policy.trained_arms)}, and does not know the arms {unknown}: {fault}",
            field=field,
            remedy=f"give the arms the table's names, take those out, or train on a table that has them: {retrain}",
        )
