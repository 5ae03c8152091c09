from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from ragbandit.additions.research_arms.lookahead import (
    Floats,
    LookaheadArm,
    LookaheadParams,
    Word,
    detail_of,
    merge_words,
)
from ragbandit.additions.research_arms.replies import is_content, sentences_in
from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arm_parts.prompted import Count, preset_table
from ragbandit.strategies.arm_parts.steps import gather
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.generators.parts import Attention
from ragbandit.strategies.prompting.passages import PassagePool, first_sentence, has_answer, sentence_spans
from ragbandit.strategies.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class DraginParams(LookaheadParams):
    #: the presets except "small" have the paper's numbers for LLaMA2-7B-chat on 2WikiMultihopQA and HotpotQA
    preset: Literal["small", "llama2_2wiki", "llama2_hotpot"] = "small"
    #: the arm searches if the value of a word (see `Dragin`) is above this. A good threshold depends on the model; the
    #: default is untested
    theta: Annotated[float, Field(ge=0.0)] = 1.0
    query_words: Count = 12
    text_tokens: Count = 48
    presets: ClassVar = preset_table(
        "sentences passages theta query_words rounds text_tokens",
        llama2_2wiki=(16, 3, 1.0, 25, 16, 64),
        llama2_hotpot=(16, 3, 0.8, 35, 16, 100),
    )


class Dragin(LookaheadArm[DraginParams]):
    """Writes ahead. At the first sentence with an uncertain, important word, searches and writes the sentence again.

    The value of a word is the share of the sentence's attention that the word receives, times its entropy, times the
    number of words in the sentence (Su et al. 2024, section 3.1). A content word with a value above `theta` triggers a
    search. The query consists of the words from question and text that get most attention from the triggering words. If
    the model's tokens do not contain the question, or if no word has attention, the query is the question
    ("query_fallback"). If the rounds are used up, the text continues without a search ("search_skipped"). Stop reasons:
    "answer_found", "empty_text" (nothing was added), "model_ended", "max_sentences". A text without an answer is
    continued with "So the answer is"; the stop reason is "empty_answer" if that gives no answer.

    Differences to the authors' code: a stop word triggers no search; the attention is computed with the prompt.
    """

    arm: ClassVar[str] = "dragin"
    example: ClassVar = {"theta": 0.2}
    needs: frozenset[Need] = frozenset({"completion", "stop", "entropy", "attention"})
    kind = DraginParams
    capped_by, nothing_new = "text_tokens", "empty_text"

    async def _continue_text(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        room = self._params.sentences - len(sentences)
        done = await self._write(question, sentences=sentences, run=run, purpose="look_ahead")
        begin, hits = self._find_trigger(done, run=run, room=room)
        if hits:
            new = sentences_in(done.text[:begin])
            if has_answer(" ".join(new)):
                return new, False
            run.note_branch("uncertain_words", ", ".join(word.text for word in hits))
            if self._begin_search(run):
                query = self._query(question, done=done, hits=hits, thoughts=" ".join(sentences), run=run)
                await gather(run, query=query, pool=pool, k=self._params.passages)
                done = await self._write(question, sentences=list(sentences) + new, run=run, purpose="write", pool=pool)
                return new + sentences_in(first_sentence(done.text)), False
        new = sentences_in(done.text)
        return new, done.finish == "stop" and len(new) < room

    def _find_trigger(self, done: Completion, *, run: Run, room: int) -> tuple[int, list[Word]]:
        """Find the first of `room` sentences that has content words of a value above theta.

        Returns (where it begins, these words), or (0, []).
        """
        if not done.text.strip():
            return 0, []
        entropy, attention = _entropy_and_attention(done, run=run)
        text_words, received = merge_words(attention.keys[-len(entropy) :]), attention_received(attention)
        for begin, end in sentence_spans(done.text)[:room]:
            sentence = [word for word in text_words if begin <= word.begin < end]
            values = _word_values(sentence, received=received, entropy=np.asarray(entropy, dtype=np.float64))
            valued = zip(sentence, values, strict=True)
            hits = [word for word, value in valued if value > self._params.theta and is_content(word.text)]
            if hits:
                return begin, hits
        return 0, []

    def _query(self, question: str, *, done: Completion, hits: Sequence[Word], thoughts: str, run: Run) -> str:
        """The content words with most attention from the triggering words `hits`, in text order (section 3.2)."""
        entropy, attention = _entropy_and_attention(done, run=run)
        read = len(attention.keys) - len(entropy)
        hit_tokens = [token for word in hits for token in word.tokens]
        weights = attention.weights[:, hit_tokens, :].mean(axis=(0, 1), dtype=np.float64)
        prompt = "".join(attention.keys[:read])
        all_words = merge_words(attention.keys[:read])
        for word in merge_words(attention.keys[read:]):
            tokens = tuple(read + token for token in word.tokens)
            all_words.append(Word(text=word.text, tokens=tokens, begin=len(prompt) + word.begin))
        spans = _spans_of((question.strip(), thoughts), text=prompt)
        spans.append((len(prompt), len(prompt) + hits[-1].begin))
        excluded = {read + token for token in hit_tokens}
        candidates = [
            Word(text=word.text[: end - word.begin], tokens=word.tokens, begin=word.begin)
            for word in all_words
            for begin, end in spans
            if begin <= word.begin < end and excluded.isdisjoint(word.tokens)
        ]
        candidates = [word for word in candidates if is_content(word.text) and weights[list(word.tokens)].any()]
        best = sorted(candidates, key=lambda word: -weights[list(word.tokens)].sum())[: self._params.query_words]
        if len(spans) < 2 or not best:
            why = "nothing was looked at" if len(spans) > 1 else "the question is not among the model's tokens"
            run.note_branch("query_fallback", f"{why}: the question is searched")
            return question
        return " ".join(word.text for word in sorted(best, key=lambda word: word.begin))


def _entropy_and_attention(done: Completion, *, run: Run) -> tuple[Sequence[float], Attention]:
    entropy: Sequence[float] = detail_of(done, need="entropy", run=run)
    attention: Attention = detail_of(done, need="attention", run=run)
    if attention.weights.shape[1:] != (len(entropy), len(attention.keys)) or len(entropy) > len(attention.keys):
        sizes = f"{len(entropy)} written tokens and {len(attention.keys)} keys"
        message = f"the generator's attention of shape {attention.weights.shape} does not fit {sizes}"
        remedy = "give the shape (heads, written tokens, read + written tokens)"
        raise ArmFailed(message, field="details.attention", remedy=remedy)
    return entropy, attention


def attention_received(attention: Attention) -> Floats:
    """Largest attention that each written token gets from a written token, averaged over heads; shape (written,)."""
    written = attention.weights.shape[1]
    received: Floats = attention.weights[:, :, -written:].max(axis=1).mean(axis=0, dtype=np.float64)
    return received


def _word_values(words: Sequence[Word], *, received: Floats, entropy: Floats) -> Floats:
    """Value of each word: share of the attention (sum over tokens) x entropy (mean over tokens) x number of words."""
    shares = np.array([received[list(word.tokens)].sum() for word in words], dtype=np.float64)
    doubts = np.array([entropy[list(word.tokens)].mean() for word in words], dtype=np.float64)
    total = shares.sum()
    return shares / total * doubts * len(words) if total > 0 else np.zeros(len(words))


def _spans_of(parts: Sequence[str], *, text: str) -> list[tuple[int, int]]:
    """Spans (begin, end) of the parts' last occurrences in the text; [] if the first part is empty or missing."""
    starts = [(text.rfind(part), part) for part in parts if part]
    if not parts[0] or starts[0][0] < 0:
        return []
    return [(begin, begin + len(part)) for begin, part in starts if begin >= 0]
