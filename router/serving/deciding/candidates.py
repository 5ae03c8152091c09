"""Deciding with versions: candidates give pmfs in addition to the champion, canaries are mixed in, and the kill switch
pins an arm.
"""

import math
from collections.abc import Mapping, Sequence
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

#: facts of a policy that are lists over its arms: they would not fit other arms
BY_ARM = ("quality", "cost", "weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedCandidate:
    """A batch in the hands of one candidate, or why it is not."""

    candidate: Candidate
    questions: Sequence[Question]
    pending: "Future[Any] | str"

    def arms_of(self, question: Question) -> tuple[ArmName, ...]:
        """The arms of its pmf."""
        return question.arms + tuple(arm for arm in question.added if arm in self.candidate.added)


def ask(live: LiveVersions, questions: Sequence[Question], *, features: FeatureRows) -> list[AskedCandidate]:
    """Begin to ask every candidate about the questions of a batch that are drawn. features: of the batch, (n, d)."""
    if not live.asks:
        return []
    drawn = [row for row, one in enumerate(questions) if one.stay is None and not one.query.forced]
    questions, features = [questions[row] for row in drawn], features[drawn]
    queries = [one.served for one in questions]
    begun = []
    for candidate in live.candidates if questions else ():
        one = AskedCandidate(candidate=candidate, questions=questions, pending=candidate.fault or "")
        if candidate.fault is None:
            arms = [one.arms_of(question) for question in questions]
            work = partial(_draws, candidate, queries, features=features, arms=arms)
            one = replace(one, pending=candidate.runner.submit(work))
        begun.append(one)
    return begun


def _draws(
    candidate: Candidate, queries: Sequence[Query], *, features: FeatureRows, arms: Sequence[tuple[ArmName, ...]]
) -> list[Drawn]:
    """Each question's pmf as it would be drawn from, were the candidate the champion."""
    assert candidate.serving is not None
    serving = candidate.serving
    draws = drawn_by_arms(
        outputs_of(serving.policy, queries, features=features, arms=arms),
        arms=arms,
        seeds=[0] * len(queries),  # its arm is not read: a mixture is drawn from by the seed of the decision
        settings=serving.settings,
        seen=serving.seen,
    )
    for one in draws:
        if one.facts:
            canonical(one.facts)  # they are kept once it is champion: what cannot be is a fault now
    return draws


def mix_candidates(begun: Sequence[AskedCandidate]) -> None:
    """Note in the decisions of the questions what candidates say; draw again where a canary has a share."""
    for one in begun:
        for question, drawn in zip(one.questions, _draws_of(one), strict=True):
            assert question.decision is not None
            if question.stay is None:  # else it stays for its cached prompt, and nothing is drawn
                arms = one.arms_of(question)
                question.decision = _mixed(question.decision, drawn, candidate=one.candidate, arms=arms)


def _draws_of(begun: AskedCandidate) -> Sequence[Drawn | str]:
    """The pmfs of a candidate, or why there are none. Waits for them, for its limit at most."""
    runner = begun.candidate.runner
    try:
        if isinstance(begun.pending, str):
            return [begun.pending] * len(begun.questions)
        drawn: list[Drawn] = runner.result(begun.pending)
    except PolicyFault as fault:
        return [str(fault)] * len(begun.questions)
    faults = [one.fault for one in drawn if one.fault is not None]
    if len(faults) == len(drawn):
        runner.failed(faults[0])
    else:
        runner.succeeded()
    return drawn


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
        note["pmf"] = [by_arm.get(arm, 0.0) for arm in decision.arms]  # a canary may have added some
        unseen = math.fsum(p for arm, p in by_arm.items() if arm not in decision.arms)
        return _noted(decision, note | {"unseen": unseen} if unseen else note)
    return _drawn_again(decision, drawn, note=note, arms=arms, weight=version.weight)


def _drawn_again(
    decision: Decision, drawn: Drawn, *, note: Mapping[str, Json], arms: tuple[ArmName, ...], weight: float
) -> Decision:
    """The decision with the mixture of the champion's pmf, which it has, and the canary's."""
    added = arms[len(decision.arms) :]
    champion = (*decision.pmf, *(0.0 for _ in added))
    pmf = mixed(champion, drawn.pmf, weight=weight)
    more: dict[str, Json] = {"pmf": list(drawn.pmf), "champion": list(champion), "floor": decision.floor}
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
        more["added"] = list(added)
        facts = {name: value for name, value in decision.facts.items() if name not in BY_ARM}
        remade = replace(remade, scores=None, facts=facts)
    return _noted(remade, {**note, **more})


def _noted(decision: Decision, note: Mapping[str, Json]) -> Decision:
    first = decision.facts.get(CANDIDATE)
    if isinstance(first, Mapping):
        others = first.get("others")
        note = {**first, "others": [*(others if isinstance(others, list) else []), note]}
    return replace(decision, facts={**decision.facts, CANDIDATE: dict(note)})


def pinned_output(arms: Sequence[ArmName]) -> PolicyOutput:
    """The placeholder output while an arm is pinned: the policy is not asked."""
    return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms))


def pinned(decision: Decision, *, control: PolicyControl, settings: Settings) -> Decision:
    """The decision for the pinned arm, or for the fallback if the question does not allow it. As for turns that stay,
    one arm is offered with probability 1, and the policy draws nothing.
    """
    wanted = str(control.arm)
    arm = ArmName(wanted) if wanted in decision.arms else fallback_arm(settings.policy.fallback, arms=decision.arms)
    return replace(
        decision,
        arm=arm,
        arms=(arm,),
        pmf=(1.0,),
        propensity=1.0,
        scores=None,
        explored=False,
        fault=None,
        facts={KILLED: {"arm": wanted, "revision": control.revision}},
    )
