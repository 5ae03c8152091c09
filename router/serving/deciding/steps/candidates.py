"""Candidates: live versions in shadow record the pmf that they would draw from, and a canary is mixed into the draw."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ragbandit.router.policies.draw import (
    BY_ARM,
    Drawn,
    choose,
    drawn_by_arms,
    is_explored,
    mixed,
    mixed_floor,
    outputs_of,
)
from ragbandit.router.serving.deciding.steps.needs import LackingArms
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.live import Candidate
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import (
    ArmName,
    CandidateNote,
    CandidateNotes,
    Decision,
    FeatureRows,
    Query,
    candidate_notes,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    candidate: Candidate
    questions: Sequence[Question]
    #: the candidate's draws, or the reason why the candidate was not asked
    pending: "Future[Any] | str"


class CandidateArms(Step):
    """Adds arms that only candidates have, if the caller names no arms and all arms can do what the request needs."""

    def before(self, batch: Batch) -> None:
        if batch.live.asks:
            for question in batch.questions:
                if question.query.arms is None and LackingArms not in question.facts:
                    question.added = batch.live.added_for(question.run_by)


class Candidates(Step):
    """Asks the candidates on their own threads, while the champion is asked on the deciding thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._requests: list[_Request] = []

    def before(self, batch: Batch) -> None:
        if not batch.live.asks:
            return
        rows = [row for row, question in enumerate(batch.questions) if question.is_drawn]
        questions, features = [batch.questions[row] for row in rows], batch.features[rows]
        candidates = batch.live.candidates if questions else ()
        self._requests = [_ask(candidate, questions, features=features) for candidate in candidates]

    def after(self, batch: Batch) -> None:
        """Record the candidates' pmfs in the decisions. For a canary, draw again from its mixture with the champion."""
        for request in self._requests if batch.live.asks else ():
            candidate = request.candidate
            for question, drawn in zip(request.questions, _draws_of(request), strict=True):
                if question.is_drawn:  # a turn that keeps an arm for its cached prompt is not drawn again
                    assert question.decision is not None
                    arms = _arms_of(candidate, question)
                    question.decision, note = _mixed(question.decision, drawn, candidate=candidate, arms=arms)
                    earlier = question.fact(CandidateNotes)
                    notes = () if earlier is None else earlier.notes
                    question.add(CandidateNotes(notes=(*notes, note)))

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        place = decision.arms.index(decision.arm) if decision.arm in decision.arms else None
        for note in candidate_notes(decision.facts):
            yield _in_words(note, place=place, arm=decision.arm)


def _in_words(note: CandidateNote, *, place: int | None, arm: ArmName) -> str:
    if note.fault:
        return f"The candidate {note.version} had no part in the draw: {note.fault}."
    if note.state != "canary" or note.weight is None:
        shadow = f"The candidate {note.version} was in the shadow"
        return f"{shadow}: what it would have done is kept, and had no part in the draw."
    shares = ""
    champion, candidate = note.champion or (), note.pmf or ()
    if place is not None and place < min(len(champion), len(candidate)):
        shares = f": the champion gave {arm} {champion[place]:.4g}, the candidate {candidate[place]:.4g}"
    mixture = f"{1.0 - note.weight:.4g} champion and {note.weight:.4g} candidate {note.version}"
    return f"The draw was a mixture, {mixture}{shares}."


def _ask(candidate: Candidate, questions: Sequence[Question], *, features: FeatureRows) -> _Request:
    arms = [_arms_of(candidate, question) for question in questions]
    queries = [question.served for question in questions]
    work = partial(_draws, candidate, queries, features=features, arms=arms)
    pending = candidate.fault or candidate.runner.submit(work)
    return _Request(candidate=candidate, questions=questions, pending=pending)


def _arms_of(candidate: Candidate, question: Question) -> tuple[ArmName, ...]:
    return question.arms + tuple(arm for arm in question.added if arm in candidate.added)


def _draws(
    candidate: Candidate, queries: Sequence[Query], *, features: FeatureRows, arms: Sequence[tuple[ArmName, ...]]
) -> list[Drawn]:
    """The pmf of each question as if the candidate were the champion. Raises if its facts cannot be written as JSON."""
    served = candidate.served
    assert served is not None
    draws = drawn_by_arms(
        outputs_of(served.policy, queries, features=features, arms=arms),
        arms=arms,
        seeds=[0] * len(queries),  # ignored: `_drawn_again` draws from the mixture with the decision's seed
        settings=served.settings.policy,
        seen=served.seen,
    )
    for drawn in draws:
        if drawn.facts:
            canonical(drawn.facts)
    return draws


def _draws_of(request: _Request) -> Sequence[Drawn | str]:
    """Wait for the candidate's draws, up to its time limit. If there are none, returns the reason for each question."""
    runner, count = request.candidate.runner, len(request.questions)
    if isinstance(request.pending, str):
        return [request.pending] * count
    try:
        draws: list[Drawn] = runner.result(request.pending)
    except PolicyFault as fault:
        return [str(fault)] * count
    faults = [drawn.fault for drawn in draws if drawn.fault is not None]
    if len(faults) == count:
        runner.failed(faults[0])
    else:
        runner.succeeded()
    return draws


def _mixed(
    decision: Decision, drawn: Drawn | str, *, candidate: Candidate, arms: tuple[ArmName, ...]
) -> tuple[Decision, CandidateNote]:
    fault = drawn if isinstance(drawn, str) else drawn.fault
    if fault is None and decision.fault is not None:
        fault = "the champion failed, and the fallback decided alone"
    version = candidate.version
    note = CandidateNote(
        version=version.name,
        state=version.state,
        weight=version.weight,
        snapshot=None if candidate.served is None else candidate.served.version,
        pmf=None,
        fault=fault,
    )
    if fault is not None or isinstance(drawn, str):
        return decision, note
    if version.state != "canary":
        by_arm = dict(zip(arms, drawn.pmf, strict=True))
        pmf = tuple(by_arm.get(arm, 0.0) for arm in decision.arms)  # the canary, mixed before, may have added arms
        unseen = math.fsum(p for arm, p in by_arm.items() if arm not in decision.arms)
        return decision, replace(note, pmf=pmf, unseen=unseen or None)
    return _drawn_again(decision, drawn, note=note, arms=arms, weight=version.weight)


def _drawn_again(
    decision: Decision, drawn: Drawn, *, note: CandidateNote, arms: tuple[ArmName, ...], weight: float
) -> tuple[Decision, CandidateNote]:
    """Draw again from the mixture of two pmfs: the champion's, which `decision` has, and the canary's."""
    added = arms[len(decision.arms) :]
    champion = (*decision.pmf, *(0.0 for _ in added))
    pmf = mixed(champion, drawn.pmf, weight=weight)
    note = replace(note, pmf=drawn.pmf, champion=champion, floor=decision.floor, added=added)
    index = choose(pmf, seed=decision.seed)
    floor = mixed_floor(decision.floor, drawn.floor, weight=weight, arms=len(arms), added=len(added))
    mixture = replace(
        decision,
        arm=arms[index],
        arms=arms,
        pmf=pmf,
        propensity=pmf[index],
        floor=floor,
        explored=is_explored(pmf, index),
    )
    if added:
        facts = {name: value for name, value in decision.facts.items() if name not in BY_ARM}
        mixture = replace(mixture, scores=None, facts=facts)
    return mixture, note
