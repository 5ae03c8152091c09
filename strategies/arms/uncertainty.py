"""DRAGIN: search where an uncertain word matters for what follows, with the words looked at there (Su et al. 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arms.lookahead import (
    LookaheadArm,
    LookaheadParams,
    Word,
    detail_of,
    is_content,
    masked_query,
    merge_words,
    sentence_tokens,
)
from ragbandit.strategies.arms.prompted import Count, Share, preset_table
from ragbandit.strategies.arms.steps import gather
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.generators.text_feed import Attention
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    extract_answer,
    first_sentence,
    has_answer,
    sentence_spans,
    sentences_in,
)
from ragbandit.strategies.run import Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class DraginParams(LookaheadParams):
    """Settings of dragin. Thresholds belong to a model and to its way of writing."""

    #: "small" is for local models of a few hundred million parameters, its theta is not measured; the others are
    #: the paper's numbers for LLaMA2-7B-chat on 2WikiMultihopQA and HotpotQA
    preset: Literal["small", "llama2_2wiki", "llama2_hotpot"] = "small"
    #: a word whose value is above it makes the arm search
    theta: Annotated[float, Field(ge=0.0)] = 1.0
    #: words of a query at most
    query_words: Count = 12
    #: searches
    rounds: Count = 2
    #: tokens written at a time
    text_tokens: Count = 48
    presets: ClassVar = preset_table(
        "sentences passages theta query_words rounds text_tokens",
        llama2_2wiki=(16, 3, 1.0, 25, 16, 64),
        llama2_hotpot=(16, 3, 0.8, 35, 16, 100),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trigger:
    """Place in a text that needs a search."""

    #: the sentence begins here in the text
    begin: int
    #: words above theta
    hits: tuple[Word, ...]


class Dragin(LookaheadArm[DraginParams]):
    """Write ahead; at the first sentence with an uncertain, important word: search, and write it again.

    The value of a word is the share of the sentence's attention that it receives, times its entropy, times the
    number of words in the sentence (section 3.1 of the paper). Only content words count: the paper's indicator,
    heeded before the trigger. (The authors' code filters after it, so that a stop word can trigger with nothing to
    search for.) The text before the sentence stays; the query is what the words above `theta` looked at in question
    and text; one sentence is written with the passages, and the next round begins. A text without a trigger is
    accepted whole. Where the question cannot be found among the model's tokens, or nothing was looked at, the
    question is the query ("query_fallback"). When the rounds are used up the text goes on ("search_skipped").
    The text ends at an announced answer ("answer_found"), where nothing was added ("empty_text"), where the model
    ended it ("model_ended") or at `sentences` ("max_sentences"). A text that announces no answer is continued with
    "So the answer is"; "empty_answer" if even that brings none. The draft is the latest sentence.
    """

    needs: frozenset[Need] = frozenset({"completion", "stop", "entropy", "attention"})
    kind = DraginParams
    capped_by = "text_tokens"

    async def _write_all(self, question: str, *, run: Run, pool: PassagePool) -> tuple[list[str], str]:
        sentences: list[str] = []
        while len(sentences) < self._params.sentences:
            done = await self._write(question, sentences=sentences, run=run, purpose="look_ahead")
            trigger = self._trigger(done, run=run, room=self._params.sentences - len(sentences))
            new = sentences_in(done.text if trigger is None else done.text[: trigger.begin])
            if trigger is not None and not has_answer(" ".join(new)):
                query = self._query(question, done=done, trigger=trigger, thoughts=" ".join(sentences), run=run)
                await gather(run, query=query, pool=pool, k=self._params.passages)
                done = await self._write(question, sentences=[*sentences, *new], run=run, purpose="write", pool=pool)
                new += sentences_in(first_sentence(done.text))
            if not new:
                return sentences, "empty_text"
            sentences += new[: self._params.sentences - len(sentences)]
            run.draft = extract_answer(sentences[-1]) or run.draft
            if has_answer(" ".join(sentences)):
                return sentences, "answer_found"
            if trigger is None and done.finish == "stop" and len(sentences) < self._params.sentences:
                return sentences, "model_ended"
        return sentences, "max_sentences"

    def _trigger(self, done: Completion, *, run: Run, room: int) -> _Trigger | None:
        """The first of `room` sentences with a word above theta, if a round is left for it; the round begins here."""
        if not done.text.strip():
            return None
        entropy, attention = _doubt_and_attention(done, run=run)
        keys = attention.keys[-len(entropy) :]
        words, received = merge_words(keys), attention_received(attention)
        for begin, end in sentence_spans(done.text)[:room]:
            inside = [word for word in words if begin <= word.begin < end]
            values = _values(inside, received=received, entropy=np.asarray(entropy, dtype=np.float64))
            hits = tuple(
                word
                for word, value in zip(inside, values, strict=True)
                if value > self._params.theta and is_content(word.text)
            )
            if not hits:
                continue
            run.note_branch("uncertain_words", ", ".join(word.text for word in hits))
            if not run.rounds_over and run.begin_round(cap=self._params.rounds):
                return _Trigger(begin=begin, hits=hits)
            run.note_branch("search_skipped", "no round is left")
            return None
        return None

    def _query(self, question: str, *, done: Completion, trigger: _Trigger, thoughts: str, run: Run) -> str:
        """The content words that the hits looked at most, in the order of question and text (section 3.2)."""
        entropy, attention = _doubt_and_attention(done, run=run)
        read = len(attention.keys) - len(entropy)
        written_hits = [token for word in trigger.hits for token in word.tokens]
        looked = attention.weights[:, written_hits, :].mean(axis=(0, 1), dtype=np.float64)
        prompt = "".join(attention.keys[:read])
        words = merge_words(attention.keys[:read]) + [
            Word(text=word.text, tokens=tuple(read + token for token in word.tokens), begin=word.begin + len(prompt))
            for word in merge_words(attention.keys[read:])
        ]
        hit_tokens = {read + token for token in written_hits}
        spans = _spans_of((question.strip(), thoughts), text=prompt)
        spans.append((len(prompt), len(prompt) + trigger.hits[-1].begin))
        able = [
            Word(text=word.text[: end - word.begin], tokens=word.tokens, begin=word.begin)
            for word in words
            for begin, end in spans
            if begin <= word.begin < end and hit_tokens.isdisjoint(word.tokens)
        ]
        able = [word for word in able if is_content(word.text) and looked[list(word.tokens)].any()]
        best = sorted(able, key=lambda word: -looked[list(word.tokens)].sum())[: self._params.query_words]
        if len(spans) < 2 or not best:
            why = "nothing was looked at" if len(spans) > 1 else "the question is not among the model's tokens"
            run.note_branch("query_fallback", f"{why}: the question is searched")
            return question
        return " ".join(word.text for word in sorted(best, key=lambda word: word.begin))


def _doubt_and_attention(done: Completion, *, run: Run) -> tuple[Sequence[float], Attention]:
    """(entropy, attention), their shapes checked."""
    entropy: Sequence[float] = detail_of(done, need="entropy", run=run)
    attention: Attention = detail_of(done, need="attention", run=run)
    if attention.weights.shape[1:] != (len(entropy), len(attention.keys)) or len(entropy) > len(attention.keys):
        raise ArmFailed(
            f"attention of shape {attention.weights.shape} does not go with {len(entropy)} tokens written and "
            f"{len(attention.keys)} keys",
            field="details.attention",
            remedy="give the shape (heads, written, read + written)",
        )
    return entropy, attention


def attention_received(attention: Attention) -> Floats:
    """Shape (written,): the most that any written token looked at each written token, averaged over the heads."""
    written = attention.weights.shape[1]
    received: Floats = attention.weights[:, :, -written:].max(axis=1).mean(axis=0, dtype=np.float64)
    return received


def _values(words: Sequence[Word], *, received: Floats, entropy: Floats) -> Floats:
    """Value of each word of a sentence: share of the attention received x entropy x number of words.

    A word's attention is the sum over its tokens and its entropy their mean, as in the authors' code.
    """
    shares = np.array([received[list(word.tokens)].sum() for word in words], dtype=np.float64)
    doubts = np.array([entropy[list(word.tokens)].mean() for word in words], dtype=np.float64)
    total = shares.sum()
    return shares / total * doubts * len(words) if total > 0 else np.zeros(len(words))


def _spans_of(parts: Sequence[str], *, text: str) -> list[tuple[int, int]]:
    """Spans where the parts last occur in the text; none if the first part is empty or missing."""
    starts = [(text.rfind(part), part) for part in parts if part]
    if not parts[0] or starts[0][0] < 0:
        return []
    return [(begin, begin + len(part)) for begin, part in starts if begin >= 0]


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
    capped_by = "sentence_tokens"

    async def _write_all(self, question: str, *, run: Run, pool: PassagePool) -> tuple[list[str], str]:
        await self._search(question, run=run, pool=pool)
        sentences: list[str] = []
        while len(sentences) < self._params.sentences:
            done = await self._write(question, sentences=sentences, run=run, pool=pool, purpose="look_ahead")
            searched = False
            if self._unsure(done, run=run):
                query = masked_query(sentence_tokens(done, run=run), beta=self._params.beta)
                if not query and done.text.strip():
                    run.note_branch("query_fallback", "every token is masked: the question is searched")
                words = " ".join(query.split()[-self._params.query_words :])
                searched = await self._search(words or question, run=run, pool=pool)
            if searched or self._params.second_call:
                done = await self._write(question, sentences=sentences, run=run, pool=pool, purpose="write")
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
