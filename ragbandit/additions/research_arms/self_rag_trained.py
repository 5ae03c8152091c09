import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ragbandit.additions.research_arms.lookahead import detail_of
from ragbandit.strategies.arm_parts.prompted import Count, PassageParams, PromptedArm, Share, preset_table
from ragbandit.strategies.arm_parts.steps import gather_once, make_answer, run_calls
from ragbandit.strategies.base import Completion, Need, Passage
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer
from ragbandit.strategies.run import Answer, Run

_WANT: frozenset[Need] = frozenset({"logprobs", "trained_tokens"})
#: for each position of the text: trained token -> its log-probability at this position
TrainedLogprobs = Sequence[Mapping[str, float]]
_UTILITY_SCORES = (-1.0, -0.5, 0.0, 0.5, 1.0)  #: scores of the tokens in UTILITY


#: reflection tokens of the paper's model: passages are needed, or not
GATE = ("[Retrieval]", "[No Retrieval]")
#: the passage is relevant, or not
RELEVANCE = ("[Relevant]", "[Irrelevant]")
#: the passage supports the answer fully, in part, or not at all
SUPPORT = ("[Fully supported]", "[Partially supported]", "[No support / Contradictory]")
#: usefulness of the answer, from the least to the most useful
UTILITY = tuple(f"[Utility:{level}]" for level in range(1, 6))


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagTrainedParams(PassageParams):
    #: "small" shows few passages; "paper" is the paper's setting for short answers
    preset: Literal["small", "paper"] = "small"
    #: the arm searches if the first gate token has more than this share of both tokens' probability; never at 1.0
    threshold: Share = 0.2
    passages: Count = 3  #: passages per search; the model reads each passage in a call of its own
    relevance_weight: Annotated[float, Field(ge=0.0)] = 1.0
    support_weight: Annotated[float, Field(ge=0.0)] = 1.0
    utility_weight: Annotated[float, Field(ge=0.0)] = 0.5

    presets: ClassVar = preset_table("max_tokens passages", paper=(100, 10))


class SelfRagTrained(PromptedArm[SelfRagTrainedParams]):
    """Asks a trained model whether it needs passages, answers from each passage, and takes the answer that scores best.

    P(token) is the probability of a reflection token, divided by the probability of all tokens in its group: gate,
    relevance, support or utility. A token without a log-probability has P = 0 ("token_missing" in the trace).

    The first call answers without passages. If P of the first gate token is at most `threshold` where the text begins,
    the arm takes this answer ("no_retrieval_wanted"). If both gate tokens are missing ("parse_failed"), the arm
    searches. The authors' short form divides log-probabilities instead, which inverts the value.

    Then one call for each passage writes an answer; the calls are concurrent. The score of an answer is, as in section
    3.3 of the paper, with the values -1, -0.5, 0, 0.5 and 1 for the five utility tokens:

        exp(mean log-probability of the tokens) + relevance_weight * P(relevant)
            + support_weight * (P(full) + P(partial) / 2) + utility_weight * sum of value * P(utility token)

    P(relevant) is read where the text begins, the others where the model wrote the first token of their group. A group
    of which the model wrote no token ("parse_failed") adds 0. Stop reasons: "best_passage", "no_passage" if nothing was
    found (the arm takes the first call's answer), "empty_answer".
    """

    arm: ClassVar[str] = "self_rag_trained"
    needs: frozenset[Need] = frozenset({"completion", "logprobs", "trained_tokens"})
    kind = SelfRagTrainedParams
    package = __package__
    prompts: ClassVar = {"gate": "self_rag_answer", "read": "self_rag_read"}
    #: the trained tokens that the arm reads, by group
    token_groups: ClassVar = (GATE, RELEVANCE, SUPPORT, UTILITY)

    async def answer(self, question: str, *, run: Run) -> Answer:
        try:
            fields = {"question": _without_tokens(question)}
            first = await self._ask("gate", fields, run=run, max_tokens=self._params.max_tokens, want=_WANT)
        except OutOfBudget:
            run.draft = _text(run.partial) or None
            raise
        direct = _text(first.text)
        run.draft = direct or run.draft
        if not self._wants_passages(first, run=run):
            return make_answer(direct, "no_retrieval_wanted")
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        if not pool.passages:
            return make_answer(direct, "no_passage")
        calls = [partial(self._read_passage, question, passage=passage, run=run) for passage in pool.passages]
        readings = await run_calls(calls, run=run)
        scores = [self._score(reading, run=run) for reading in readings]
        scored = zip(pool.passages, scores, strict=True)
        run.note_branch("scores", ", ".join(f"{passage.id}: {score:.4f}" for passage, score in scored))
        answer = _text(readings[scores.index(max(scores))].text)
        run.draft = answer or run.draft
        return make_answer(answer, "best_passage")

    def _wants_passages(self, first: Completion, *, run: Run) -> bool:
        trained: TrainedLogprobs = detail_of(first, need="trained_tokens", run=run)
        shares = _shares_noting_missing(trained[0], names=GATE, run=run) if trained else [0.0, 0.0]
        if not any(shares):
            run.note_branch("parse_failed", f"the gate has neither {GATE[0]} nor {GATE[1]}")
            return True
        run.note_branch("gate", f"{shares[0]:.4f}")
        return shares[0] > self._params.threshold

    async def _read_passage(self, question: str, *, passage: Passage, run: Run) -> Completion:
        fields = {"question": _without_tokens(question), "retrieval": GATE[0]}
        title, text = _without_tokens(passage.title), _without_tokens(passage.text)
        plain = [replace(passage, title=title, text=text)]
        return await self._ask("read", fields, run=run, max_tokens=self._params.max_tokens, passages=plain, want=_WANT)

    def _score(self, reading: Completion, *, run: Run) -> float:
        """Score of an answer by the formula in the docstring of the class; -inf if the model wrote nothing."""
        trained: TrainedLogprobs = detail_of(reading, need="trained_tokens", run=run)
        tokens: Sequence[Token] = detail_of(reading, need="logprobs", run=run)
        if not trained or not tokens:
            return -math.inf
        settings = self._params
        relevance = _shares_noting_missing(trained[0], names=RELEVANCE, run=run)
        full, some, _ = _shares_at_first_written(tokens, trained=trained, names=SUPPORT, run=run)
        utility = _shares_at_first_written(tokens, trained=trained, names=UTILITY, run=run)
        return (
            math.exp(sum(token.logprob for token in tokens) / len(tokens))
            + settings.relevance_weight * relevance[0]
            + settings.support_weight * (full + some / 2)
            + settings.utility_weight * sum(score * part for score, part in zip(_UTILITY_SCORES, utility, strict=True))
        )


def _text(text: str) -> str:
    return extract_answer(" ".join(_without_tokens(text).split()))


def _without_tokens(text: str) -> str:
    """Remove the reflection tokens: only the model may write them, not a passage or a question."""
    for name in (*GATE, *RELEVANCE, *SUPPORT, *UTILITY):
        text = text.replace(name, " ")
    return text


def token_shares(logprobs: Mapping[str, float], *, names: Sequence[str]) -> list[float]:
    """Share of each token in the total probability of `names`; 0 for a token without log-probability."""
    values = [logprobs.get(name, -math.inf) for name in names]
    highest = max(values)
    if highest == -math.inf:
        return [0.0] * len(values)
    weights = [math.exp(value - highest) for value in values]
    return [weight / sum(weights) for weight in weights]


def _shares_noting_missing(logprobs: Mapping[str, float], *, names: Sequence[str], run: Run) -> list[float]:
    for name in names:
        if name not in logprobs:
            run.note_branch("token_missing", name)
    return token_shares(logprobs, names=names)


def _shares_at_first_written(
    tokens: Sequence[Token], *, trained: TrainedLogprobs, names: Sequence[str], run: Run
) -> list[float]:
    """The shares at the first written token among `names`; zeros if no token of `names` was written."""
    for token, logprobs in zip(tokens, trained, strict=True):
        if token.text.strip() in names:
            return _shares_noting_missing(logprobs, names=names, run=run)
    run.note_branch("parse_failed", f"none of {', '.join(names)} was written")
    return [0.0] * len(names)
