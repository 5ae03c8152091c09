"""Candidates of a replay that learn the log: their definitions, and the columns of the log that they write."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ragbandit.router.config.learning import PolicyDefinition, PolicySettings
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.parts import import_flags
from ragbandit.router.offline.replay.plan import (
    CandidateSpec,
    Description,
    Learned,
    Plan,
    candidate_description,
)
from ragbandit.router.offline.replay.policy_pmfs import (
    MakeEncoder,
    cross_fit,
    make_served_policy,
    row_updates,
    with_features,
)
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import TableTrained
from ragbandit.router.policies.settings_check import check_arms
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, Update


def learn_columns(
    log: MemoryLog,
    *,
    candidates: Sequence[CandidateSpec],
    plan: Plan,
    definition: PolicyDefinition,
    encoder: MakeEncoder | None = None,
    progress: Progress = no_progress,
) -> tuple[MemoryLog, list[Description]]:
    """Let each candidate that learns write its column of the log. definition: of the configured policy.

    Other parameters and errors: see `replay`.
    Returns (the log with these columns, descriptions of all candidates).
    """
    partial_rows = np.count_nonzero(log.log.partial)  # type: ignore[arg-type] # None counts as 0
    if partial_rows:
        message = (
            f"{partial_rows} rows have the probability of the drawn arm only, and a policy needs that of every arm"
        )
        raise InvalidInput(message, field="pmf", remedy="log the whole pmf, or judge fixed:ARM with --baseline logged")
    in_force = dict[str, PolicyDefinition]()
    for spec in candidates:
        if spec.learns:
            usual = spec.current or definition
            in_force[spec.name] = replace(usual, settings=settings_in_force(usual.settings, arms=log.log.arms))
            check_candidate(spec, arms=log.log.arms)
    served = {spec.name: make_served_policy(spec, definition=in_force[spec.name]) for spec in candidates if spec.learns}
    log = replace(log, log=plan.read_at_weight(log.log))
    if log.log.features is None and any("features" in policy.needs for policy in served.values()):
        log = with_features(log, encoder=encoder, progress=progress)
    updates = row_updates(log, plan=plan) if served else []
    for name, policy in served.items():
        if "pick" in policy.needs:
            _check_picks(updates, name=name)
    columns, descriptions = dict(log.log.pmfs), list[Description]()
    for spec in candidates:
        if spec.name not in served:
            descriptions.append(Description(described=candidate_description(spec)))
            continue
        columns[spec.name], notes = cross_fit(
            log,
            name=spec.name,
            make=partial(make_served_policy, spec, definition=in_force[spec.name]),
            updates=updates,
            folds=folds_of(log.log.questions, folds=plan.folds),
            settings=in_force[spec.name].settings,
            progress=progress,
        )
        if isinstance(served[spec.name], TableTrained):
            description = f"{spec.what}, trained before on a table, not on this log"
            learned: Learned = None
        else:
            description = f"{spec.what}, each of {plan.folds} folds judged by what the others taught"
            # The name of the serving policy describes what it has learned.
            learned = None if spec.current else "folds"
        descriptions.append(Description(described=description, notes=notes, learned=learned))
    return replace(log, log=replace(log.log, pmfs=columns)), descriptions


def _check_picks(updates: Sequence[Update], *, name: str) -> None:
    """Raise InvalidInput if a row lacks a model's pick, because replay does not ask models."""
    missing = sum(not update.query.sent.pick for update in updates)
    if missing:
        message = f"{missing} of {len(updates)} rows have no pick of a model, and replay asks no model"
        remedy = "replay it on decisions since it decides or is in shadow: --since DATE"
        raise InvalidInput(message, field=name, remedy=remedy)


def check_candidate(candidate: CandidateSpec, *, arms: Sequence[ArmName]) -> None:
    """Raise ConfigError if a policy would fall back: it names an unknown arm, or was trained for other arms."""
    policy = make_policy(candidate.what, params=candidate.params)
    try:
        check_arms(policy, arms=arms, where=candidate.name)
    except ConfigError as error:
        if error.field is None or error.field.count(".") != 1:  # --param cannot set an inner policy's params
            raise
        if "--param" in (error.remedy or ""):
            raise
        remedy = f"{error.remedy}; then give --param {error.field}=VALUE"
        raise ConfigError(error.message, field=error.field, remedy=remedy) from error


def settings_in_force(settings: PolicySettings, *, arms: Sequence[ArmName]) -> PolicySettings:
    """The settings; without their incumbent, if the log lacks this arm."""
    return settings if settings.incumbent in arms else settings.model_copy(update={"incumbent": None})


def serving_definition(log: MemoryLog, *, configured: PolicyDefinition) -> PolicyDefinition | None:
    """The policy that served the log; None if it was logged elsewhere."""
    if log.serving is not None:
        return log.serving
    served = (log.log.fields["policy"] == configured.settings.label) & ~import_flags(log.log)
    return configured if served.any() else None
