"""Judge: a model, its prompt and the passages that it reads; one answer in, one verdict out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Final, Literal

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.router.storage.judgements import Spent
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import Cost, Decision, Json, Outcome
from ragbandit.strategies.base import CallBroke, Completion, Generator, Passage, PromptTooLong, Request, Retriever
from ragbandit.strategies.prompting.prompts import Template
from ragbandit.strategies.retrievers.reranking import NoRetriever
from ragbandit.workers.judge.rubric import (
    JudgedAnswer,
    PromptMaker,
    RubricPrompt,
    UnreadableReply,
    mark_of,
    parsed_scores,
    rubric_hash,
    weighted_score,
)

#: gold answers that the judge is shown
_REFERENCES: Final = 5


class NoVerdict(Exception):
    """The model's replies give no score: another try may."""

    def __init__(self, reason: str, *, spent: Spent) -> None:
        super().__init__(reason)
        self.spent = spent


class ServerFailed(NoVerdict):
    """The model could not be asked, or did not end in time: that says nothing about the answer."""


class Suspicious(Exception):
    """A text of the material addresses the judge."""


#: "arm": passages that the arm showed to its model; "search": those that the judge found; None: there are none
PassagesFrom = Literal["arm", "search"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A score with all that made it."""

    value: float
    #: scores and reasons by criterion, what it was shown, and what it cost: kept with the feedback
    facts: Mapping[str, Json]
    spent: Spent


class Judge:
    """Scores answers. All calls of `verdict` come from one event loop."""

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
        """model: the rater's name. secret: of the store; a caller may choose the id of its decision, so that the mark
        in the prompt is made with what it cannot know.

        retriever: what the judge searches in, where the arm showed no passages.
        """
        self.settings = settings
        self.name = f"judge {model}"
        self.generator = generator
        self.rater = model
        self.rubric = rubric_hash(template, weights=settings.criterion_weights)
        self._maker = PromptMaker(settings=settings, template=template, generator=generator)
        self._retriever = retriever
        self._mark = partial(mark_of, secret=secret)

    async def verdict(self, decision: Decision, *, outcome: Outcome, reference: Sequence[str], attempt: int) -> Verdict:
        """The score of an answer. attempt: from 1; a further one asks in other words.

        Raises NoVerdict, ServerFailed with what was spent, or Suspicious where such answers are not judged.
        """
        began = time.monotonic()
        passages, passages_from = await self._passages(decision, outcome=outcome)
        material = JudgedAnswer(
            question=decision.query.text,
            answer=outcome.answer or "",
            passages=passages,
            reference=tuple(reference[:_REFERENCES]) if self.settings.reference else (),
        )
        try:
            prompt = self._maker.prompt(material, mark=self._mark(decision.id, attempt=attempt), again=attempt > 1)
        except PromptTooLong as error:
            raise NoVerdict(str(error), spent=Spent()) from error
        if prompt.suspicious and self.settings.suspicious == "withhold":
            raise Suspicious
        done = await self._complete(prompt)
        spent = _spent(done)
        try:
            if done.finish == "length":
                raise UnreadableReply(f"it did not end within {self.settings.max_tokens} tokens")
            scores = parsed_scores(done.text, criteria=prompt.criteria)
        except UnreadableReply as error:
            raise NoVerdict(f"the reply cannot be used: {error}", spent=spent) from error
        facts: dict[str, Json] = {
            "scores": {name: each.score for name, each in scores.items()},
            "reasons": {name: each.reason for name, each in scores.items()},
            "passages": prompt.passages,
            "passages_from": passages_from if prompt.passages else None,
            "reference": "right" in prompt.criteria,
            "suspicious": prompt.suspicious,
            **asdict(spent),
            "seconds": round(time.monotonic() - began, 3),
        }
        value = weighted_score(scores, weights=self.settings.criterion_weights)
        return Verdict(value=value, facts=facts, spent=spent)

    async def close(self) -> None:
        """Close the model and the retriever."""
        await self._retriever.close()
        await self.generator.close()

    async def _complete(self, prompt: RubricPrompt) -> Completion:
        """The reply."""
        deadline = time.monotonic() + self.settings.seconds
        request = Request(prompt=prompt.prompt, max_tokens=self.settings.max_tokens, deadline=deadline)
        try:
            done = await self.generator.complete(request)
        except ArmFailed as error:
            broke = error.spent if isinstance(error, CallBroke) else None
            spent = Spent() if broke is None else _cost_of(broke)
            raise ServerFailed(without_secrets(str(error)), spent=spent) from error
        if done.finish == "deadline":
            late = f"the judge did not reply within {self.settings.seconds:g} s"
            raise ServerFailed(late, spent=_spent(done))
        return done

    async def _passages(self, decision: Decision, *, outcome: Outcome) -> tuple[tuple[Passage, ...], PassagesFrom]:
        """The passages that the arm showed its model; where there are none, those that a search for the question finds.

        Texts are as long as outcomes keep them (`log.source_chars`).
        """
        limit = self.settings.passages
        kept = (Passage(id=each.id, title=each.title, text=each.text) for each in outcome.sources if each.text)
        if shown := tuple(islice(kept, limit)):
            return shown, "arm"
        if not limit or not self.settings.search or isinstance(self._retriever, NoRetriever):
            return (), None
        try:
            hits = await self._retriever.search(decision.query.text, k=limit)
        except ArmFailed as error:
            raise ServerFailed(without_secrets(str(error)), spent=Spent()) from error
        return tuple(hit.passage for hit in hits), "search"


def _spent(done: Completion) -> Spent:
    """What a call cost; nothing where its reply was kept from an earlier one."""
    return Spent() if done.seconds is not None else _cost_of(done)


def _cost_of(used: Completion | Cost) -> Spent:
    return Spent(prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens, dollars=used.dollars)
