"""`no_retrieval`: the model answers from memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import Count, PromptParams, ReaderParams, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import Style, gather, gather_once, partial_kept, stop_reason
from ragbandit.strategies.base import PromptTooLong
from ragbandit.strategies.prompting.passages import (
    CapPolicy,
    PassagePool,
    extract_answer,
    first_sentence,
    has_answer,
    keep_best,
    keep_first,
    keep_latest,
    last_query,
)
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(PromptParams):
    """Settings of no_retrieval."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"

    presets: ClassVar = preset_table(
        "max_tokens style",
        flan=(200, "direct"),
        gpt=(300, "reasoned"),
        chat=(512, "long"),
    )


class NoRetrieval(PromptedArm[NoRetrievalParams]):
    """Answer from the model's own knowledge: one call, no search, no step (Adaptive-RAG's "A")."""

    retrieves: ClassVar[bool] = False
    kind = NoRetrievalParams
    prompts: ClassVar = {"answer": "recall_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Ask once; stops with "answered", or "empty_answer" if the model said nothing usable."""
        answer = await self._read(question, run=run, style=self._params.style, use="answer")
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ReaderParams):
    """Settings of single_step."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: passages searched for and shown
    passages: Count = 3

    presets: ClassVar = preset_table(
        "max_tokens style passages",
        flan=(200, "direct", 15),
        gpt=(300, "reasoned", 6),
        chat=(512, "long", 5),
    )


class SingleStep(PromptedArm[SingleStepParams]):
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    kind = SingleStepParams
    prompts: ClassVar = {"read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, read, answer; stops with "answered" or "empty_answer"."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        answer = await self._read(question, run=run, style=self._params.style, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))


Keep = Literal["first", "latest", "best"]

_POLICIES: Mapping[Keep, CapPolicy] = {"first": keep_first, "latest": keep_latest, "best": keep_best}


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStepParams(ReaderParams):
    """Settings of multi_step."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: how a sentence of the chain is asked for: "quoted" from the passages, or "reasoned" as in the paper
    think: Literal["quoted", "reasoned"] = "quoted"
    #: search-and-think rounds
    rounds: Count = 3
    #: passages searched for in each round
    passages_per_round: Count = 2
    #: passages held over all rounds
    passages: Count = 6
    #: which of them stay when there are more: the "first" (IRCoT), the "latest" (AutoRAG-Research), or the "best" by
    #: score, which is sensible only where the scores of different searches compare: those of `dense` do
    keep: Keep = "first"
    #: tokens of one sentence of the chain
    sentence_tokens: Count = 48

    presets: ClassVar = preset_table(
        "max_tokens style think rounds passages_per_round passages sentence_tokens",
        flan=(200, "direct", "reasoned", 10, 6, 15, 200),
        gpt=(300, "reasoned", "reasoned", 10, 3, 15, 300),
        chat=(512, "long", "reasoned", 4, 3, 10, 128),
    )


class MultiStep(PromptedArm[MultiStepParams]):
    """Rounds of search and one sentence of thought; then a separate reader answers from the passages gathered.

    A round searches with the last sentence that states something (the question in the first), adds the hits to
    the pool and asks for the next sentence. The chain ends at a sentence with "answer is" ("answer_found"), at
    an empty one ("empty_sentence"), when its next prompt has no room for it ("thoughts_too_long"), or when the rounds
    are used up ("max_rounds", or "budget_rounds" where the budget's cap was the smaller). The chain is thrown away:
    the reader sees the passages and the question only. A passage that was shown counts even where `keep` gave
    it up since: once those shown and those held are as many as the budget's passages, no new one comes in.
    Until it has answered, the draft is the chain's own answer, or its latest sentence.
    """

    kind = MultiStepParams
    prompts: ClassVar = {"think": "think_{think}", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Interleave, then read."""
        pool = PassagePool(
            cap=run.passage_cap(self._params.passages),
            policy=_POLICIES[self._params.keep],
            most_shown=run.budget.passages,
        )
        ended = await self._gather_by_thinking(question, run=run, pool=pool)
        run.note_branch("chain_ended", ended)
        answer = await self._read(question, run=run, style=self._params.style, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise=ended))

    async def _gather_by_thinking(self, question: str, *, run: Run, pool: PassagePool) -> str:
        """Fill the pool; the rule that ended the chain."""
        sentences: list[str] = []
        k = self._params.passages_per_round
        if self._params.keep == "latest":
            k = min(k, pool.cap)  # more hits of one search would push out its own best
        while run.begin_round(cap=self._params.rounds):
            query = last_query(question, sentences=sentences)
            await gather(run, query=query, pool=pool, k=k)
            try:
                sentence = await self._think(question, sentences=sentences, run=run, pool=pool)
            except PromptTooLong:
                if not sentences:
                    raise
                return "thoughts_too_long"
            if not sentence:
                return "empty_sentence"
            sentences.append(sentence)
            announced = has_answer(sentence)
            run.draft = (extract_answer(sentence) if announced else sentence) or run.draft
            if announced:
                return "answer_found"
        return "max_rounds" if len(sentences) >= self._params.rounds else "budget_rounds"

    async def _think(self, question: str, *, sentences: list[str], run: Run, pool: PassagePool) -> str:
        fields, most = {"question": question, "thoughts": " ".join(sentences)}, self._params.sentence_tokens
        with partial_kept(run, style="reasoned"):
            done = await self._ask("think", fields, run=run, max_tokens=most, pool=pool, stop=("\n",))
        return first_sentence(done.text)
