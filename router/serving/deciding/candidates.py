"""Decisions with candidate policies, whose pmfs are recorded or mixed in, and decisions by the kill switch."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.draw import (
    Drawn,
    choose,
    drawn_by_arms,
    fallback_arm,
    is_explored,
    mixed,
    mixed_floor,
    outputs_of,
)
from ragbandit.router.serving.deciding.live import Candidate, LiveVersions
from ragbandit.router.serving.deciding.question import Question
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import CANDIDATE, KILLED, ArmName, Decision, FeatureRows, Json, PolicyControl, Query

#: facts of a decision with a value for each of its arms; they are dropped if the decision gets other arms
BY_ARM = ("quality", "cost", "weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedCandidate:
    candidate: Candidate
    questions: Sequence[Question]
    #: the candidate's draws, or the reason why the candidate was not asked
    pending: "Future[Any] | str"


def ask(live: LiveVersions, questions: Sequence[Question], *, features: FeatureRows) -> list[AskedCandidate]:
    """Start asking every candidate about the questions whose arm is drawn. features: shape (n, d), of all questions."""
    if not live.asks:
        return []
    rows = [row for row, question in enumerate(questions) if question.stay is None and not question.query.forced]
    questions, features = [questions[row] for row in rows], features[rows]
    return [_ask(candidate, questions, features=features) for candidate in live.candidates] if questions else []


def _ask(candidate: Candidate, questions: Sequence[Question], *, features: FeatureRows) -> AskedCandidate:
    arms = [_arms_of(candidate, question) for question in questions]
    queries = [question.served for question in questions]
    work = partial(_draws, candidate, queries, features=features, arms=arms)
    pending = candidate.fault or candidate.runner.submit(work)
    return AskedCandidate(candidate=candidate, questions=questions, pending=pending)


def _arms_of(candidate: Candidate, question: Question) -> tuple[ArmName, ...]:
    return question.arms + tuple(arm for arm in question.added if arm in candidate.added)


def _draws(
    candidate: Candidate, queries: Sequence[Query], *, features: FeatureRows, arms: Sequence[tuple[ArmName, ...]]
) -> list[Drawn]:
    """The pmf of each question as if the candidate were the champion. Raises if its facts cannot be written as JSON."""
    assert candidate.serving is not None
    serving = candidate.serving
    draws = drawn_by_arms(
        outputs_of(serving.policy, queries, features=features, arms=arms),
        arms=arms,
        seeds=[0] * len(queries),  # ignored: `_drawn_again` draws from the mixture with the decision's seed
        settings=serving.settings,
        seen=serving.seen,
    )
    for drawn in draws:
        if drawn.facts:
            canonical(drawn.facts)
    return draws


def mix_candidates(asked_candidates: Sequence[AskedCandidate]) -> None:
    """Record the candidates' pmfs in the decisions. For a canary, draw again from its mixture with the champion."""
    for asked in asked_candidates:
        candidate = asked.candidate
        for question, drawn in zip(asked.questions, _draws_of(asked), strict=True):
            if question.stay is None:  # a turn that keeps an arm for its cached prompt is not drawn again
                assert question.decision is not None
                arms = _arms_of(candidate, question)
                question.decision = _mixed(question.decision, drawn, candidate=candidate, arms=arms)


def _draws_of(asked: AskedCandidate) -> Sequence[Drawn | str]:
    """Wait for the candidate's draws, up to its time limit. If there are none, returns the reason for each question."""
    runner, count = asked.candidate.runner, len(asked.questions)
    if isinstance(asked.pending, str):
        return [asked.pending] * count
    try:
        draws: list[Drawn] = runner.result(asked.pending)
    except PolicyFault as fault:
        return [str(fault)] * count
    faults = [drawn.fault for drawn in draws if drawn.fault is not None]
    if len(faults) == count:
        runner.failed(faults[0])
    else:
        runner.succeeded()
    return draws


def _mixed(decision: Decision, drawn: Drawn | str, *, candidate: Candidate, arms: tuple[ArmName, ...]) -> Decision:
    fault = drawn if isinstance(drawn, str) else drawn.fault
    if fault is None and decision.fault is not None:
        fault = "the champion failed, and the fallback decided alone"
    version = candidate.version
    note: dict[str, Json] = {
        "version": version.name,
        "state": version.state,
        "weight": version.weight,
        "snapshot": None if candidate.serving is None else candidate.serving.version,
        "pmf": None,
        "fault": fault,
    }
    if fault is not None or isinstance(drawn, str):
        return _noted(decision, note)
    if version.state != "canary":
        by_arm = dict(zip(arms, drawn.pmf, strict=True))
        note["pmf"] = [by_arm.get(arm, 0.0) for arm in decision.arms]  # the canary, mixed before, may have added arms
        unseen = math.fsum(p for arm, p in by_arm.items() if arm not in decision.arms)
        return _noted(decision, note | {"unseen": unseen} if unseen else note)
    return _drawn_again(decision, drawn, note=note, arms=arms, weight=version.weight)


def _drawn_again(
    decision: Decision, drawn: Drawn, *, note: dict[str, Json], arms: tuple[ArmName, ...], weight: float
) -> Decision:
    """Draw again from the mixture of two pmfs: the champion's, which `decision` has, and the canary's."""
    added = arms[len(decision.arms) :]
    champion = (*decision.pmf, *(0.0 for _ in added))
    pmf = mixed(champion, drawn.pmf, weight=weight)
    note = {**note, "pmf": list(drawn.pmf), "champion": list(champion), "floor": decision.floor}
    index = choose(pmf, seed=decision.seed)
    floor = mixed_floor(decision.floor, drawn.floor, weight=weight, arms=len(arms), added=len(added))
    remade = replace(
        decision,
        arm=arms[index],
        arms=arms,
        pmf=pmf,
        propensity=pmf[index],
        floor=floor,
        explored=is_explored(pmf, index),
    )
    if added:
        note["added"] = list(added)
        facts = {name: value for name, value in decision.facts.items() if name not in BY_ARM}
        remade = replace(remade, scores=None, facts=facts)
    return _noted(remade, note)


def _noted(decision: Decision, note: dict[str, Json]) -> Decision:
    """Add a candidate's note to the decision. Notes of later candidates go into "others" of the first one's note."""
    first = decision.facts.get(CANDIDATE)
    if isinstance(first, Mapping):
        others = first.get("others")
        note = {**first, "others": [*(others if isinstance(others, list) else []), note]}
    return replace(decision, facts={**decision.facts, CANDIDATE: note})


def without_draw(decision: Decision, *, arm: ArmName, **changes: Any) -> Decision:
    """Replace the draw of a decision by an arm with probability 1, and other fields by `changes`."""
    certain: dict[str, Any] = {"arm": arm, "arms": (arm,), "pmf": (1.0,), "propensity": 1.0, "explored": False}
    return replace(decision, **certain, scores=None, fault=None, **changes)


#: `made_decisions` with all arguments bound, except the questions and the policy's outputs
Draw = Callable[..., list[Decision]]


def decide_pinned(questions: Sequence[Question], *, draw: Draw, control: PolicyControl, settings: Settings) -> None:
    """Give each question the pinned arm, or the fallback arm if the pinned arm is not allowed. Asks no policy."""
    pinned = ArmName(str(control.arm))
    for question in questions:
        question.arms = question.allowed
    outputs = [PolicyOutput(pmf=(1.0 / len(question.arms),) * len(question.arms)) for question in questions]
    for question, decision in zip(questions, draw(questions, outputs=outputs), strict=True):
        arm = pinned if pinned in question.arms else fallback_arm(settings.policy.fallback, arms=question.arms)
        facts: dict[str, Json] = {KILLED: {"arm": pinned, "revision": control.revision}}
        question.decision = without_draw(decision, arm=arm, facts=facts)
