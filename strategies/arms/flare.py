"""FLARE: look one sentence ahead, and search when the model is not sure of it (Jiang et al. 2023)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.lookahead import LookaheadArm, LookaheadParams, masked_query, sentence_tokens
from ragbandit.strategies.arm_parts.params import Count, Share, preset_table
from ragbandit.strategies.arm_parts.steps import gather
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, first_sentence, has_answer
from ragbandit.strategies.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class FlareParams(LookaheadParams):
    """Settings of flare."""

    #: "small" is for local models of a few hundred million parameters; "paper" is the 2WikiMultihopQA setting;
    #: "code" is the same as the authors' program runs it: the second call is made for confident sentences, too
    preset: Literal["small", "paper", "code"] = "small"
    #: a token this likely or less makes the arm search; 0 means: search for every sentence, as in the authors' code
    theta: Share = 0.4
    #: tokens this likely or less are left out of the query
    beta: Share = 0.2
    #: write every sentence a second time, even one the model was sure of
    second_call: bool = False
    #: searches, the first one with the question included
    rounds: Count = 3
    #: words of a query; the last ones stay
    query_words: Count = 64
    #: tokens looked ahead
    sentence_tokens: Count = 40
    presets: ClassVar = preset_table(
        "sentences theta beta second_call rounds sentence_tokens",
        paper=(16, 0.8, 0.4, False, 16, 64),
        code=(16, 0.8, 0.4, True, 16, 64),
    )


class Flare(LookaheadArm[FlareParams]):
    """Sentence by sentence: a sentence in which any token is unlikely is searched for and written again.

    The first search uses the question. A look-ahead whose tokens are all likelier than `theta` is accepted as it
    is (the paper; its code writes it twice, see `second_call`). Otherwise the query is the sentence without
    tokens of at most `beta`; where nothing is left of it, the question, which the trace says ("query_fallback").
    When the rounds are used up, the text goes on without searches ("search_skipped").
    The text ends at a sentence with "answer is" ("answer_found"), at an empty one ("empty_sentence"), where the
    model ended it ("model_ended"), or at `sentences` ("max_sentences"). A text that announces no answer is
    continued with "So the answer is"; "empty_answer" if even that brings none. The draft is the latest sentence.
    """

    needs: frozenset[Need] = frozenset({"completion", "stop", "logprobs"})
    kind = FlareParams

    async def _write_all(self, question: str, *, run: Run, pool: PassagePool) -> tuple[list[str], str]:
        await self._search(question, run=run, pool=pool)
        sentences: list[str] = []
        while len(sentences) < self._params.sentences:
            done = await self._next(question, sentences=sentences, run=run, pool=pool, purpose="look_ahead")
            if self._unsure(done, run=run):
                query = masked_query(sentence_tokens(done, run=run), beta=self._params.beta)
                if not query and done.text.strip():
                    run.note_branch("query_fallback", "every token is masked: the question is searched")
                words = " ".join(query.split()[-self._params.query_words :])
                searched = await self._search(words or question, run=run, pool=pool)
                if searched or self._params.second_call:
                    done = await self._next(question, sentences=sentences, run=run, pool=pool, purpose="write")
            elif self._params.second_call:
                done = await self._next(question, sentences=sentences, run=run, pool=pool, purpose="write")
            sentence = first_sentence(done.text)
            if not sentence:
                return sentences, "empty_sentence"
            sentences.append(sentence)
            run.draft = extract_answer(sentence) or run.draft
            if has_answer(sentence):
                return sentences, "answer_found"
            if done.finish == "stop" and sentence == done.text.strip():
                return sentences, "model_ended"
        return sentences, "max_sentences"

    async def _next(
        self, question: str, *, sentences: list[str], run: Run, pool: PassagePool, purpose: str
    ) -> Completion:
        most, want = self._params.sentence_tokens, frozenset[Need]({"logprobs"})
        return await self._write(
            question, sentences=sentences, run=run, purpose=purpose, max_tokens=most, want=want, pool=pool
        )

    async def _search(self, query: str, *, run: Run, pool: PassagePool) -> bool:
        """Fill the pool anew; False if no round is left."""
        if run.rounds_over or not run.begin_round(cap=self._params.rounds):
            run.note_branch("search_skipped", "no round is left")
            return False
        await gather(run, query=query, pool=pool, k=self._params.passages)
        return True

    def _unsure(self, done: Completion, *, run: Run) -> bool:
        if self._params.theta == 0.0:
            return True
        tokens = sentence_tokens(done, run=run)
        likelihoods = [math.exp(token.logprob) for token in tokens if token.text.strip()]
        lowest = min(likelihoods, default=1.0)
        run.note_branch("lowest_probability", f"{lowest:.4f}")
        return lowest <= self._params.theta
