"""Candidates: versions in shadow, whose pmfs are recorded with each decision. They have no part in the draw."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from ragbandit.router.policies.draw import DrawResult, draw_each, outputs_of
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.live import Candidate
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import (
    AppliedRules,
    ArmName,
    CandidateNote,
    CandidateNotes,
    Decision,
    FeatureRows,
    LackingArms,
    Query,
    candidate_notes,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    candidate: Candidate
    questions: Sequence[Question]
    #: the arms that the candidate may draw, for each question
    arms: Sequence[tuple[ArmName, ...]]
    #: the candidate's draws, or the reason why the candidate was not asked
    pending: "Future[Any] | str"


class Candidates(Step):
    """Asks the candidates on their own threads, while the champion is asked on the deciding thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._requests: list[_Request] = []

    def before(self, batch: Batch) -> None:
        if not (batch.live.candidates and batch.live.asks_candidates):
            return
        rows = [row for row, question in enumerate(batch.questions) if question.is_drawn]
        questions, features = [batch.questions[row] for row in rows], batch.features[rows]
        candidates = batch.live.candidates if questions else ()
        self._requests = [_ask(candidate, questions, features=features) for candidate in candidates]

    def after(self, batch: Batch) -> None:
        """Record the candidates' pmfs in the decisions."""
        for request in self._requests if batch.live.candidates and batch.live.asks_candidates else ():
            for question, arms, drawn in zip(request.questions, request.arms, _wait_for_draws(request), strict=True):
                if question.is_drawn:  # not if the caller, a step or an earlier turn has chosen the arm
                    note = _note(question, drawn, candidate=request.candidate, arms=arms)
                    earlier = question.fact(CandidateNotes)
                    question.add(CandidateNotes(notes=(*(() if earlier is None else earlier.notes), note)))

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        for note in candidate_notes(decision.facts):
            fact = (
                f"gave no probabilities: {note.fault}" if note.fault else "was asked too; its probabilities are logged"
            )
            yield f"The version {note.version}, in shadow, {fact}."


def _ask(candidate: Candidate, questions: Sequence[Question], *, features: FeatureRows) -> _Request:
    # The version is asked as if it decided: a request that may get any arm may get the arms that only the version has.
    arms = [
        question.arms + (candidate.added_for(question.run_by) if _is_open(question) else ()) for question in questions
    ]
    queries = [question.served for question in questions]
    work = partial(_draw_as_champion, candidate, queries, features=features, arms=arms)
    pending = candidate.fault or candidate.runner.submit(work)
    return _Request(candidate=candidate, questions=questions, arms=arms, pending=pending)


def _is_open(question: Question) -> bool:
    """Whether every arm may answer: the query names no arms, no rule applies, and no arm lacks an ability."""
    return question.query.arms is None and not {LackingArms, AppliedRules} & question.facts.keys()


def _draw_as_champion(
    candidate: Candidate, queries: Sequence[Query], *, features: FeatureRows, arms: Sequence[tuple[ArmName, ...]]
) -> list[DrawResult]:
    """The pmf of each question as if the candidate were the champion. Raises if facts cannot be written as JSON."""
    served = candidate.served
    assert served is not None
    draws = draw_each(
        outputs_of(served.policy, queries, features=features, arms=arms),
        arms=arms,
        seeds=None,
        settings=served.settings.policy,
        learned=served.seen,
        released=[query.terms.is_spent for query in queries],
    )
    for drawn in draws:
        if drawn.facts:
            canonical(drawn.facts)
    return draws


def _wait_for_draws(request: _Request) -> Sequence[DrawResult | str]:
    """Wait for the candidate's draws, up to its time limit. Without draws, returns the reason for each question."""
    runner, count = request.candidate.runner, len(request.questions)
    if isinstance(request.pending, str):
        return [request.pending] * count
    try:
        draws: list[DrawResult] = runner.result(request.pending)
    except PolicyFault as fault:
        return [str(fault)] * count
    faults = [drawn.fault for drawn in draws if drawn.fault is not None]
    if len(faults) == count:
        runner.note_failure(faults[0])
    else:
        runner.note_success()
    return draws


def _note(
    question: Question, drawn: DrawResult | str, *, candidate: Candidate, arms: tuple[ArmName, ...]
) -> CandidateNote:
    decision = question.decision
    assert decision is not None
    fault = drawn if isinstance(drawn, str) else drawn.fault
    pmf = unseen = None
    if fault is None and isinstance(drawn, DrawResult):
        by_arm = dict(zip(arms, drawn.pmf, strict=True))
        pmf = tuple(by_arm.get(arm, 0.0) for arm in decision.arms)
        unseen = math.fsum(p for arm, p in by_arm.items() if arm not in decision.arms) or None
    snapshot = None if candidate.served is None else candidate.served.version
    return CandidateNote(version=candidate.version.name, snapshot=snapshot, pmf=pmf, fault=fault, unseen=unseen)
