import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.additions.research_arms.lookahead import LookaheadArm, LookaheadParams, first_sentence_tokens
from ragbandit.strategies.arm_parts.prompted import Count, Share, preset_table
from ragbandit.strategies.arm_parts.steps import gather
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.prompting.passages import PassagePool, clean_query, first_sentence
from ragbandit.strategies.run import Run

_LETTER = re.compile(r"\w")
_QUERY_WORDS = 64  #: maximum number of words of a query. The first words of a longer query are dropped


def mask_query(tokens: Iterable[Token], *, beta: float) -> str:
    """Text of the tokens with a probability above `beta`, without question words; "" if no letter or digit is left."""
    text = "".join(token.text if math.exp(token.logprob) > beta else " " for token in tokens)
    query = clean_query(text)
    return query if _LETTER.search(query) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlareParams(LookaheadParams):
    #: "paper" is the paper's setting for 2WikiMultihopQA; "code" also has `second_call`, like the authors' program
    preset: Literal["small", "paper", "code"] = "small"
    theta: Share = 0.4  #: the arm searches if a token's probability is at most this; 0 to always search
    beta: Share = 0.2  #: the query leaves out tokens with a probability of at most this
    second_call: bool = False  #: whether every sentence is written again, even if all its tokens are probable
    rounds: Count = 3  #: maximum number of searches, including the first one with the question
    sentence_tokens: Count = 40
    presets: ClassVar = preset_table(
        "sentences theta beta second_call rounds sentence_tokens",
        paper=(16, 0.8, 0.4, False, 16, 64),
        code=(16, 0.8, 0.4, True, 16, 64),
    )


class Flare(LookaheadArm[FlareParams]):
    """Writes sentence by sentence. A sentence with an improbable token becomes a query (Jiang et al. 2023).

    The first search uses the question. If the probabilities of all tokens of a sentence are above `theta`, the sentence
    is accepted (the authors' code writes it again, see `second_call`). Otherwise the query is the sentence without the
    tokens whose probability is at most `beta`, or the question if no word is left ("query_fallback"). If the rounds are
    used up, the text continues without searches ("search_skipped"). Stop reasons: "answer_found" ("answer is" in a
    sentence), "empty_sentence", "model_ended", "max_sentences". A text without an answer is continued with "So the
    answer is"; the stop reason is "empty_answer" if that gives no answer.
    """

    arm: ClassVar[str] = "flare"
    needs: frozenset[Need] = frozenset({"completion", "stop", "logprobs"})
    kind = FlareParams
    capped_by, nothing_new = "sentence_tokens", "empty_sentence"

    async def _continue_text(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        if not sentences:
            await self._search(question, run=run, pool=pool)
        done = await self._write(question, sentences=sentences, run=run, pool=pool, purpose="look_ahead")
        searched = False
        if self._has_improbable_token(done, run=run):
            query = mask_query(first_sentence_tokens(done, run=run), beta=self._params.beta)
            if not query and done.text.strip():
                run.note_branch("query_fallback", "every token is masked: the question is searched")
            query = " ".join(query.split()[-_QUERY_WORDS:])
            searched = await self._search(query or question, run=run, pool=pool)
        if searched or self._params.second_call:
            done = await self._write(question, sentences=sentences, run=run, pool=pool, purpose="write")
        sentence = first_sentence(done.text)
        at_end = done.finish == "stop" and sentence == done.text.strip()
        return [sentence] if sentence else [], at_end

    async def _search(self, query: str, *, run: Run, pool: PassagePool) -> bool:
        """Search, and replace the passages of the pool by the hits. Returns False if no round is left."""
        if not self._begin_search(run):
            return False
        await gather(run, query=query, pool=pool, k=self._params.passages)
        return True

    def _has_improbable_token(self, done: Completion, *, run: Run) -> bool:
        if self._params.theta == 0.0:
            return True
        tokens = first_sentence_tokens(done, run=run)
        lowest = min((math.exp(token.logprob) for token in tokens if token.text.strip()), default=1.0)
        run.note_branch("lowest_probability", f"{lowest:.4f}")
        return lowest <= self._params.theta
