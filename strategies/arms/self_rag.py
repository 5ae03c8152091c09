"""Self-RAG, prompted: search, grade the passages, answer, grade the answer, and retry after a bad grade."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ragbandit.strategies.arms.prompted import (
    Count,
    PassageParams,
    PromptedArm,
    ReaderParams,
    Share,
    Whole,
    preset_table,
)
from ragbandit.strategies.arms.steps import finished, gather, gather_once, together
from ragbandit.strategies.arms.uncertainty import detail_of
from ragbandit.strategies.base import Completion, Need, OutOfBudget, Passage
from ragbandit.strategies.generators.text_feed import Token
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, parsed_yes_no
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagParams(ReaderParams):
    """Settings of self_rag."""

    #: "small" is for local models of a few hundred million parameters; "paper" has caps for the prompted graph of the
    #: Adaptive-Note paper, which had none; "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: most rewritten questions
    rewrites: Whole = 1
    #: most further answers of a round if the passages do not support the first
    regenerations: Whole = 1
    #: passages searched for in each round
    passages_per_round: Count = 3
    #: passages graded over all rounds
    passages: Count = 6
    #: tokens of one grade
    grade_tokens: Count = 6
    #: tokens of a rewritten question
    query_tokens: Count = 32

    presets: ClassVar = preset_table(
        "max_tokens style rewrites regenerations passages_per_round passages grade_tokens query_tokens",
        paper=(300, "reasoned", 3, 2, 4, 16, 16, 64),
        chat=(512, "long", 1, 1, 4, 12, 16, 64),
    )


class SelfRag(PromptedArm[SelfRagParams]):
    """The reflections of Self-RAG (Asai et al. 2023) as questions to any model, as in prompted Self-RAG graphs.

    A round searches and grades every new passage. If there are relevant passages the model answers from all of them;
    while a grader finds the answer unsupported, the model answers again and sees the rejected answers. A supported
    answer that settles the original question ends the arm ("answered"); otherwise the question is rewritten for the
    next round. Other stop reasons, with the latest answer: "max_rewrites", "budget_rounds", "max_passages" (no passage
    may be graded any more), "no_new_query", "no_relevant_passage" (the model answers without passages), "empty_answer".

    A grade that is neither yes nor no is counted as "parse_failed" and taken for yes, so the arm of a model that cannot
    grade works like single_step. With a model that always replies no, as one of 135M parameters did, it answers from
    memory. Calls run one after the other, so the caps of the budget hold exactly. Differences to the graphs: every loop
    is capped, graders see the original question, a passage is graded once, and relevant passages are kept for later
    rounds. The trained Self-RAG is a different method: do not compare its numbers.
    """

    kind = SelfRagParams
    prompts: ClassVar = {
        "read": "read_{style}",
        "relevant": "self_rag_relevant",
        "supported": "self_rag_supported",
        "useful": "self_rag_useful",
        "read_again": "self_rag_again{_long}",
        "rewrite": "self_rag_rewrite",
    }

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, answer and grade until the graders accept an answer."""
        graded = PassagePool(cap=run.passage_cap(self._params.passages))
        relevant: list[Passage] = []
        draft = ""
        tried: list[str] = []
        while (stop_reason := await self._begin_round(question, tried=tried, run=run, graded=graded)) is None:
            new = await self._find(question, query=tried[-1], run=run, graded=graded)
            relevant += new
            if new:
                written, supported = await self._write(question, run=run, relevant=relevant)
                draft = written or draft
                if supported and await self._grade("useful", {"question": question, "answer": written}, run=run):
                    return Answer(text=written, stop_reason="answered")
        run.note_branch("rounds_ended", stop_reason)
        if not relevant:
            draft = await self._read(question, run=run)
            stop_reason = "no_relevant_passage" if tried else stop_reason
        return finished(draft, stop_reason)

    async def _begin_round(self, question: str, *, tried: list[str], run: Run, graded: PassagePool) -> str | None:
        """Begin a round with a new query, the last of `tried`. Returns the reason if none can begin, else None."""
        if len(graded.passages) >= graded.cap:
            return "max_passages"
        if len(tried) > self._params.rewrites:
            return "max_rewrites"
        cap = self._params.rewrites + 1
        if not run.may_begin_round(cap=cap):
            return "budget_rounds"
        query = await self._rewrite(question, tried=tried, run=run) if tried else question
        if query.casefold() in {text.casefold() for text in tried}:
            return "no_new_query"
        run.begin_round(cap=cap)
        tried.append(query)
        return None

    async def _rewrite(self, question: str, *, tried: Sequence[str], run: Run) -> str:
        """Ask for another query. Returns the last query if the model wrote none."""
        fields = {"question": question, "tried": "; ".join(tried)}
        done = await self._ask("rewrite", fields, run=run, max_tokens=self._params.query_tokens, stop=("\n",))
        query = done.text.strip().strip("\"'`").strip()
        if not query:
            run.note_branch("parse_failed", f"no query in: {done.text[:200]}")
        return query or tried[-1]

    async def _find(self, question: str, *, query: str, run: Run, graded: PassagePool) -> list[Passage]:
        """Search and grade. Returns the new relevant passages."""
        before, fields = len(graded.passages), {"question": question}
        await gather(run, query=query, pool=graded, k=self._params.passages_per_round)
        grade = partial(self._grade, "relevant", fields, run=run)
        new = graded.passages[before:]
        return [passage for passage in new if await grade(passages=[passage], about=passage.id)]

    async def _write(self, question: str, *, run: Run, relevant: Sequence[Passage]) -> tuple[str, bool]:
        """Answer from the relevant passages. Returns (answer, may be "", whether the passages support it)."""
        answer = await self._read(question, run=run, passages=relevant, final=False)
        rejected: list[str] = []
        while answer:
            if answer in rejected:
                run.note_branch("answer_repeated", answer)
                return answer, False
            if await self._grade("supported", {"question": question, "answer": answer}, run=run, passages=relevant):
                return answer, True
            rejected.append(answer)
            if len(rejected) > self._params.regenerations:
                return answer, False
            fields = {"question": question, "rejected": "; ".join(rejected)}
            answer = await self._read(
                question, run=run, use="read_again", fields=fields, passages=relevant, final=False
            )
        return (rejected[-1] if rejected else ""), False

    async def _grade(
        self,
        grade: str,
        fields: Mapping[str, str],
        *,
        run: Run,
        passages: Sequence[Passage] = (),
        about: str = "answer",
    ) -> bool:
        """The verdict of a grader; True if it cannot be parsed. about: id of the graded passage, or "answer"."""
        done = await self._ask(
            grade,
            fields,
            run=run,
            purpose=f"grade_{grade}",
            max_tokens=self._params.grade_tokens,
            passages=passages,
            stop=("\n",),
        )
        verdict = parsed_yes_no(done.text)
        if verdict is None:
            run.note_branch("parse_failed", f"no {grade} grade in: {done.text[:200]}")
            return True
        run.note_branch(grade, f"{about}: {'yes' if verdict else 'no'}")
        return verdict


_WANT: frozenset[Need] = frozenset({"logprobs", "trained_tokens"})
#: an item per written token: trained token -> its log-probability at this place
Trained = Sequence[Mapping[str, float]]
#: scores of the five utility tokens, from the least to the most useful
_WORTH = (-1.0, -0.5, 0.0, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagTrainedParams(PassageParams):
    """Settings of self_rag_trained. Default names of tokens are those of the paper's weights."""

    #: "small" shows few passages; "paper" is the paper's setting for short answers
    preset: Literal["small", "paper"] = "small"
    #: search if P(retrieval) / (P(retrieval) + P(no retrieval)) is above this; 1.0 never searches
    threshold: Share = 0.2
    #: passages searched for; the model reads each in its own call
    passages: Count = 3
    relevance_weight: Annotated[float, Field(ge=0.0)] = 1.0
    support_weight: Annotated[float, Field(ge=0.0)] = 1.0
    utility_weight: Annotated[float, Field(ge=0.0)] = 0.5
    #: tokens for: passages are needed, no passages are needed
    gate_tokens: Annotated[list[str], Field(min_length=2, max_length=2)] = field(
        default_factory=lambda: ["[Retrieval]", "[No Retrieval]"]
    )
    #: tokens for: the passage is relevant, is not relevant
    relevance_tokens: Annotated[list[str], Field(min_length=2, max_length=2)] = field(
        default_factory=lambda: ["[Relevant]", "[Irrelevant]"]
    )
    #: tokens for: the passage supports the answer fully, in part, not at all
    support_tokens: Annotated[list[str], Field(min_length=3, max_length=3)] = field(
        default_factory=lambda: ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"]
    )
    #: tokens for the usefulness of the answer, from the least to the most useful
    utility_tokens: Annotated[list[str], Field(min_length=5, max_length=5)] = field(
        default_factory=lambda: [f"[Utility:{level}]" for level in range(1, 6)]
    )

    presets: ClassVar = preset_table("max_tokens passages", paper=(100, 10))


class SelfRagTrained(PromptedArm[SelfRagTrainedParams]):
    """Asks the model whether it needs passages, reads each passage in its own call, and takes the best-scored answer.

    The gate is the ratio of probabilities (the authors' short form takes the ratio of log-probabilities, which inverts
    it). At `threshold` or below, the first call's answer counts ("no_retrieval_wanted"). Else every passage is read in
    a concurrent call of its own, and scored (section 3.3 of the paper):

        exp(mean log-probability of the tokens) + relevance_weight * P(relevant)
            + support_weight * (P(full) + P(partial) / 2) + utility_weight * sum of (-1 .. 1) * P(utility)

    Every P is a share within its group of tokens: relevance at the first token, the other groups at the place where a
    token of the group was written. The answer from the best passage counts ("best_passage"); without passages, the
    first call's ("no_passage"); "empty_answer" if it is empty. The draft is the first call's answer. A token without a
    log-probability has probability 0 ("token_missing" in the trace, with its name). A gate without both tokens is
    "parse_failed" and searches; a group without a written token is "parse_failed" and adds nothing.
    """

    needs: frozenset[Need] = frozenset({"completion", "logprobs", "trained_tokens"})
    kind = SelfRagTrainedParams
    prompts: ClassVar = {"gate": "self_rag_answer", "read": "self_rag_read"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Gate, read, choose."""
        try:
            fields, most = {"question": self._without_tokens(question)}, self._params.max_tokens
            first = await self._ask("gate", fields, run=run, max_tokens=most, want=_WANT)
        except OutOfBudget:
            run.draft = self._text(run.partial) or None
            raise
        direct = self._text(first.text)
        run.draft = direct or run.draft
        if not self._wants_passages(first, run=run):
            return finished(direct, "no_retrieval_wanted")
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        if not pool.passages:
            return finished(direct, "no_passage")
        calls = [partial(self._read_passage, question, passage=passage, run=run) for passage in pool.passages]
        readings = await together(calls, run=run)
        scores = [self._score(reading, run=run) for reading in readings]
        scored = zip(pool.passages, scores, strict=True)
        run.note_branch("scores", ", ".join(f"{passage.id}: {score:.4f}" for passage, score in scored))
        answer = self._text(readings[scores.index(max(scores))].text)
        run.draft = answer or run.draft
        return finished(answer, "best_passage")

    def _wants_passages(self, first: Completion, *, run: Run) -> bool:
        names = self._params.gate_tokens
        trained: Trained = detail_of(first, need="trained_tokens", run=run)
        shares = _noted_share(trained[0], names=names, run=run) if trained else [0.0, 0.0]
        if not any(shares):
            run.note_branch("parse_failed", f"the gate has neither {names[0]} nor {names[1]}")
            return True
        run.note_branch("gate", f"{shares[0]:.4f}")
        return shares[0] > self._params.threshold

    async def _read_passage(self, question: str, *, passage: Passage, run: Run) -> Completion:
        fields = {"question": self._without_tokens(question), "retrieval": self._params.gate_tokens[0]}
        title, text = self._without_tokens(passage.title), self._without_tokens(passage.text)
        plain = [replace(passage, title=title, text=text)]
        most = self._params.max_tokens
        return await self._ask("read", fields, run=run, max_tokens=most, passages=plain, want=_WANT)

    def _score(self, reading: Completion, *, run: Run) -> float:
        """The score of a passage, see the class; -inf if the model wrote nothing."""
        trained: Trained = detail_of(reading, need="trained_tokens", run=run)
        tokens: Sequence[Token] = detail_of(reading, need="logprobs", run=run)
        if not trained or not tokens:
            return -math.inf
        settings = self._params
        relevance = _noted_share(trained[0], names=settings.relevance_tokens, run=run)
        full, some, _ = _share_where_written(tokens, trained=trained, names=settings.support_tokens, run=run)
        utility = _share_where_written(tokens, trained=trained, names=settings.utility_tokens, run=run)
        return (
            math.exp(sum(token.logprob for token in tokens) / len(tokens))
            + settings.relevance_weight * relevance[0]
            + settings.support_weight * (full + some / 2)
            + settings.utility_weight * sum(worth * part for worth, part in zip(_WORTH, utility, strict=True))
        )

    def _text(self, text: str) -> str:
        """The answer in a text, without the reflection tokens that the generator left in it."""
        return extract_answer(" ".join(self._without_tokens(text).split()))

    def _without_tokens(self, text: str) -> str:
        """The text without reflection tokens: only the model may write them, not a passage or a question."""
        settings = self._params
        groups = (settings.gate_tokens, settings.relevance_tokens, settings.support_tokens, settings.utility_tokens)
        for name in chain.from_iterable(groups):
            text = text.replace(name, " ")
        return text


def share(logprobs: Mapping[str, float], *, names: Sequence[str]) -> list[float]:
    """Probability of each name within the group: in 0..1, adding up to 1.

    A name without a log-probability, or with -inf, has probability 0. All are 0 if no name has one.
    """
    values = [logprobs.get(name, -math.inf) for name in names]
    highest = max(values)
    if highest == -math.inf:
        return [0.0] * len(values)
    weights = [math.exp(value - highest) for value in values]
    return [weight / sum(weights) for weight in weights]


def _noted_share(logprobs: Mapping[str, float], *, names: Sequence[str], run: Run) -> list[float]:
    for name in names:
        if name not in logprobs:
            run.note_branch("token_missing", name)
    return share(logprobs, names=names)


def _share_where_written(tokens: Sequence[Token], *, trained: Trained, names: Sequence[str], run: Run) -> list[float]:
    """The shares at the first written token that is one of the names; zeros if there is no such token."""
    for token, logprobs in zip(tokens, trained, strict=True):
        if token.text.strip() in names:
            return _noted_share(logprobs, names=names, run=run)
    run.note_branch("parse_failed", f"none of {', '.join(names)} was written")
    return [0.0] * len(names)
