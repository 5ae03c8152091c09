"""Cascade: a cheap arm answers, and where its answer will not do, another arm answers instead (FrugalGPT, AutoMix).

    arms:
      small: {class: single_step, generator: small}
      large: {class: single_step, generator: large}
      both: {class: cascade, first: small, then: large, abstains: true}

It is an arm like any other: the policy learns for which questions it pays. Both runs are in its cost and its trace.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol

from pydantic import Field

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.text_forms import answer_words, is_blank, words
from ragbandit.shared.types import Round
from ragbandit.strategies.arms.prompted import ArmParams, ParamsArm
from ragbandit.strategies.arms.steps import mean_logprob, together
from ragbandit.strategies.base import (
    Completion,
    Generator,
    Passage,
    Prompt,
    Request,
    Retriever,
    error_text,
    seconds_until,
)
from ragbandit.strategies.generators.response_cache import GeneratorAround
from ragbandit.strategies.registry import generates
from ragbandit.strategies.run import Answer, AnswerStream, Run, Strategy

#: how answers begin, or end, that say they are none; compared without case and punctuation
ABSTENTIONS: Final = (
    *("i do not know", "i don t know", "unknown", "unanswerable", "no answer", "not enough information"),
    *("cannot be answered", "can not be answered", "cannot answer", "can t answer", "not mentioned", "not stated"),
    *("ich weiß es nicht", "weiß ich nicht", "keine antwort", "je ne sais pas", "pas de réponse", "no lo sé"),
    *("sin respuesta", "non lo so", "nessuna risposta", "ik weet het niet", "geen antwoord", "não sei", "sem resposta"),
)
#: cascades within each other
_DEEPEST: Final = 2
_CONDITIONS: Final = ("empty", "abstains", "differs_from", "check", "judge", "logprob")


_Part = Annotated[str, Field(min_length=1)] | dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeParams(ArmParams):
    """Settings of cascade. One condition at least; any of them sends the question on, and so does a failure."""

    #: the arm that answers first, and the one that answers where that will not do: the name of an arm, or one defined
    #: here, as {class: single_step, generator: small}
    first: _Part
    then: _Part
    #: where the first answer is empty, which it may not be under the other conditions either
    empty: bool = False
    #: where it says that it does not know: empty, or one of `forms`
    abstains: bool = False
    #: where this arm, too, answers, and says something else
    differs_from: _Part | None = None
    #: "package.module:function", a check as of `reward.check`: where its score is below `check_below`
    check: Annotated[str, Field(min_length=1)] | None = None
    check_below: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    #: where the judge (its model, prompt and weights are those of the section `judge`) scores it below this
    judge: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    #: where the mean log-probability of the answer's tokens is below this; the first arm's model must tell them
    logprob: Annotated[float, Field(le=0.0)] | None = None
    #: forms of an abstention, in the place of ours
    forms: list[str] = field(default_factory=list)


class Check(Protocol):
    """Scores answers by a function, apart from the process of the arms."""

    name: str

    def score(self, *, question: str, answer: str, sources: Sequence[Passage]) -> float | None:
        """The score, from 0 to 1, waited for; None: the function says nothing. Raises ArmFailed."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...


class JudgePart(Protocol):
    """The judge of a cascade: what it is asked, and what its reply means."""

    generator: Generator
    #: of a reply
    max_tokens: int

    def ask(self, *, question: str, answer: str, sources: Sequence[Passage]) -> tuple[Prompt, Callable[[str], float]]:
        """(the prompt, what gives the score in its reply, from 0 to 1). Both raise ArmFailed where that cannot be."""
        ...


class Part(NamedTuple):
    """An arm that a cascade asks, and what it runs on."""

    strategy: Strategy
    generator: Generator
    retriever: Retriever


class Cascade(ParamsArm[CascadeParams]):
    """Asks `first`, then `then` where a condition holds. `bind` gives it its parts before it is asked."""

    retrieves: ClassVar[bool] = False  # its parts do, each with their own
    generates: ClassVar[bool] = False
    kind = CascadeParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if not any(getattr(self._params, condition) not in (None, False) for condition in _CONDITIONS):
            raise ConfigError(
                "nothing says when the first answer will not do",
                field=f"arms.{self.name}",
                remedy=f"set one of {', '.join(_CONDITIONS)}",
            )
        self._forms = tuple(map(_plain, self._params.forms or ABSTENTIONS))
        self._parts: Mapping[str, Part] = {}
        self._check: Check | None = None
        self._judge: JudgePart | None = None

    @property
    def part_names(self) -> Mapping[str, str | dict[str, Any]]:
        """Param -> the arm that it names, or defines."""
        names = {param: getattr(self._params, param) for param in ("first", "then", "differs_from")}
        return {param: name for param, name in names.items() if name is not None}

    @property
    def check(self) -> str | None:
        """The check that it names."""
        return self._params.check

    @property
    def judged(self) -> bool:
        """Whether it asks the judge."""
        return self._params.judge is not None

    @property
    def depth(self) -> int:
        """Cascades within each other, this one among them; once it has its parts."""
        inner = [part.strategy.depth for part in self._parts.values() if isinstance(part.strategy, Cascade)]
        return 1 + max(inner, default=0)

    @property
    def runs_on(self) -> list[Generator | Retriever | Check]:
        """The generators and retrievers of its parts, and its check."""
        own: list[Generator | Retriever | Check] = [] if self._check is None else [self._check]
        own += [] if self._judge is None else [self._judge.generator]
        for part in self._parts.values():
            own += [part.generator, part.retriever]
            own += part.strategy.runs_on if isinstance(part.strategy, Cascade) else []
        return own

    def bind(self, parts: Mapping[str, Part], *, check: Check | None = None, judge: JudgePart | None = None) -> None:
        """Give it its parts, by the names of `part_names`' params, and what scores answers. Raises ConfigError."""
        self._parts, self._check, self._judge = dict(parts), check, judge
        where = f"arms.{self.name}"
        if self.depth > _DEEPEST:
            message = f"cascades within each other, {self.depth} deep"
            raise ConfigError(message, field=where, remedy=f"at most {_DEEPEST}")
        generator = parts["first"].generator
        told = generates(parts["first"].strategy) and "logprobs" in generator.capabilities
        if self._params.logprob is not None and not told:
            message = f"{parts['first'].strategy.name} on {generator.name} tells no log-probabilities"
            raise ConfigError(message, field=f"{where}.logprob", remedy="use another condition, or another model")
        facts = {
            param: {"params": dict(part.strategy.params), "generator": part.generator.name}
            for param, part in parts.items()
        }
        self.params = MappingProxyType({**self.params, "parts": facts})

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The first answer where no condition holds, with its stop reason; else that of the other arm.

        The trace says which under "first_answer". A budget that ends in between gives the first answer. Raises what the
        last arm raises.
        """
        if not self._parts:
            raise ArmFailed(f"the cascade {self.name} has no parts", remedy="load it with the arms that it names")
        first, why = await self._first(question, run=run)
        run.note_branch("first_answer", why or "it stands")
        if first is not None and why is None:
            return first
        run.draft = None if first is None else first.text
        run.tell("asking another arm")
        return await _answered(self._parts["then"], question=question, run=run, stream=run.stream)

    async def _first(self, question: str, *, run: Run) -> tuple[Answer | None, str | None]:
        """The first answer, and why it will not do; no answer where the arm failed."""
        scored = _Scored(self._parts["first"].generator)
        asked = [self._parts["first"]._replace(generator=scored if self._params.logprob is not None else scored.inner)]
        asked += [self._parts["differs_from"]] if "differs_from" in self._parts else []
        stream = _NotesOnly(run.stream)

        async def attempt(part: Part) -> Answer | ArmFailed:
            try:
                answer = await _answered(part, question=question, run=run, stream=stream, drafts=part is asked[0])
            except ArmFailed as error:
                return error
            run.draft = answer.text if part is asked[0] else run.draft
            return answer

        answers = await together([partial(attempt, part) for part in asked], run=run, caps=tuple(run.used))
        first, others = answers[0], answers[1:]
        if isinstance(first, ArmFailed):
            return None, f"it failed: {error_text(first)}"
        why = self._unfit(first.text, others=others, scored=scored)
        if why is None and self._check is not None:
            sources = tuple(run.shown.values())
            score = asyncio.to_thread(self._check.score, question=question, answer=first.text, sources=sources)
            why = await _below(score, threshold=self._params.check_below, what="check", run=run)
        if why is None and self._judge is not None:
            judged = self._judged(self._judge, question, answer=first.text, run=run)
            why = await _below(judged, threshold=self._params.judge or 0.0, what="judge", run=run)
        return first, why

    def _unfit(self, text: str, *, others: list[Answer | ArmFailed], scored: "_Scored") -> str | None:
        """Why the first answer will not do by what is known without a call; None: nothing is wrong."""
        params = self._params
        if is_blank(text):
            return "it is empty"
        if params.abstains and _abstains(text, forms=self._forms):
            return "it abstains"
        if any(isinstance(other, Answer) and not agree(text, other.text) for other in others):
            named = params.differs_from if isinstance(params.differs_from, str) else "differs_from"
            return f"{named} says something else"
        if params.logprob is not None and -math.inf < (mean := scored.mean_of(text)) < params.logprob:
            return f"its mean log-probability is {mean:.3g}"
        return None

    async def _judged(self, judge: JudgePart, question: str, *, answer: str, run: Run) -> float:
        prompt, score = judge.ask(question=question, answer=answer, sources=tuple(run.shown.values()))
        with _own_run(run, generator=judge.generator, retriever=run.retriever, stream=AnswerStream()) as own:
            done = await own.complete(prompt, purpose="judge", max_tokens=judge.max_tokens)
        return score(done.text)


async def _below(scoring: Awaitable[float | None], *, threshold: float, what: str, run: Run) -> str | None:
    """Why an answer will not do by a score; None: it does, or the check says nothing. A failure is no good score."""
    try:
        async with asyncio.timeout(seconds_until(run.deadline)):
            score = await scoring
    except (ArmFailed, TimeoutError) as error:
        return f"its {what} failed: {error_text(error)}"
    return None if score is None or score >= threshold else f"its {what} gave {score:.3g}"


class _NotesOnly(AnswerStream):
    """A stream that gives out notes and no words: whether these are the answer is not known yet."""

    def __init__(self, stream: AnswerStream) -> None:
        super().__init__()
        self._stream = stream

    def note(self, text: str) -> None:
        self._stream.note(text)


class _Scored(GeneratorAround):
    """A generator that is asked for log-probabilities, too."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator)
        self.inner = generator
        self._done: list[Completion] = []

    async def complete(self, request: Request) -> Completion:
        """The generator's completion, which is remembered."""
        self._done.append(await self._generator.complete(replace(request, want=request.want | {"logprobs"})))
        return self._done[-1]

    def mean_of(self, answer: str) -> float:
        """`mean_logprob` of the latest text with the answer in it: later ones may be grades. Of the latest, else."""
        with_answer = [done for done in self._done if answer in done.text]
        return next(map(mean_logprob, reversed(with_answer or self._done)), -math.inf)


async def _answered(part: Part, *, question: str, run: Run, stream: AnswerStream, drafts: bool = True) -> Answer:
    """The answer of a part, within what is left of the budget, accounted for in the run, also where it raises.

    drafts: its draft becomes that of the run.
    """
    with _own_run(run, generator=part.generator, retriever=part.retriever, stream=stream) as own:
        try:
            return await part.strategy.answer(question, run=own)
        finally:
            run.draft = (own.draft if drafts else None) or run.draft


@contextmanager
def _own_run(run: Run, *, generator: Generator, retriever: Retriever, stream: AnswerStream) -> Iterator[Run]:
    """A run within what is left of the budget; what it does is accounted for in the whole, also where it raises."""
    left = {
        cap: max(allowed - used, 0)
        for cap, used in run.used.items()
        if (allowed := getattr(run.budget, cap)) is not None
    }
    own = Run(
        query=run.query,
        retriever=retriever,
        generator=generator,
        budget=replace(run.budget, **left),
        spans=run.spans,
        stream=stream,
        started=run.started,
    )
    try:
        yield own
    finally:
        run.cost += own.cost
        run.started = min(run.started, own.started)
        before = run.used["rounds"]
        run.trace += [
            replace(event, number=before + event.number) if isinstance(event, Round) else event for event in own.trace
        ]
        run.shown.update(own.shown)
        run.scores.update(own.scores)


def agree(answer: str, other: str) -> bool:
    """Whether two answers have the same words, or the words of one stand in the other in one piece."""
    shorter, longer = sorted((" ".join(answer_words(text)) for text in (answer, other)), key=len)
    return shorter == longer or (bool(shorter) and f" {shorter} " in f" {longer} ")


def _abstains(text: str, *, forms: tuple[str, ...]) -> bool:
    answer = _plain(text)
    return not answer or any(f"{answer} ".startswith(f"{form} ") or f" {answer}".endswith(f" {form}") for form in forms)


def _plain(text: str) -> str:
    """The words of a text, with apostrophes and hyphens as spaces: "don't" is the form "don t"."""
    return " ".join(words(text))
