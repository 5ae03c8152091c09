"""Judge: a model that scores one answer, with the passages that it is shown."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.router.storage.judgements import Spent
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.event_reader import ReplyTooLarge
from ragbandit.shared.texts.redaction import without_secrets
from ragbandit.shared.types import Cost, Decision, Json, Outcome
from ragbandit.strategies.base import Account, Completion, Generator, Passage, Request, Retriever
from ragbandit.strategies.failures import AnswerBlocked, PromptTooLong
from ragbandit.strategies.prompting.prompts import Template
from ragbandit.strategies.retrievers.hybrid import NoRetriever
from ragbandit.workers.judge import rubric

_NOTHING: Final = Cost()


class NoVerdict(Exception):
    """Raised if the reply of the model contains no scores; another try may succeed."""

    def __init__(self, reason: str, *, spent: Spent) -> None:
        super().__init__(reason)
        self.spent = spent


class ServerFailed(NoVerdict):
    """Raised if the model cannot be reached or does not end in time, so that nothing is known about the answer."""


class Suspicious(Exception):
    """Raised if the answer or a passage seems to address the judge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    value: float
    #: stored with the feedback: scores and reasons by criterion, number of passages, cost
    facts: Mapping[str, Json]
    spent: Spent


class Judge:
    """Scores answers. Call `verdict` from one event loop only."""

    def __init__(
        self,
        settings: JudgeSettings,
        *,
        generator: Generator,
        template: Template,
        retriever: Retriever,
        model: str,
        secret: bytes,
    ) -> None:
        """secret: makes the mark in the prompt unpredictable, because callers may choose the id of a decision."""
        self.settings = settings
        self.name = f"judge {model}"
        self.generator = generator
        self.rater = model
        self.rubric = rubric.rubric_hash(template)
        self._maker = rubric.PromptMaker(settings=settings, template=template, generator=generator)
        self._retriever = retriever
        self._mark = partial(rubric.mark_of, secret=secret)

    async def verdict(
        self, decision: Decision, *, outcome: Outcome, attempt: int, lost: Account | None = None
    ) -> Verdict:
        """Score an answer. attempt: from 1. Raises NoVerdict or ServerFailed, both with the cost, or Suspicious.

        lost: see `Request.lost`; it also has the cost of a verdict that is cancelled
        """
        began = time.monotonic()
        passages, passages_from = await self._passages(decision, outcome=outcome)
        material = rubric.JudgedAnswer(
            question=decision.query.text,
            answer=outcome.answer or "",
            passages=passages,
        )
        try:
            prompt = self._maker.prompt(material, mark=self._mark(decision.id, attempt=attempt), again=attempt > 1)
        except PromptTooLong as error:
            raise NoVerdict(str(error), spent=Spent()) from error
        if prompt.suspicious:
            raise Suspicious
        lost = lost or Account()
        completion = await self._complete(prompt, lost=lost)
        spent = spent_of(completion, lost=lost.cost)
        try:
            if completion.finish == "length":
                raise rubric.UnreadableReply(f"the reply did not end within {self.settings.max_tokens} tokens")
            scores = rubric.parsed_scores(completion.text, criteria=prompt.criteria)
        except rubric.UnreadableReply as error:
            raise NoVerdict(f"the judge gave no usable scores: {error}", spent=spent) from error
        stored: dict[str, Json] = {
            "scores": {name: score.score for name, score in scores.items()},
            "reasons": {name: score.reason for name, score in scores.items()},
            "passages": prompt.passages,
            "passages_from": passages_from if prompt.passages else None,
            **asdict(spent),
            "seconds": round(time.monotonic() - began, 3),
        }
        return Verdict(value=rubric.mean_score(scores), facts=stored, spent=spent)

    async def close(self) -> None:
        await self._retriever.close()
        await self.generator.close()

    async def _complete(self, prompt: rubric.RubricPrompt, *, lost: Account) -> Completion:
        deadline, most = time.monotonic() + self.settings.seconds, self.settings.max_tokens
        request = Request(prompt=prompt.prompt, max_tokens=most, deadline=deadline, lost=lost)
        try:
            completion = await self.generator.complete(request)
        except ArmFailed as error:
            is_reply = isinstance(error, AnswerBlocked) or isinstance(error.__cause__, ReplyTooLarge)
            raised = NoVerdict if is_reply else ServerFailed
            raise raised(without_secrets(str(error)), spent=spent_of(lost.cost)) from error
        if completion.finish == "deadline":
            message = f"the judge did not reply within {self.settings.seconds:g} s"
            raise ServerFailed(message, spent=spent_of(completion))
        return completion

    async def _passages(
        self, decision: Decision, *, outcome: Outcome
    ) -> tuple[tuple[Passage, ...], Literal["arm", "search"] | None]:
        """Returns (passages, their origin): passages that the arm showed its model, else the result of a search."""
        limit = self.settings.passages
        sources = [source for source in outcome.sources if source.text][:limit]
        if sources:
            return tuple(Passage(id=source.id, title=source.title, text=source.text) for source in sources), "arm"
        if not limit or not self.settings.search or isinstance(self._retriever, NoRetriever):
            return (), None
        try:
            hits = await self._retriever.search(decision.query.text, k=limit)
        except ArmFailed as error:
            raise ServerFailed(without_secrets(str(error)), spent=Spent()) from error
        return tuple(hit.passage for hit in hits), "search"


def spent_of(call: Completion | Cost, *, lost: Cost = _NOTHING) -> Spent:
    """The cost of a call, with that of its attempts that were lost."""
    return Spent(
        prompt_tokens=call.prompt_tokens + lost.prompt_tokens,
        completion_tokens=call.completion_tokens + lost.completion_tokens,
        dollars=call.dollars + lost.dollars,
    )
