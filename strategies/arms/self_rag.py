"""Self-RAG, prompted: search, grade the passages, answer, grade the answer, and try again where a grade is bad."""

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

    #: "small" is for local models of a few hundred million parameters; "paper" has the caps of the prompted
    #: graph that the Adaptive-Note paper compares with, which had none of its own; "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: rewritten questions, whatever the reason
    rewrites: Whole = 1
    #: further answers of one round, while the passages do not support the one at hand
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
    """The reflections of Self-RAG (Asai et al. 2023) as questions to any model, wired as its prompted graphs are.

    A round searches and grades every passage that is new. Where one is relevant the model answers from all relevant
    passages, and answers again, told what was rejected, while a grader finds the answer unsupported. A supported
    answer that settles the original question ends the arm ("answered"); otherwise the question is rewritten for the
    next round. Without a good answer the latest one is given, when the rewrites are used up ("max_rewrites"), the
    budget's rounds are ("budget_rounds"), no passage may be graded any more ("max_passages"), or the rewriting
    brought no new query ("no_new_query"). If no passage was relevant the model answers without any
    ("no_relevant_passage"); an answer without words is "empty_answer".

    A grade that is neither yes nor no is counted as "parse_failed" and taken for yes, so that a model that cannot
    grade works like single_step. Calls follow one another, so that the caps of the budget hold exactly. Differences
    to those graphs: every loop is capped, graders see the question as it was asked, a passage is graded once, and
    relevant passages stay for later rounds. This is not the trained Self-RAG: compare no numbers. A model that
    cannot grade and says no, as one of 135M parameters did, ends up answering from memory.
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
        """Go round until the graders are content."""
        graded = PassagePool(cap=run.passage_cap(self._params.passages))
        relevant: list[Passage] = []
        draft = ""
        tried: list[str] = []
        while (ended := await self._begin_round(question, tried=tried, run=run, graded=graded)) is None:
            new = await self._find(question, query=tried[-1], run=run, graded=graded)
            relevant += new
            if new:
                written, supported = await self._write(question, run=run, relevant=relevant)
                draft = written or draft
                if supported and await self._grade("useful", {"question": question, "answer": written}, run=run):
                    return Answer(text=written, stop_reason="answered")
        run.note_branch("rounds_ended", ended)
        if not relevant:
            draft = await self._read(question, run=run)
            ended = "no_relevant_passage" if tried else ended
        return finished(draft, ended)

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
        if query.casefold() in {each.casefold() for each in tried}:
            return "no_new_query"
        run.begin_round(cap=cap)
        tried.append(query)
        return None

    async def _rewrite(self, question: str, *, tried: Sequence[str], run: Run) -> str:
        """Another query; the last one where the model wrote none."""
        fields = {"question": question, "tried": "; ".join(tried)}
        done = await self._ask("rewrite", fields, run=run, max_tokens=self._params.query_tokens, stop=("\n",))
        query = done.text.strip().strip("\"'`").strip()
        if not query:
            run.note_branch("parse_failed", f"no query in: {done.text[:200]}")
        return query or tried[-1]

    async def _find(self, question: str, *, query: str, run: Run, graded: PassagePool) -> list[Passage]:
        """Search and grade; the new relevant passages."""
        before, fields = len(graded.passages), {"question": question}
        await gather(run, query=query, pool=graded, k=self._params.passages_per_round)
        new = graded.passages[before:]
        return [each for each in new if await self._grade("relevant", fields, run=run, passages=[each], about=each.id)]

    async def _write(self, question: str, *, run: Run, relevant: Sequence[Passage]) -> tuple[str, bool]:
        """An answer from the relevant passages, and whether they support it; "" if the model said nothing usable."""
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
        """The verdict of one grader, yes where it cannot be read. about: the id of a passage, or the answer."""
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
#: of every token written, the log-probability of each trained token there
Trained = Sequence[Mapping[str, float]]
#: what the five utility tokens, from the least to the most useful, are worth
_WORTH = (-1.0, -0.5, 0.0, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagTrainedParams(PassageParams):
    """Settings of self_rag_trained. The names of tokens are those of the paper's weights."""

    #: "small" shows few passages; "paper" is the paper's setting for short answers
    preset: Literal["small", "paper"] = "small"
    #: search if P(retrieval) / (P(retrieval) + P(no retrieval)) is above it; 1.0: never
    threshold: Share = 0.2
    #: passages searched for, each read alone
    passages: Count = 3
    relevance_weight: Annotated[float, Field(ge=0.0)] = 1.0
    support_weight: Annotated[float, Field(ge=0.0)] = 1.0
    utility_weight: Annotated[float, Field(ge=0.0)] = 0.5
    #: wants passages, wants none
    gate_tokens: Annotated[list[str], Field(min_length=2, max_length=2)] = field(
        default_factory=lambda: ["[Retrieval]", "[No Retrieval]"]
    )
    #: the passage is about the question, is not
    relevance_tokens: Annotated[list[str], Field(min_length=2, max_length=2)] = field(
        default_factory=lambda: ["[Relevant]", "[Irrelevant]"]
    )
    #: the passage supports the answer fully, in part, not
    support_tokens: Annotated[list[str], Field(min_length=3, max_length=3)] = field(
        default_factory=lambda: ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"]
    )
    #: from the least to the most useful
    utility_tokens: Annotated[list[str], Field(min_length=5, max_length=5)] = field(
        default_factory=lambda: [f"[Utility:{level}]" for level in range(1, 6)]
    )

    presets: ClassVar = preset_table("max_tokens passages", paper=(100, 10))


class SelfRagTrained(PromptedArm[SelfRagTrainedParams]):
    """Ask the model whether it wants passages; read each alone; answer with the reading it judges best.

    The gate is the ratio of probabilities (the authors' short form takes the ratio of log-probabilities, which turns
    it round). At `threshold` or below, the first call's own answer counts ("no_retrieval_wanted"). Else every
    passage is read alone, all at the same time, and scored (section 3.3 of the paper):

        exp(mean log-probability of the tokens) + relevance_weight * P(relevant)
            + support_weight * (P(full) + P(partial) / 2) + utility_weight * sum of (-1 .. 1) * P(utility)

    every P a share of its own group of tokens: relevance at the first token, the others where a token of the group
    was written. The best passage's answer counts ("best_passage"). Without a passage, because none was found or the
    budget allows none, it is the first call's ("no_passage"); "empty_answer" where the text is empty.
    A token that the model does not tell counts as probability 0 ("token_missing" in the trace, by name); a gate
    of which both are missing is "parse_failed" and searches; a group that was never written ("parse_failed") adds
    nothing. The draft is the first call's answer.
    """

    needs: frozenset[Need] = frozenset({"completion", "logprobs", "trained_tokens"})
    kind = SelfRagTrainedParams
    prompts: ClassVar = {"gate": "self_rag_answer", "read": "self_rag_read"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Gate, read, choose."""
        try:
            fields, most = {"question": self._untold(question)}, self._params.max_tokens
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
        calls = [partial(self._read_alone, question, passage=each, run=run) for each in pool.passages]
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
            run.note_branch("parse_failed", f"the gate tells neither {names[0]} nor {names[1]}")
            return True
        run.note_branch("gate", f"{shares[0]:.4f}")
        return shares[0] > self._params.threshold

    async def _read_alone(self, question: str, *, passage: Passage, run: Run) -> Completion:
        """The answer from one passage alone."""
        fields = {"question": self._untold(question), "retrieval": self._params.gate_tokens[0]}
        plain = [replace(passage, title=self._untold(passage.title), text=self._untold(passage.text))]
        most = self._params.max_tokens
        return await self._ask("read", fields, run=run, max_tokens=most, passages=plain, want=_WANT)

    def _score(self, reading: Completion, *, run: Run) -> float:
        """See the class; -inf for a reading in which nothing was written."""
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
            + settings.utility_weight * sum(worth * each for worth, each in zip(_WORTH, utility, strict=True))
        )

    def _text(self, text: str) -> str:
        """The answer in a text, without reflection tokens, which generators leave in the text where they are wanted."""
        return extract_answer(" ".join(self._untold(text).split()))

    def _untold(self, text: str) -> str:
        """The text without reflection tokens: the model alone may write them, not a passage or a question."""
        settings = self._params
        groups = (settings.gate_tokens, settings.relevance_tokens, settings.support_tokens, settings.utility_tokens)
        for name in chain.from_iterable(groups):
            text = text.replace(name, " ")
        return text


def share(logprobs: Mapping[str, float], *, names: Sequence[str]) -> list[float]:
    """The probability of each name within its group, in their order: in 0..1, adding up to 1.

    A name that is not told, or told with a log-probability of -inf, has 0; all have 0 if no name is told.
    """
    known = [logprobs.get(name, -math.inf) for name in names]
    highest = max(known)
    if highest == -math.inf:
        return [0.0] * len(known)
    weights = [math.exp(each - highest) for each in known]
    return [weight / sum(weights) for weight in weights]


def _noted_share(logprobs: Mapping[str, float], *, names: Sequence[str], run: Run) -> list[float]:
    for name in names:
        if name not in logprobs:
            run.note_branch("token_missing", name)
    return share(logprobs, names=names)


def _share_where_written(tokens: Sequence[Token], *, trained: Trained, names: Sequence[str], run: Run) -> list[float]:
    """The shares at the first token that is one of the names; all 0 if none was written."""
    for token, logprobs in zip(tokens, trained, strict=True):
        if token.text.strip() in names:
            return _noted_share(logprobs, names=names, run=run)
    run.note_branch("parse_failed", f"none of {', '.join(names)} was written")
    return [0.0] * len(names)
