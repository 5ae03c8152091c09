"""Judge: a model that scores one answer, with the passages that it is shown."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.texts.redaction import without_secrets
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Cost, Outcome
from ragbandit.strategies.base import Account, Completion, Generator, Passage, Prompt, Request
from ragbandit.strategies.failures import AnswerBlocked, UnreadableReply
from ragbandit.strategies.generators.parts import plain_parts
from ragbandit.workers.judge import rubric

#: tokens that are expected of a reply with the scores and reasons of the rubric
REPLY_TOKENS: Final = 100


class NoVerdict(ArmFailed):
    """Raised if the model gives no scores; another try may succeed."""


class JudgeFailed(NoVerdict):
    """Raised if the model cannot be reached or does not end in time, so that nothing is known about the answer."""


class AddressesJudge(NoVerdict):
    """Raised if the answer, the question or a passage seems to address the judge; no other try would give scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    #: mean of the scores, from 0 to 1
    value: float
    #: criterion -> score with its reason
    scores: Mapping[str, rubric.CriterionScore]
    #: number of passages that the judge was shown
    passages: int


def shown_passages(outcome: Outcome) -> tuple[Passage, ...]:
    """The passages with a text that the arm showed its model."""
    return tuple(
        Passage(id=source.id, title=source.title, text=source.text) for source in outcome.sources if source.text
    )


class Judge:
    """Scores answers by the rubric: in the queue, for a bought verdict, for `advise`, and as a cascade's condition."""

    def __init__(self, settings: JudgeSettings, *, generator: Generator) -> None:
        template = rubric.rubric_template(settings.templates)
        self.settings, self.generator = settings, generator
        #: hash of the rubric, 12 digits
        self.rubric = rubric.rubric_hash(template)
        self._maker = rubric.PromptMaker(settings=settings, template=template, generator=generator)

    async def score(
        self,
        question: str,
        *,
        answer: str,
        sources: Sequence[Passage],
        bill: Account,
        is_retry: bool = False,
        generator: Generator | None = None,
    ) -> Verdict:
        """Score an answer that is not blank. Raises NoVerdict, JudgeFailed or AddressesJudge, all of them ArmFailed.

        sources: the judge is shown the first few, see `judge.passages`.
        bill: gets the cost, however the call ends, also if it is cancelled.
        is_retry: whether the judge's last reply about this answer was unusable.
        generator: asks the judge's model in another way, for example within the budget of an arm.
        """
        prompt = self._prompt(question, answer=answer, sources=sources, is_retry=is_retry)
        reply = await self._reply(prompt, generator=generator or self.generator, bill=bill)
        try:
            shown = "\n".join(plain_parts(prompt.prompt))
            scores = rubric.parse_scores(reply, criteria=prompt.criteria, prompt=shown)
        except rubric.UnreadableScores as error:
            raise NoVerdict(f"the judge gave no usable scores: {error}") from error
        return Verdict(value=rubric.mean_score(scores), scores=scores, passages=prompt.passages)

    def estimate_tokens(self, question: str, *, answer: str, sources: Sequence[Passage]) -> Tokens | None:
        """Estimated tokens of a score; None if no prompt can be made, so that the answer gets no score."""
        try:
            prompt = self._prompt(question, answer=answer, sources=sources)
        except NoVerdict:
            return None
        read = sum(map(estimated_tokens, plain_parts(prompt.prompt)))
        return Tokens(read=read, written=REPLY_TOKENS, estimated=True)

    async def close(self) -> None:
        await self.generator.close()

    def _prompt(
        self, question: str, *, answer: str, sources: Sequence[Passage], is_retry: bool = False
    ) -> rubric.RubricPrompt:
        passages = tuple(sources[: self.settings.passages])
        material = rubric.JudgedAnswer(question=question, answer=answer, passages=passages)
        try:
            prompt = self._maker.prompt(material, mark=rubric.new_mark(), is_retry=is_retry)
        except ArmFailed as error:  # the prompt does not fit
            raise NoVerdict(str(error)) from error
        if prompt.suspicious:
            message = "the answer, the question or a passage seems to address the judge, so it is not judged"
            raise AddressesJudge(message)
        return prompt

    async def _reply(self, prompt: rubric.RubricPrompt, *, generator: Generator, bill: Account) -> str:
        seconds, most = self.settings.seconds, self.settings.max_tokens
        try:
            done = await complete_prompt(generator, prompt.prompt, seconds=seconds, max_tokens=most, bill=bill)
        except ArmFailed as error:
            raised = NoVerdict if isinstance(error, AnswerBlocked | UnreadableReply) else JudgeFailed
            raise raised(without_secrets(str(error))) from error
        if done.finish == "deadline":
            raise JudgeFailed(f"the judge did not reply within {seconds:g} s")
        if done.finish == "length":
            raise NoVerdict(f"the judge gave no usable scores: the reply did not end within {most} tokens")
        return done.text


async def complete_prompt(
    generator: Generator, prompt: Prompt, *, seconds: float, max_tokens: int, bill: Account
) -> Completion:
    """Ask a model. Raises ArmFailed.

    seconds, max_tokens: limits of the call. bill: gets the tokens and dollars, however the call ends.
    """
    deadline = time.monotonic() + seconds
    done = await generator.complete(Request(prompt=prompt, max_tokens=max_tokens, deadline=deadline, lost=bill))
    bill.cost += Cost(
        llm_calls=1,
        prompt_tokens=done.prompt_tokens,
        completion_tokens=done.completion_tokens,
        dollars=done.dollars,
    )
    return done
