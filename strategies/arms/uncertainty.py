import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arms.prompted import Count, PassageParams, PromptedArm, Share, preset_table
from ragbandit.strategies.arms.steps import finished, gather, keep_partial
from ragbandit.strategies.base import Completion, Hit, Need, Passage
from ragbandit.strategies.generators.text_feed import Attention, Token
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    Sifted,
    clean_query,
    extract_answer,
    first_sentence,
    has_answer,
    is_content,
    sentence_spans,
    sentences_in,
)
from ragbandit.strategies.run import Answer, Run

Floats = npt.NDArray[np.float64]

_WORD = re.compile(r"\S+")
_LETTER = re.compile(r"\w")


def detail_of(done: Completion, *, need: Need, run: Run) -> Any:
    """Returns `done.details[need]`, or () if the text is empty. Raises ArmFailed if a text has no such detail."""
    detail = done.details.get(need)
    if detail is not None and detail != ():
        return detail
    if not done.text:
        return ()
    message = f"{run.generator.name} was asked for {need} and returned none"
    remedy = "use a generator that fills details as ragbandit.strategies.generators.text_feed describes"
    raise ArmFailed(message, field=f"details.{need}", remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    text: str
    tokens: tuple[int, ...]  #: positions of the word's tokens, in order
    begin: int  #: position of the word's first character in the text


def merge_words(tokens: Sequence[str]) -> list[Word]:
    """Join tokens, and split the text into words at white space. A token with parts of two words belongs to both."""
    token_at = [number for number, token in enumerate(tokens) for _ in token]  # position of each character's token
    return [
        Word(text=match[0], tokens=tuple(dict.fromkeys(token_at[slice(*match.span())])), begin=match.start())
        for match in _WORD.finditer("".join(tokens))
    ]


class LatestPool(PassagePool):
    """A pool that has only the passages of the latest search.

    The budget's cap on passages applies to all searches together. If a search adds no passage, the pool is unchanged.
    """

    def __init__(self, run: Run, *, cap: int) -> None:
        super().__init__(cap=run.passage_cap(cap))
        self._run = run

    def clear(self) -> None:
        self._passages = []

    def add(self, hits: Iterable[Hit]) -> Sifted:
        previous, self._passages = self._passages, []
        sifted = super().add(hits)
        if not sifted.added:
            self._passages = previous
        return sifted

    def _refusal(self, passage: Passage) -> str | None:
        reason, cap = super()._refusal(passage), self._run.budget.passages
        if reason is not None or cap is None:
            return reason
        shown = self._run.shown.keys() | {in_pool.id for in_pool in self._passages} | {passage.id}
        return None if len(shown) <= cap else f"the budget allows {cap} passages"


def sentence_tokens(done: Completion, *, run: Run) -> tuple[Token, ...]:
    tokens: tuple[Token, ...] = detail_of(done, need="logprobs", run=run)
    if not "".join(token.text for token in tokens).startswith(done.text):
        run.note_branch("parse_failed", "the tokens do not spell the text")
    begin = len(done.text) - len(done.text.lstrip())
    return tokens_between(tokens, begin=begin, end=begin + len(first_sentence(done.text)))


def masked_query(tokens: Iterable[Token], *, beta: float) -> str:
    """Text of the tokens with a probability above `beta`, without question words; "" if no letter or digit is left."""
    text = "".join(token.text if math.exp(token.logprob) > beta else " " for token in tokens)
    query = clean_query(text)
    return query if _LETTER.search(query) else ""


def tokens_between(tokens: Sequence[Token], *, begin: int, end: int) -> tuple[Token, ...]:
    """The tokens that have a character between positions `begin` and `end` of the joined text."""
    token_at = [number for number, token in enumerate(tokens) for _ in token.text]
    return tuple(tokens[number] for number in dict.fromkeys(token_at[begin:end]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadParams(PassageParams):
    sentences: Count = 3  #: maximum number of sentences of the text (the papers limit its tokens instead)
    rounds: Count = 2
    passages: Count = 2  #: passages per search. Each search replaces the passages of the previous search
    max_tokens: Count = 24  #: maximum number of tokens of the further call for an answer, if the text has no answer


Ahead = TypeVar("Ahead", bound=LookaheadParams)


class LookaheadArm(PromptedArm[Ahead]):
    """Base of the arms that write a text sentence by sentence until it contains "answer is"."""

    prompts: ClassVar = {"write": "think_reasoned", "conclude": "conclude"}
    capped_by: ClassVar[str]  #: name of the param that limits the tokens of a call
    nothing_new: ClassVar[str]  #: stop reason if the model adds nothing to the text

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = LatestPool(run, cap=self._params.passages)
        sentences: list[str] = []
        stop_reason = ""
        while not stop_reason and len(sentences) < self._params.sentences:
            new, at_end = await self._next(question, sentences=sentences, run=run, pool=pool)
            sentences += new[: self._params.sentences - len(sentences)]
            run.draft = (extract_answer(sentences[-1]) if new else "") or run.draft
            if has_answer(" ".join(sentences)):
                stop_reason = "answer_found"
            elif not new:
                stop_reason = self.nothing_new
            elif at_end:
                stop_reason = "model_ended"
        stop_reason = stop_reason or "max_sentences"
        run.note_branch("text_ended", stop_reason)
        return finished(await self._conclude(question, thoughts=" ".join(sentences), run=run, pool=pool), stop_reason)

    @abstractmethod
    async def _next(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        """Continue the text. Returns (new sentences, whether the model ended the text after them)."""

    def _begin_search(self, run: Run) -> bool:
        """Begin a round. If no round is left, returns False, and the trace records "search_skipped"."""
        may_search = not run.rounds_over and run.begin_round(cap=self._params.rounds)
        if not may_search:
            run.note_branch("search_skipped", "no round is left")
        return may_search

    async def _write(
        self, question: str, *, sentences: Sequence[str], run: Run, purpose: str, pool: PassagePool | None = None
    ) -> Completion:
        """Continue the text to the end of the line. Only the purpose "look_ahead" requests details, such as entropy."""
        fields = {"question": question, "thoughts": " ".join(sentences)}
        with keep_partial(run, style="reasoned"):
            return await self._ask(
                "write",
                fields,
                run=run,
                purpose=purpose,
                max_tokens=cast(int, self.params[self.capped_by]),
                pool=pool,
                stop=("\n",),
                want=self.needs - PromptedArm.needs if purpose == "look_ahead" else frozenset(),
                conversation=True,
            )

    async def _conclude(self, question: str, *, thoughts: str, run: Run, pool: PassagePool) -> str:
        """Take the answer from the thoughts, or let the model continue "So the answer is". Sets the draft."""
        answer = extract_answer(thoughts) if has_answer(thoughts) else ""
        if not answer:
            fields = {"question": question, "thoughts": thoughts}
            # The evaluations of DRAGIN and SeaKR also ask like this if a text has no answer.
            return await self._read(question, run=run, use="conclude", fields=fields, pool=pool)
        run.draft = answer
        return answer


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

    needs: frozenset[Need] = frozenset({"completion", "stop", "entropy", "attention"})
    kind = DraginParams
    capped_by, nothing_new = "text_tokens", "empty_text"

    async def _next(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        room = self._params.sentences - len(sentences)
        done = await self._write(question, sentences=sentences, run=run, purpose="look_ahead")
        begin, hits = self._trigger(done, run=run, room=room)
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

    def _trigger(self, done: Completion, *, run: Run, room: int) -> tuple[int, list[Word]]:
        """Find the first sentence with words of a value above theta. Returns (its begin, these words), or (0, [])."""
        if not done.text.strip():
            return 0, []
        entropy, attention = _doubt_and_attention(done, run=run)
        text_words, received = merge_words(attention.keys[-len(entropy) :]), attention_received(attention)
        for begin, end in sentence_spans(done.text)[:room]:
            sentence = [word for word in text_words if begin <= word.begin < end]
            values = _values(sentence, received=received, entropy=np.asarray(entropy, dtype=np.float64))
            valued = zip(sentence, values, strict=True)
            hits = [word for word, value in valued if value > self._params.theta and is_content(word.text)]
            if hits:
                return begin, hits
        return 0, []

    def _query(self, question: str, *, done: Completion, hits: Sequence[Word], thoughts: str, run: Run) -> str:
        """The content words with most attention from the triggering words `hits`, in text order (section 3.2)."""
        entropy, attention = _doubt_and_attention(done, run=run)
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


def _doubt_and_attention(done: Completion, *, run: Run) -> tuple[Sequence[float], Attention]:
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


def _values(words: Sequence[Word], *, received: Floats, entropy: Floats) -> Floats:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FlareParams(LookaheadParams):
    #: "paper" is the paper's setting for 2WikiMultihopQA; "code" also has `second_call`, like the authors' program
    preset: Literal["small", "paper", "code"] = "small"
    theta: Share = 0.4  #: the arm searches if a token's probability is at most this; 0 to always search
    beta: Share = 0.2  #: the query leaves out tokens with a probability of at most this
    second_call: bool = False  #: whether every sentence is written again, even if all its tokens are probable
    rounds: Count = 3  #: maximum number of searches, including the first one with the question
    query_words: Count = 64  #: maximum number of words of a query. The first words of a longer query are dropped
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

    needs: frozenset[Need] = frozenset({"completion", "stop", "logprobs"})
    kind = FlareParams
    capped_by, nothing_new = "sentence_tokens", "empty_sentence"

    async def _next(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        if not sentences:
            await self._search(question, run=run, pool=pool)
        done = await self._write(question, sentences=sentences, run=run, pool=pool, purpose="look_ahead")
        searched = False
        if self._unsure(done, run=run):
            query = masked_query(sentence_tokens(done, run=run), beta=self._params.beta)
            if not query and done.text.strip():
                run.note_branch("query_fallback", "every token is masked: the question is searched")
            query = " ".join(query.split()[-self._params.query_words :])
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

    def _unsure(self, done: Completion, *, run: Run) -> bool:
        if self._params.theta == 0.0:
            return True
        tokens = sentence_tokens(done, run=run)
        lowest = min((math.exp(token.logprob) for token in tokens if token.text.strip()), default=1.0)
        run.note_branch("lowest_probability", f"{lowest:.4f}")
        return lowest <= self._params.theta
