"""Scores of single answers: by the rubric of `judge`, or by a check (`reward.check` or a function of the user).

A scorer sees the question, the answer and its passages, and never the arm.
"""

import asyncio
from functools import partial
from typing import Final, NamedTuple, Protocol

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import JUDGE_LINE, JudgeSettings
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.plugins import function_identity, import_class
from ragbandit.shared.types import Outcome
from ragbandit.strategies.base import Account
from ragbandit.workers.judge.judge import Judge, JudgeFailed, NoVerdict, shown_passages
from ragbandit.workers.judge.reward_check import CheckFailed, CheckProcess
from ragbandit.workers.setup.generators import generator_version, make_generator

#: names of the configured scorers, and of people, who label answers on the page Labels
JUDGE, CHECK, LABELS = "judge", "check", "labels"
#: longest name of a scorer that a database column holds, characters
_LONGEST: Final = 64


class Score(NamedTuple):
    #: the score, in [0, 1]; None if the answer gets no score
    quality: float | None
    #: why there is no score
    fault: str | None = None
    #: whether another try could give a score: the model or the check failed, not the answer
    may_pass: bool = False


class Scorer(Protocol):
    #: name of the judge, or path of the check
    name: str
    #: hash of everything that defines the scores, 43 digits
    identity: str
    #: whether the model of `judge.generator` scores, so that scores cost money
    by_model: bool

    async def score(self, question: str, outcome: Outcome, *, bill: Account) -> Score:
        """Score an answer that is not blank. bill: gets the cost, however the call ends."""

    def estimate_tokens(self, question: str, outcome: Outcome) -> Tokens | None:
        """Estimated tokens of a score; None if the answer gets no score, or scores are free."""

    async def close(self) -> None: ...


class _JudgeScorer:
    """The judge's model with its rubric."""

    by_model = True

    def __init__(self, judge: Judge, *, version: str = "") -> None:
        """version: settings of the generator that influence its replies, see `generator_version`."""
        self._judge, settings, model = judge, judge.settings, judge.generator.name
        self.name = f"judge {model}"[:_LONGEST]
        shown = [settings.passages, settings.passage_words, settings.text_chars, settings.max_tokens]
        self.identity = body_hash({"model": model, "version": version, "rubric": judge.rubric, "shown": shown})

    async def score(self, question: str, outcome: Outcome, *, bill: Account) -> Score:
        sources = shown_passages(outcome)
        try:
            verdict = await self._judge.score(question, answer=outcome.answer or "", sources=sources, bill=bill)
        except NoVerdict as error:
            return Score(None, str(error), may_pass=isinstance(error, JudgeFailed))
        return Score(verdict.value)

    def estimate_tokens(self, question: str, outcome: Outcome) -> Tokens | None:
        return self._judge.estimate_tokens(question, answer=outcome.answer or "", sources=shown_passages(outcome))

    async def close(self) -> None:
        await self._judge.close()


class _CheckScorer:
    """A check: `reward.check`, or a function of the user with the same arguments."""

    by_model = False

    def __init__(self, settings: RewardSettings) -> None:
        self._process, check = CheckProcess(settings), str(settings.check)
        self.name = check[-_LONGEST:]
        function = function_identity(import_class(check, where="reward.check"))
        self.identity = body_hash({"check": function, "params": dict(settings.check_params)})

    async def score(self, question: str, outcome: Outcome, *, bill: Account) -> Score:  # noqa: ARG002 - it costs nothing
        score = partial(self._process.score, question=question, answer=outcome.answer, sources=outcome.sources)
        try:
            quality = await asyncio.to_thread(score)
        except CheckFailed as error:
            return Score(None, error.message, may_pass=True)
        return Score(quality, None if quality is not None else "the check gave no score")

    def estimate_tokens(self, question: str, outcome: Outcome) -> Tokens | None:  # noqa: ARG002 - it costs nothing
        return None

    async def close(self) -> None:
        self._process.end()


def make_scorer(judge: JudgeSettings, *, reward: RewardSettings, chosen: str | None) -> Scorer | None:
    """Make a scorer; None for LABELS, since people label the answers later. Raises ConfigError, InvalidInput.

    chosen: JUDGE, CHECK, LABELS, or "MODULE:NAME" of a function; None for the judge if it is set, else the check
    """
    generator = judge.generator
    if chosen is None:
        chosen = JUDGE if generator is not None else CHECK
    if chosen == JUDGE:
        if generator is None:
            raise ConfigError("there is no judge", field="judge.generator", remedy=f"add this line: {JUDGE_LINE}")
        made = make_generator(generator, section="judge.generator")
        return _JudgeScorer(Judge(judge, generator=made), version=generator_version(generator))
    if chosen == CHECK:
        if reward.check is None:
            remedy = f"give --judge labels or MODULE:NAME, set reward.check, or add this line: {JUDGE_LINE}"
            raise ConfigError("nothing scores the answers", field="judge", remedy=remedy)
        return _CheckScorer(reward)
    if chosen == LABELS:
        return None
    if ":" not in chosen:
        remedy = "give judge, check, labels, or MODULE:NAME of a function with the arguments of reward.check"
        raise InvalidInput(f"{chosen!r:.80} is no judge", field="judge", remedy=remedy)
    return _CheckScorer(RewardSettings(check=chosen, check_s=reward.check_s))
