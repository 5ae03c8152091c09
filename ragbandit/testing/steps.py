"""Check of the contract of steps of deciding. It needs no test framework, no model and no Redis.

    def test_mine():
        check_step(Mine, questions=[Query(text="Who signs?", context={"hurry": True})])

It raises AssertionError if the step breaks the contract.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.questions import new_id
from ragbandit.router.serving.deciding import steps
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.explanations.chances import preview_of
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.serving.router import Router
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import Forbidden, InvalidInput, LimitReached, RagBanditError, StoreError
from ragbandit.shared.types import Decision, DecisionId, Fact, Json, Query
from ragbandit.testing.damages import damaged_records

#: maximum processor time of one call of `asks`, seconds
_QUICK_S: Final = 0.1
#: longest wait for a decision, seconds
_WAIT_S: Final = 60.0
_ARM: Final[Mapping[str, Json]] = {"run_by": "caller"}
_USUAL: Final[Mapping[str, Json]] = {
    "arms": {"first": _ARM, "second": _ARM, "third": _ARM},
    "encoder": {"model": "hashing"},
}
#: questions that every step gets besides those of the author
QUESTIONS: Final = (
    Query(text="Who wrote Dracula?"),
    Query(text="北京 😀 \t?! " + "long " * 500, context={"plan": "pro", "nested": {"list": [1, None]}, "hurry": True}),
    Query(text="Who?", tenant="acme", session="s-1"),
)
#: maximum numbers of decisions that are explained, and that are explained with damaged facts
_MOST_EXPLAINED: Final = 12
_MOST_DAMAGED: Final = 6
_METRIC: Final = re.compile("ragbandit(_[a-z0-9]+)+")


def check_step(
    kind: type[Step],
    *,
    questions: Sequence[Query] = (),
    settings: Mapping[str, Json] | None = None,
    begin: Callable[[Router], object] | None = None,
) -> None:
    """Decides questions with a router and a store of its own, by the steps of this tree and the checked step.

    questions: questions on which the step has an effect. settings: keys of the configuration that the step needs.
    begin: called with the router before the first question.
    """
    with _router(kind, settings=settings or {}) as router:
        if begin is not None:
            begin(router)
        step = router.service.step(kind)
        watch = _Watch(kind=kind, step=step)
        watch.run(lambda: router.service.take_over(router.service.serving))  # as when another version takes over
        watch.run(router.service.refresh_steps)
        decisions = [*_decide_all(router, [*QUESTIONS, *questions], watch=watch)]
        watch.run(router.service.refresh_steps)
        _check_counters(step)
        for decision in decisions[:_MOST_EXPLAINED]:
            _check_stored(router, decision.id, watch=watch)
        _check_explanations(kind, decisions, watch=watch)
    assert watch.acts, "the step did nothing: give questions, and the settings that it needs"


@contextmanager
def _router(kind: type[Step], *, settings: Mapping[str, Json]) -> Iterator[Router]:
    """A router with the steps of this tree, and the step if no addition offers it yet."""
    assert issubclass(kind, Step), f"{kind!r} is no subclass of Step"
    with ExitStack() as stack:
        if kind not in steps.all_steps():
            offered = {**load_offered("steps"), kind.__name__: kind}
            stack.enter_context(patch.object(steps, "load_offered", lambda _hook: offered))
        try:
            steps.all_steps()
        except RagBanditError as error:
            raise AssertionError(f"the step has no place: {error}") from error
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        given = Settings.model_validate({**_USUAL, **settings, "data_dir": folder})
        try:
            router = stack.enter_context(Router.open(given, jobs=MemoryJobs()))
        except Exception as error:
            raise AssertionError(f"no router starts with the step: {error!r}") from error
        yield router


@dataclass(kw_only=True)
class _Watch:
    """Calls the methods of a step for the router, and notes their faults."""

    kind: type[Step]
    step: Step
    faults: list[str] = field(default_factory=list)
    #: whether the step has done anything
    acts: bool = False
    #: id of a decision -> the question, and the facts that the step added to it
    added: dict[str, tuple[Question, list[Fact]]] = field(default_factory=dict)
    #: number of reads of the store by the running method
    reads: int = 0

    def __post_init__(self) -> None:
        step: Any = self.step
        for name in ("check", "asks", "before", "after", "note_committed", "refresh", "configure"):
            setattr(step, name, partial(getattr(self, f"_{name}"), getattr(step, name)))
        step.prepare = partial(self._prepare, step.prepare)
        database: Any = step.database
        for name in ("read", "connection"):
            setattr(database, name, partial(self._count, getattr(database, name)))

    def run(self, call: Callable[[], object]) -> None:
        """Call `call`. If the step has a fault, raise AssertionError in place of the error that follows from it."""
        try:
            call()
        finally:
            self.report()

    def report(self) -> None:
        assert not self.faults, "\n".join(dict.fromkeys(self.faults))

    def _count(self, read: Callable[[], object]) -> object:
        self.reads += 1
        return read()

    def _call(
        self, name: str, call: Callable[..., Any], *given: Any, allows: tuple[type[Exception], ...] = (), **more: Any
    ) -> Any:
        try:
            return call(*given, **more)
        except allows:
            self.acts = True
            raise
        except Exception as error:
            self.faults.append(f"`{name}` raised {error!r}")
            raise

    def _configure(self, call: Callable[..., None], served: Any) -> None:
        self._call("configure", call, served)

    def _check(self, call: Callable[..., None], question: Question) -> None:
        before = dict(question.facts), question.allowed, question.query
        self._call("check", call, question, allows=(InvalidInput, Forbidden))
        self._note_facts(question, before=before[0])
        self.acts |= (question.allowed, question.query) != before[1:]

    def _asks(self, call: Callable[..., bool], question: Question, *, live: Any) -> bool:
        begun = time.thread_time()
        asks = self._call("asks", call, question, live=live)
        taken_s = time.thread_time() - begun
        if not isinstance(asks, bool):
            self.faults.append(f"`asks` returned {asks!r}, neither True nor False")
        if taken_s > _QUICK_S:
            self.faults.append(f"`asks` took {taken_s:.2f} s of processor time")
        return bool(asks)

    async def _prepare(self, call: Callable[..., Any], question: Question, *, live: Any) -> None:
        self.acts = True
        try:
            await call(question, live=live)
        except Exception as error:
            self.faults.append(f"`prepare` raised {error!r}")
            raise

    def _before(self, call: Callable[..., None], batch: Batch) -> None:
        known = [(dict(question.facts), _choices_of_steps(question)) for question in batch.questions]
        self._call_counting_reads("before", call, batch)
        for question, (facts, choice) in zip(batch.questions, known, strict=True):
            self._note_facts(question, before=facts)
            self.acts |= _choices_of_steps(question) != choice
            self._check_arms(question)

    def _check_arms(self, question: Question) -> None:
        arms, allowed = question.arms, question.allowed
        if not isinstance(arms, tuple) or not arms:
            self.faults.append(f"`before` left {arms!r} as the arms of a question: a tuple with one arm at least")
        elif len({*arms}) < len(arms) or not {*arms} <= {*allowed}:
            self.faults.append(f"`before` left the arms {arms!r}, which are not among the allowed ones, {allowed!r}")
        if question.certain_arm is not None and question.certain_arm not in allowed:
            self.faults.append(
                f"`before` chose {question.certain_arm!r}, which is not among the allowed ones, {allowed!r}"
            )

    def _after(self, call: Callable[..., None], batch: Batch) -> None:
        known = [(dict(question.facts), question.decision) for question in batch.questions]
        self._call_counting_reads("after", call, batch)
        for question, (facts, decision) in zip(batch.questions, known, strict=True):
            self._note_facts(question, before=facts)
            self.acts |= question.decision is not decision
            if question.decision is None or question.decision.arm not in question.decision.arms:
                self.faults.append(f"`after` left a decision whose arm was not offered: {question.decision!r:.300}")

    def _call_counting_reads(self, name: str, call: Callable[..., None], batch: Batch) -> None:
        self.reads = 0
        self._call(name, call, batch, allows=(StoreError,))
        if self.reads > 1:
            count = f"{self.reads} times for {len(batch.questions)} questions"
            self.faults.append(f"`{name}` read the store {count}: at most once for a batch")

    def _note_committed(self, call: Callable[..., None], decisions: Sequence[Decision], *, now: float) -> None:
        self._call("note_committed", call, decisions, now=now)

    def _refresh(self, call: Callable[..., None], *, arms: Any, now: float) -> None:
        self._call("refresh", call, allows=(StoreError,), arms=arms, now=now)

    def _note_facts(self, question: Question, *, before: Mapping[type[Fact], Fact]) -> None:
        for kind, fact in question.facts.items():
            if before.get(kind) is not fact:
                self.acts = True
                _, facts = self.added.setdefault(str(question.query.id), (question, []))
                facts.append(fact)


def _choices_of_steps(question: Question) -> tuple[object, ...]:
    """The choices of steps before the draw."""
    return question.arms, question.certain_arm, question.kept_arm, question.turn_of


def _decide_all(router: Router, queries: Sequence[Query], *, watch: _Watch) -> Iterator[Decision]:
    """The decisions of questions that come alone, with named arms, by the same id again, as previews, and together."""
    some = tuple(router.service.arms[:2])
    kinds: tuple[dict[str, Any], ...] = ({}, {"arms": some}, {"arms": some[:1], "arm_by": "caller"})
    given = [replace(query, **more) for query in queries for more in (kinds if query.arms is None else kinds[:1])]
    for query in given:
        preview = _await_decision(router.preview, query, watch=watch)
        if preview is not None:
            preview_of(preview)
        named = replace(query, id=new_id())
        decision = _await_decision(router.submit, named, watch=watch)
        if decision is not None:
            again = _await_decision(router.submit, named, watch=watch)
            assert again is not None, f"the same id was refused: {named!r:.300}"
            yield decision
    for query, future in zip(given, router.submit_many(given), strict=True):
        decision = _await_decision(partial(_same, future), query, watch=watch)
        if decision is not None:
            yield decision


def _same(future: "Future[Decision]", _query: Query) -> "Future[Decision]":
    return future


def _await_decision(submit: Callable[[Query], "Future[Decision]"], query: Query, *, watch: _Watch) -> Decision | None:
    """The decision; None if the question is refused."""
    try:
        decision = submit(query).result(_WAIT_S)
    except (InvalidInput, Forbidden, LimitReached):
        decision = None
    except Exception as error:
        watch.report()
        raise AssertionError(f"a question was not decided ({error!r}): {query!r:.300}") from error
    watch.report()
    return decision


def _check_stored(router: Router, decision_id: DecisionId, *, watch: _Watch) -> None:
    """The stored decision has the step's facts, its draw can be repeated, and it is explained."""
    shown = explain(router.store, decision_id, rule=closing_rule(router.settings.learning))
    assert shown.draw.fault is None, f"the draw cannot be repeated: {shown.draw.fault}"
    stored = shown.record.decision
    question, facts = watch.added.get(decision_id, (None, []))
    for fact in facts:
        if question is not None and question.fact(type(fact)) is fact:  # a later step may have replaced it
            kinds = [type(other) for other in question.facts.values() if other.key == fact.key]
            assert len(kinds) == 1, f"two facts have the key {fact.key!r}: {kinds}"
            read = type(fact).of(stored.facts)
            assert read == fact, f"the fact {fact!r} was stored, and is read as {read!r}"


def _check_explanations(kind: type[Step], decisions: Sequence[Decision], *, watch: _Watch) -> None:
    """Every stored decision is explained, also decisions of other releases, and decisions with damaged facts."""
    keys = {fact.key for _, facts in watch.added.values() for fact in facts}
    for decision in decisions:
        watch.acts |= bool(_explain(kind, decision))
    for decision in decisions[:_MOST_DAMAGED]:
        _explain(kind, replace(decision, facts={}, pmf=(), arms=(), scores=None))
        for key in keys:
            for damaged in damaged_records({key: decision.facts.get(key)}):
                _explain(kind, replace(decision, facts={**decision.facts, **damaged}))


def _explain(kind: type[Step], decision: Decision) -> list[str]:
    try:
        sentences = [*kind.explain(decision)]
    except Exception as error:
        raise AssertionError(f"`explain` raised {error!r} for a decision with the facts {decision.facts!r}") from error
    for sentence in sentences:
        is_sentence = isinstance(sentence, str) and sentence.strip() and "\n" not in sentence
        assert is_sentence, f"`explain` gave {sentence!r}, not a sentence"
    return sentences


def _check_counters(step: Step) -> None:
    """/metrics can show the counters: a name, what it counts, and a count of each result."""
    for name, what, counts in step.counters():
        assert _METRIC.fullmatch(name), f"the metric {name!r} has another name than ragbandit_words"
        assert isinstance(what, str), f"the metric {name} has no text: {what!r}"
        assert what.strip(), f"the metric {name} has no text"
        for result, count in counts.items():
            is_count = isinstance(result, str) and type(count) is int and count >= 0
            assert is_count, f"the metric {name} has {result!r}: {count!r}, not the number of a result"
