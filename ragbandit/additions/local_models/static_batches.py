"""Static batches: transformers' `generate` writes the texts of all waiting calls together.

A batch runs until its last text has ended. A finished text is returned at once, and new calls wait for the next batch.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Need, Request, Sampling, seconds_until
from ragbandit.strategies.generators.parts import Token

log = logging.getLogger("ragbandit.local")

#: pause before a batch, seconds, in which callers that were just answered can send their next call
_GATHER_S: Final = 0.005
_MOST_PADDED: Final = 2.0  #: largest ratio of the padded length of a batch to the total length of its prompts
_CHUNK: Final = 512  #: number of prompt tokens between two checks whether callers still wait

#: capabilities whose results are computed from the probabilities of all tokens at each position
_PROBABILITIES: Final[frozenset[Need]] = frozenset({"logprobs", "entropy", "trained_tokens"})
_COLDEST: Final = 1e-6  #: lowest temperature; a much lower temperature is 0 in float32


def sample_next(logits: Tensor, *, sequences: "Sequence[SequenceState]") -> None:
    """Append the next token and its probabilities to every sequence. logits: shape (sequences, vocabulary)."""
    tokens = logits.argmax(-1)  # (sequences,)
    for row, sequence in enumerate(sequences):
        sampling = sequence.request.sampling
        if sampling is not None:
            sequence.dice = sequence.dice or torch.Generator().manual_seed(sampling.seed)
            tokens[row] = _draw(logits[row], sampling=sampling, dice=sequence.dice)
    rows = [row for row, sequence in enumerate(sequences) if sequence.request.want & _PROBABILITIES]
    flat = tokens.double()  # float64 has every id exactly, so ids and statistics leave the device in one transfer
    if rows:
        special = list(sequences[0].special.values())  # the same for all sequences
        statistics = _token_statistics(logits[rows], tokens=tokens[rows], special=special)  # (rows, 2 + special)
        flat = torch.cat([flat, statistics.flatten()])
    numbers = flat.tolist()
    for sequence, token in zip(sequences, numbers, strict=False):
        sequence.tokens.append(int(token))
    width = (len(numbers) - len(sequences)) // max(1, len(rows))
    for position, row in enumerate(rows):
        begin = len(sequences) + position * width
        sequences[row].statistics.append(numbers[begin : begin + width])


def _token_statistics(logits: Tensor, *, tokens: Tensor, special: Sequence[int]) -> Tensor:
    """Columns: log-probability of the token, entropy, log-probability of each special token; a row for each token."""
    rows = torch.log_softmax(logits.float(), dim=-1)  # (rows, vocabulary)
    entropy = -(rows.exp() * rows).nan_to_num(0.0).sum(-1, keepdim=True)
    chosen = rows.gather(1, tokens[:, None])
    return torch.cat([part.double() for part in (chosen, entropy, rows[:, special])], dim=1)


def _draw(logits: Tensor, *, sampling: Sampling, dice: torch.Generator) -> Tensor:
    """Draw a token as transformers' `generate` does. logits: shape (vocabulary,)."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(max(sampling.temperature, _COLDEST))])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    scores = logits.float().cpu()[None]  # on the CPU, so that every device draws the same token
    shares = torch.softmax(warpers(None, scores - scores.amax()), dim=-1)
    return torch.multinomial(shares[0], 1, generator=dice)[0]


def read_details(
    model: PreTrainedModel, *, past: Cache, tokens: Sequence[int], want: frozenset[Need]
) -> dict[str, npt.NDArray[np.float32]]:
    """Returns need -> array (see generators.parts) of the written tokens. past: keys and values of the prompt."""
    default = model.config._attn_implementation  # noqa: SLF001 - transformers documents this name
    model.set_attn_implementation("eager")  # fused kernels return no attention
    try:
        output = model(
            input_ids=torch.tensor([tokens], device=model.device),
            cache=past,
            output_attentions="attention" in want,
            output_hidden_states="hidden_states" in want,
            logits_to_keep=1,
        )
    finally:
        model.set_attn_implementation(default)
    details = {}
    if "attention" in want:
        details["attention"] = output.attentions[-1][0].float().cpu().numpy()
    if "hidden_states" in want:
        details["hidden_states"] = torch.stack([state[0, -1] for state in output.hidden_states]).float().cpu().numpy()
    return details


class SequenceState:
    def __init__(
        self, request: Request, *, ids: Sequence[int], special: Mapping[str, int], ends: frozenset[int]
    ) -> None:
        self.request, self.ids = request, ids
        self.stop = tuple(filter(None, request.stop))
        self.cancelled = threading.Event()
        self.future: Future[None] = Future()
        #: called in the model's thread after every token; None if the text is not streamed
        self.on_token: Callable[[], None] | None = None
        self.special, self._ends = dict(special), ends
        #: longest text that the reader got, and seconds until its first text; None before that
        self.shown = ""
        self.first_s: float | None = None
        self.restart()

    def restart(self) -> None:
        self.tokens: list[int] = []
        self.finish: Literal["stop", "length"] = "stop"
        self.details: Mapping[str, Any] = {}
        #: a row of `_token_statistics` for every token; empty if the request wants no probabilities
        self.statistics: list[list[float]] = []
        self.dice: torch.Generator | None = None

    @property
    def plain(self) -> bool:
        """Whether the text is decoded without special tokens."""
        return "trained_tokens" not in self.request.want

    @property
    def has_ended(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in self._ends

    def tokens_without_end(self) -> list[int]:
        """The tokens so far, without the model's end token."""
        tokens = list(self.tokens)
        return tokens[:-1] if tokens and tokens[-1] in self._ends else tokens

    def is_expired(self) -> bool:
        return self.cancelled.is_set() or seconds_until(self.request.deadline) == 0.0

    def probabilities(self, *, texts: Sequence[str]) -> dict[str, object]:
        """Returns need -> a value for each token. texts: the texts of the tokens, without an end token."""
        by_need: dict[str, list[object]] = {need: [] for need in self.request.want & _PROBABILITIES}
        for text, (chosen, entropy, *special) in zip(texts, self.statistics, strict=False):
            details = {
                "logprobs": Token(text=text, logprob=chosen),
                "entropy": max(0.0, entropy),
                "trained_tokens": dict(zip(self.special, special, strict=True)),
            }
            for need, values in by_need.items():
                values.append(details[need])
        return {need: tuple(values) for need, values in by_need.items()}


class Batches:
    """Runs the model in a thread, batch after batch, in the order of the calls.

    is_finished: whether the last token of a text ends the text. start: called in the thread when the thread starts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int,
        is_finished: Callable[[SequenceState], bool],
        start: Callable[[], None],
    ) -> None:
        self._model, self._max_batch = model, max_batch
        self._is_finished = is_finished
        self._waiting: deque[SequenceState] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate", initializer=start)

    def submit(self, sequence: SequenceState) -> None:
        """Queue a text. Its future gets None when the text has ended, or ArmFailed. Raises ArmFailed after `close`."""
        self._waiting.append(sequence)
        try:
            self._thread.submit(self._write_next_batch)
        except RuntimeError as error:  # the thread was closed, or the interpreter is shutting down
            sequence.cancelled.set()
            raise ArmFailed(f"the generator cannot be asked: it was closed ({error})") from error

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _write_next_batch(self) -> None:
        """Write the waiting texts as a batch. Each text schedules a call, so later calls often find no text."""
        if self._waiting:
            time.sleep(_GATHER_S)
        batch = self._next_batch()
        if batch:
            self._write(batch)

    def _next_batch(self) -> list[SequenceState]:
        """Take the first waiting texts whose prompts have similar lengths."""
        batch: list[SequenceState] = []
        while self._waiting and len(batch) < self._max_batch:
            lengths = [len(sequence.ids) for sequence in (*batch, self._waiting[0])]
            if len(lengths) * max(lengths) > _MOST_PADDED * sum(lengths):
                break
            sequence = self._waiting.popleft()
            if not sequence.is_expired() and sequence.future.set_running_or_notify_cancel():
                batch.append(sequence)
        return batch

    def _write(self, batch: Sequence[SequenceState]) -> None:
        """Write a batch. If it fails, write it again in halves, so that only the texts at fault fail."""
        try:
            with torch.inference_mode():
                _BatchWriter(self._model, batch=batch, is_finished=self._is_finished).run()
        except _AllExpired:
            return
        except Exception as error:
            unfinished = [sequence for sequence in batch if not sequence.future.done()]
            if len(batch) == 1:
                failure = ArmFailed(f"the language model failed: {error}")
                failure.__cause__ = error
                for sequence in unfinished:
                    sequence.future.set_exception(failure)
                return
            log.warning("a batch of %d texts failed and is written again in halves: %s", len(batch), error)
            for sequence in unfinished:
                sequence.restart()
            middle = len(unfinished) // 2
            for half in (unfinished[:middle], unfinished[middle:]):
                if half:
                    self._write(half)


class _AllExpired(Exception):
    pass


class _BatchWriter(LogitsProcessor):  # type: ignore[misc] # transformers is not checked, see pyproject
    """Writes one batch. At each step of `generate` it chooses the next token of every unfinished text."""

    def __init__(
        self, model: PreTrainedModel, *, batch: Sequence[SequenceState], is_finished: Callable[[SequenceState], bool]
    ) -> None:
        self._model, self._batch = model, batch
        self._is_finished = is_finished
        self._open = dict(enumerate(batch))
        self._width = max(len(sequence.ids) for sequence in batch)
        # The cache is made without the model's configuration. So layers with a sliding window keep all keys and values.
        self._cache = DynamicCache()

    def run(self) -> None:
        has_encoder, start = self._model.config.is_encoder_decoder, self._model.generation_config
        side: Literal["left", "right"] = "right" if has_encoder else "left"
        ids, mask = _pad([sequence.ids for sequence in self._batch], side=side, device=self._model.device)
        config = GenerationConfig(
            max_new_tokens=max(sequence.request.max_tokens for sequence in self._batch),
            do_sample=False,
            pad_token_id=0,
            prefill_chunk_size=None if has_encoder else _CHUNK,
            decoder_start_token_id=start.decoder_start_token_id,
            forced_bos_token_id=start.forced_bos_token_id,
        )
        # While the prompts are read, this hook drops expired texts; later `__call__` drops them.
        self._hook = self._model.register_forward_pre_hook(lambda *_: self._drop_expired())
        try:
            self._model.generate(
                ids,
                attention_mask=mask,
                cache=EncoderDecoderCache(self._cache, DynamicCache()) if has_encoder else self._cache,
                generation_config=config,
                logits_processor=[self],
                stopping_criteria=[self._end_texts],
            )
        finally:
            self._hook.remove()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Called by `generate` at each step. Returns scores in which only the chosen tokens are possible."""
        del input_ids
        self._hook.remove()
        self._drop_expired()
        rows = list(self._open)
        open_scores = scores if len(rows) == len(scores) else scores[rows]
        sample_next(open_scores, sequences=list(self._open.values()))
        last = [sequence.tokens[-1] if row in self._open else 0 for row, sequence in enumerate(self._batch)]
        chosen = torch.tensor(last, device=scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    def _end_texts(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        """Called by `generate` after each step. Returns True in each row if all texts have ended, otherwise False."""
        for row, sequence in list(self._open.items()):
            if self._is_finished(sequence):
                self._finish(row, finish="stop")
            elif len(sequence.tokens) >= sequence.request.max_tokens:
                self._finish(row, finish="length")
            elif sequence.on_token is not None:
                sequence.on_token()
        return torch.full((len(self._batch),), not self._open, device=input_ids.device)

    def _drop_expired(self) -> None:
        self._open = {row: sequence for row, sequence in self._open.items() if not sequence.is_expired()}
        if not self._open:
            raise _AllExpired

    def _finish(self, row: int, *, finish: Literal["stop", "length"]) -> None:
        sequence = self._open.pop(row)
        sequence.finish = finish
        written = sequence.tokens_without_end()
        if written and sequence.request.want & {"attention", "hidden_states"}:
            past = DynamicCache()  # only the prompt, without padding
            for number, layer in enumerate(self._cache.layers):
                part = slice(row, row + 1), slice(None), slice(self._width - len(sequence.ids), self._width)
                past.update(layer.keys[part], layer.values[part], number)
            sequence.details = read_details(self._model, past=past, tokens=written, want=sequence.request.want)
        sequence.future.set_result(None)


def _pad(
    texts: Sequence[Sequence[int]], *, side: Literal["left", "right"], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns (ids, attention mask), each of shape (texts, tokens), padded at `side`. Encoders need padding on the
    right, since they count positions from 0.
    """
    width = max(map(len, texts))
    ids, mask = torch.zeros(2, len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        place = slice(len(text)) if side == "right" else slice(width - len(text), None)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
    return ids.to(device), mask.to(device)
