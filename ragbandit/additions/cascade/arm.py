import asyncio
import math
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.texts.text_forms import answer_words, is_blank, words
from ragbandit.shared.types import NO_TEXT, Round
from ragbandit.strategies.answer_stream import AnswerStream
from ragbandit.strategies.arm_parts.composite import ArmPart, Check, CompositeArm, Grader
from ragbandit.strategies.arm_parts.prompted import ArmParams, ParamsArm
from ragbandit.strategies.arm_parts.steps import mean_logprob, run_calls
from ragbandit.strategies.base import Account, Completion, Generator, Request, Retriever, seconds_until
from ragbandit.strategies.failures import error_text
from ragbandit.strategies.generators.wrappers import GeneratorAround
from ragbandit.strategies.registry import generates
from ragbandit.strategies.run import Answer, Run

_ABSTENTION_PHRASES = (
    "i do not know;i don t know;unknown;unanswerable;no answer;not enough information;cannot be answered;"
    "can not be answered;cannot answer;can t answer;not mentioned;not stated;ich weiß es nicht;weiß ich nicht;"
    "keine antwort;je ne sais pas;pas de réponse;no lo sé;sin respuesta;non lo so;nessuna risposta;"
    "ik weet het niet;geen antwoord;não sei;sem resposta"
)
#: an answer that starts or ends with one of these phrases abstains; case and punctuation are ignored
ABSTENTIONS: Final = tuple(_ABSTENTION_PHRASES.split(";"))
_MAX_DEPTH: Final = 2
#: stop reason of a first answer that is given because the second arm failed
SECOND_FAILED: Final = "second_failed"
_CONDITIONS: Final = ("empty", "abstains", "differs_from", "check", "judge", "logprob")
#: the name of an arm, or a definition such as {class: single_step, generator: small}
_Part = Annotated[str, Field(min_length=1)] | dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeParams(ArmParams):
    first: _Part
    then: _Part  #: arm that answers if one of the conditions below holds, or if the first arm fails
    empty: bool = False  #: condition: the first answer is empty. For an empty answer all other conditions hold too
    abstains: bool = False  #: condition: the first answer is empty, or starts or ends with one of `forms`
    differs_from: _Part | None = None  #: a third arm. Condition: its answer differs from the first answer
    #: a function as in `reward.check`. Condition: the function's score of the first answer is below `check_below`
    check: Annotated[str, Field(min_length=1)] | None = None
    check_below: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    #: condition: the judge of the settings' section `judge` gives the first answer a score below this
    judge: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    #: condition: the mean log-probability of the first answer's tokens, which its model must return, is below this
    logprob: Annotated[float, Field(le=0.0)] | None = None
    keep: bool = True  #: whether the first answer is given if the arm `then` fails before it sends text
    forms: list[str] = field(default_factory=list)  #: phrases that mean "no answer"; [] for the built-in phrases


class Cascade(ParamsArm[CascadeParams], CompositeArm):
    """Asks the arm `first`, and the arm `then` if a condition holds or `first` fails (FrugalGPT, AutoMix).

    Cost and trace include both runs. Call `bind` before `answer`.
    """

    arm: ClassVar[str] = "cascade"
    is_form: ClassVar[bool] = True
    example: ClassVar = {"first": "a", "then": "b", "differs_from": "c", "check": "checks:score", "forms": ["no idea"]}
    retrieves: ClassVar[bool] = False  # the cascade does not search itself: its arms have their own retrievers
    generates: ClassVar[bool] = False
    kind = CascadeParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if not any(getattr(self._params, condition) not in (None, False) for condition in _CONDITIONS):
            remedy = f"set one of {', '.join(_CONDITIONS)}"
            raise ConfigError("the cascade has no condition", field=f"arms.{self.name}", remedy=remedy)
        self._forms = tuple(map(_plain_words, self._params.forms or ABSTENTIONS))
        self._check: Check | None = None
        self._judge: Grader | None = None

    @property
    def part_names(self) -> Mapping[str, str | dict[str, Any]]:
        names = {param: getattr(self._params, param) for param in ("first", "then", "differs_from")}
        return {param: name for param, name in names.items() if name is not None}

    @property
    def check(self) -> str | None:
        return self._params.check

    @property
    def judged(self) -> bool:
        return self._params.judge is not None

    @property
    def depth(self) -> int:
        """Number of cascades inside each other, this one included: 1 if no arm is a cascade. Valid after `bind`."""
        inner = [part.strategy.depth for part in self.parts.values() if isinstance(part.strategy, Cascade)]
        return 1 + max(inner, default=0)

    @property
    def runs_on(self) -> list[Generator | Retriever | Check]:
        resources: list[Generator | Retriever | Check] = []
        if self._check is not None:
            resources.append(self._check)
        if self._judge is not None:
            resources.append(self._judge.generator)
        return resources + super().runs_on

    def bind(self, parts: Mapping[str, ArmPart], *, check: Check | None = None, judge: Grader | None = None) -> None:
        super().bind(parts)
        self._check, self._judge = check, judge
        where = f"arms.{self.name}"
        if self.depth > _MAX_DEPTH:
            message = f"cascades are nested {self.depth} deep"
            raise ConfigError(message, field=where, remedy=f"nest at most {_MAX_DEPTH} cascades")
        generator = parts["first"].generator
        has_logprobs = generates(parts["first"].strategy) and "logprobs" in generator.capabilities
        if self._params.logprob is not None and not has_logprobs:
            message = f"{parts['first'].strategy.name} on {generator.name} returns no log-probabilities"
            raise ConfigError(message, field=f"{where}.logprob", remedy="use another condition, or another model")
        recorded = {
            param: {"params": dict(part.strategy.params), "generator": part.generator.name}
            for param, part in parts.items()
        }
        self.params = MappingProxyType({**self.params, "parts": recorded})

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Returns the first arm's answer if no condition holds, otherwise the second arm's answer.

        The trace's branch "first_answer" names the condition that holds, or "it stands". While the second arm answers,
        the first answer is the draft. If the second arm fails, the first answer is given with the stop reason
        SECOND_FAILED, and the trace has the failure. Raises ArmFailed instead if `keep` is False, if the first answer
        is missing or blank, or if the second arm has sent text.
        """
        if not self.parts:
            raise ArmFailed(f"the arms of the cascade {self.name} are not set", remedy="call the cascade's method bind")
        first, reason = await self._ask_first(question, run=run)
        run.note_branch("first_answer", reason or "it stands")
        if first is not None and reason is None:
            return first
        run.draft = None if first is None else first.text
        run.tell("asking another arm")
        try:
            return await _ask_part(self.parts["then"], question=question, run=run, stream=run.stream)
        except ArmFailed as error:
            if first is None or is_blank(first.text) or not self._params.keep or run.stream.sent.size:
                raise
            run.note_branch("second_answer", f"it failed: {error_text(error)}")
            return replace(first, stop_reason=SECOND_FAILED)

    async def _ask_first(self, question: str, *, run: Run) -> tuple[Answer | None, str | None]:
        """Ask the first arm. Returns (answer or None if it failed, reason to ask the second arm or None)."""
        recorder = _LogprobRecorder(self.parts["first"].generator)
        first_part = self.parts["first"]
        if self._params.logprob is not None:
            first_part = first_part._replace(generator=recorder)
        parts = [first_part]
        if "differs_from" in self.parts:
            parts.append(self.parts["differs_from"])
        stream = _NotesOnly(run.stream)

        async def attempt(part: ArmPart) -> Answer | ArmFailed:
            try:
                answer = await _ask_part(part, question=question, run=run, stream=stream, drafts=part is first_part)
            except ArmFailed as error:
                return error
            run.draft = answer.text if part is first_part else run.draft
            return answer

        first, *others = await run_calls([partial(attempt, part) for part in parts], run=run, caps=tuple(run.used))
        if isinstance(first, ArmFailed):
            return None, f"it failed: {error_text(first)}"
        if first.stop_reason == NO_TEXT:  # the answer has only images, which no condition can read
            return first, None
        reason = self._reason_for_second_arm(first.text, others=others, recorder=recorder)
        if reason is None and self._check is not None:
            sources = tuple(run.shown.values())
            score = asyncio.to_thread(self._check.score, question=question, answer=first.text, sources=sources)
            reason = await _reason_if_below(score, threshold=self._params.check_below, what="check", run=run)
        if reason is None and self._judge is not None:
            grade = self._grade(self._judge, question, answer=first.text, run=run)
            reason = await _reason_if_below(grade, threshold=self._params.judge or 0.0, what="judge", run=run)
        return first, reason

    def _reason_for_second_arm(
        self, text: str, *, others: list[Answer | ArmFailed], recorder: "_LogprobRecorder"
    ) -> str | None:
        """Test the conditions that need no further call. Returns the reason to ask the second arm, or None."""
        params = self._params
        if is_blank(text):
            return "it is empty"
        if params.abstains and _abstains(text, forms=self._forms):
            return "it abstains"
        if any(isinstance(answer, Answer) and not same_answer(text, answer.text) for answer in others):
            name = params.differs_from if isinstance(params.differs_from, str) else "differs_from"
            return f"{name} says something else"
        if params.logprob is None:
            return None
        mean = recorder.mean_logprob_of_completion_with(text)
        return f"its mean log-probability is {mean:.3g}" if -math.inf < mean < params.logprob else None

    async def _grade(self, judge: Grader, question: str, *, answer: str, run: Run) -> float:
        sources = tuple(run.shown.values())
        with _sub_run(run, generator=judge.generator, retriever=run.retriever, stream=AnswerStream()) as sub_run:
            within, bill = _RunModel(sub_run), Account()  # `bill` is not read, since the run counts the cost
            grade = await judge.score(question, answer=answer, sources=sources, bill=bill, generator=within)
        return grade.value


async def _reason_if_below(scoring: Awaitable[float | None], *, threshold: float, what: str, run: Run) -> str | None:
    """The reason to ask the second arm if the score is below the threshold, or scoring fails; otherwise None."""
    try:
        async with asyncio.timeout(seconds_until(run.deadline)):
            score = await scoring
    except (ArmFailed, TimeoutError) as error:
        return f"its {what} failed: {error_text(error)}"
    return None if score is None or score >= threshold else f"its {what} gave {score:.3g}"


class _NotesOnly(AnswerStream):
    """Passes notes to the user, but no text, because the second arm may still replace the first answer."""

    def __init__(self, stream: AnswerStream) -> None:
        super().__init__()
        self._stream = stream

    def note(self, text: str) -> None:
        self._stream.note(text)


class _RunModel(GeneratorAround):
    """Asks the model of a run within the run's budget and deadline, so the run's trace and cost include the call."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.generator)
        self._run = run

    async def complete(self, request: Request) -> Completion:
        return await self._run.complete(request.prompt, purpose="judge", max_tokens=request.max_tokens)


class _LogprobRecorder(GeneratorAround):
    def __init__(self, generator: Generator) -> None:
        super().__init__(generator)
        self._completions: list[Completion] = []

    async def complete(self, request: Request) -> Completion:
        self._completions.append(await self._generator.complete(replace(request, want=request.want | {"logprobs"})))
        return self._completions[-1]

    def mean_logprob_of_completion_with(self, answer: str) -> float:
        """Mean log-probability of the latest completion that contains the answer.

        If no completion contains the answer, the latest completion counts. Returns -inf without completions.
        """
        with_answer = [done for done in self._completions if answer in done.text]
        return next(map(mean_logprob, reversed(with_answer or self._completions)), -math.inf)


async def _ask_part(part: ArmPart, *, question: str, run: Run, stream: AnswerStream, drafts: bool = True) -> Answer:
    """Ask one arm within the remaining budget. drafts: whether the arm's draft becomes the draft of `run`."""
    with _sub_run(run, generator=part.generator, retriever=part.retriever, stream=stream) as sub_run:
        try:
            return await part.strategy.answer(question, run=sub_run)
        finally:
            run.draft = (sub_run.draft if drafts else None) or run.draft


@contextmanager
def _sub_run(run: Run, *, generator: Generator, retriever: Retriever, stream: AnswerStream) -> Iterator[Run]:
    """Yields a run with the remaining budget. Its cost, trace and passages are added to `run`, even after an error."""
    caps = {cap: getattr(run.budget, cap) for cap in run.used}
    remaining = {cap: max(caps[cap] - used, 0) for cap, used in run.used.items() if caps[cap] is not None}
    sub_run = Run(
        query=run.query,
        retriever=retriever,
        generator=generator,
        budget=replace(run.budget, **remaining),
        spans=run.spans,
        stream=stream,
        started=run.started,
    )
    try:
        yield sub_run
    finally:
        run.cost += sub_run.cost
        earlier_rounds = run.used["rounds"]
        run.trace += [
            replace(event, number=earlier_rounds + event.number) if isinstance(event, Round) else event
            for event in sub_run.trace
        ]
        run.shown.update(sub_run.shown)
        run.scores.update(sub_run.scores)


def same_answer(first: str, second: str) -> bool:
    """Whether two answers agree: the words of the shorter answer are a sequence of words in the longer answer."""
    shorter, longer = sorted((" ".join(answer_words(text)) for text in (first, second)), key=len)
    return shorter == longer or (bool(shorter) and f" {shorter} " in f" {longer} ")


def _abstains(text: str, *, forms: tuple[str, ...]) -> bool:
    answer = _plain_words(text)
    return not answer or any(f"{answer} ".startswith(f"{form} ") or f" {answer}".endswith(f" {form}") for form in forms)


def _plain_words(text: str) -> str:
    return " ".join(words(text))
