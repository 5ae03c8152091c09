"""Continuous batching: one model generates many sequences at once, one forward pass per step for all of them.

A waiting sequence takes a row of the KV cache when one is free, first come first served. Its prompt is read in chunks
(prefill); then it gets one token in every step together with all other sequences (decode), and leaves at its end. See
strategies.generators.kv_cache for the rows. The words are those of vLLM (Kwon et al. 2023).
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from ragbandit.router.errors import ArmFailed
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.kv_cache import Prefixes, RowCache, TokenIds, shared_beginning, usable
from ragbandit.strategies.generators.sampling import SampledTokens, sample_next
from ragbandit.strategies.generators.scheduler_config import SchedulerConfig

__all__ = ["Engine", "Finish", "Growth", "SequenceResult", "SequenceState"]

log = logging.getLogger("ragbandit.local")

Finish = Literal["stop", "length", "deadline"]

#: decoding steps for which a sequence waits at most beside a free row until more rows are free
_MAX_DEFERRALS: Final = 8
#: tokens of a prompt that are read in a step, however near a deadline is
_MIN_PREFILL: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SequenceResult:
    """The end of a sequence; its tokens are in SequenceState.sampled. The default is that of one not begun."""

    #: tokens of the prompt that were read
    read: int = 0
    finish: Finish = "deadline"
    #: attention and hidden states, by need: only its row could tell them
    details: Mapping[str, Any] = field(default_factory=dict)


class SequenceState:
    """One request under way: its prompt, the tokens sampled so far, and whether its caller still waits."""

    def __init__(self, request: Request, *, ids: TokenIds, sampled: SampledTokens) -> None:
        self.request, self.ids, self.sampled = request, ids, sampled
        self.stop = tuple(filter(None, request.stop))
        self.cancelled = threading.Event()
        self.future: Future[SequenceResult] = Future()
        #: called in the engine's thread after every token; None: nobody reads along
        self.on_token: Callable[[], None] | None = None

    @property
    def plain(self) -> bool:
        """True if special tokens are left out of its text."""
        return "trained_tokens" not in self.request.want

    @property
    def max_length(self) -> int:
        """Tokens of its row that it may come to fill."""
        return len(self.ids) + self.request.max_tokens

    def seconds_left(self) -> float | None:
        """Seconds until its deadline, at least 0.0; None without a deadline."""
        deadline = self.request.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def expired(self) -> bool:
        """True if nobody waits for it any more, or its deadline has passed."""
        return self.cancelled.is_set() or self.seconds_left() == 0.0


class Growth:
    """Wakes the caller's task when a sequence has grown; `note` may be called from any thread."""

    def __init__(self, sequence: SequenceState) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        if sequence.request.sink is not None:
            sequence.on_token = self.note

    def note(self) -> None:
        """It has grown, or ended."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None) -> bool:
        """Until it has grown since the last time; False after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Engine:
    """The one thread in which the model computes.

    is_finished: True if the tokens sampled so far end the sequence by themselves.
    read_details: (sequence, its row, tokens of the prompt that were read) -> the details that only its row can tell;
    the row still holds the sequence, and may be overwritten.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        cache: RowCache,
        prefixes: Prefixes,
        config: SchedulerConfig,
        is_finished: Callable[[SequenceState], bool],
        read_details: Callable[[SequenceState, int, int], Mapping[str, Any]],
        start: Callable[[], None],
    ) -> None:
        self.config = config
        self._model, self._cache, self._prefixes = model, cache, prefixes
        self._is_finished, self._read_details = is_finished, read_details
        self._waiting: deque[SequenceState] = deque()
        #: sequence of every row of the cache: first those in decode, then those in prefill
        self._sequences: list[SequenceState] = []
        self._decoding = 0
        self._deferrals = 0
        #: of the last prefill
        self._seconds_per_token = math.inf
        self._lock = threading.Lock()
        #: why no more sequences are accepted; "" while they are
        self._closed = ""
        self._running = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate", initializer=start)

    def submit(self, sequence: SequenceState) -> None:
        """Queue a sequence; its future ends with a SequenceResult or ArmFailed. Raises ArmFailed after `close`."""
        with self._lock:
            if not self._closed:
                self._waiting.append(sequence)
                if self._running or self._submit_step():
                    return
                self._waiting.pop()
        raise ArmFailed(f"the generator cannot be asked: {self._closed}")

    def close(self) -> None:
        """End the thread once all accepted sequences are done. A second call does nothing."""
        with self._lock:
            self._closed = self._closed or "it was closed"
            if not self._running:
                self._thread.shutdown(wait=False)

    def _submit_step(self) -> bool:
        """Submit the next step to the thread, if there is anything to do; True if so. Called under the lock.

        Step by step, because only the thread's queue tells that the interpreter is ending: it refuses work then.
        """
        self._running = bool(self._waiting or self._sequences)
        if self._running:
            try:
                self._thread.submit(self._run)
            except RuntimeError as error:
                self._running, self._closed = False, f"its thread has ended: {error}"
        elif self._closed:
            self._thread.shutdown(wait=False)
        return self._running

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                try:
                    self._step()
                except Exception as error:  # even clearing up after a failure failed
                    self._fail_step(error)
                if not self._sequences and not self._waiting and self._cache.rest():
                    self._empty_cache()
            with self._lock:
                if not self._submit_step() and (self._sequences or self._waiting):
                    self._fail_all(RuntimeError(self._closed))
        except BaseException as error:
            # A graphics card that failed for good, say: every try would fail, and nobody may wait for ever.
            log.exception("the language model failed and could not be reset: the generator is closed")
            with self._lock:
                self._running, self._closed = False, f"it failed: {error}"
                self._fail_all(error)
            self._thread.shutdown(wait=False)

    def _step(self) -> None:
        """One chunk of prefill and one step of decode; expired sequences are dropped before each."""
        self._drop_expired()
        if self._decoding == len(self._sequences):
            self._schedule()
        if prefilling := self._sequences[self._decoding :]:
            self._guarded(prefilling, lambda: self._prefill(prefilling))
            self._drop_expired()
        if decoding := self._sequences[: self._decoding]:
            self._guarded(decoding, lambda: self._decode(decoding))

    def _drop_expired(self) -> None:
        for sequence in [each for each in self._sequences if each.expired()]:
            self._finish(sequence, finish="deadline")

    # ---- scheduling

    def _schedule(self) -> None:
        """Give free rows to waiting sequences, as many as are prefilled together."""
        free = self.config.max_sequences - len(self._sequences)
        if self._sequences and free < self.config.min_free_rows and self._deferrals < _MAX_DEFERRALS:
            self._deferrals += bool(free and self._waiting)
            return
        self._deferrals = 0
        longest = max((each.max_length for each in self._sequences), default=0)
        width = count = 0
        while len(self._sequences) < self.config.max_sequences and (sequence := self._next_waiting()):
            longest = max(longest, sequence.max_length)
            width = max(width, min(len(sequence.ids), self.config.prefill_chunk))
            full = (
                self.config.token_budget is not None and (len(self._sequences) + 1) * longest > self.config.token_budget
            )
            if (full and self._sequences) or (count and (count + 1) * width > self.config.prefill_tokens):
                return
            self._waiting.popleft()
            if not sequence.future.set_running_or_notify_cancel():
                continue
            count += 1
            self._sequences.append(sequence)
            self._cache.append()
            self._guarded([sequence], partial(self._reuse_prefix, len(self._sequences) - 1))

    def _next_waiting(self) -> SequenceState | None:
        """The first waiting sequence whose caller still waits; others are ended."""
        while self._waiting:
            sequence = self._waiting[0]
            if not sequence.expired() and not sequence.future.cancelled():
                return sequence
            self._waiting.popleft()
            if sequence.future.set_running_or_notify_cancel():
                sequence.future.set_result(SequenceResult())
        return None

    def _reuse_prefix(self, row: int) -> None:
        """Copy the longest shared beginning of the prompt from another row or the prefix cache."""
        if not self._prefixes:
            return
        ids = self._sequences[row].ids
        shared = [
            usable(shared_beginning(ids, other.ids[: self._cache.lengths[at]]), of=len(ids))
            for at, other in enumerate(self._sequences[:row])
        ]
        count = max(shared, default=0)
        if found := self._prefixes.best(ids, more_than=count):
            self._cache.put(row, keys=found[1].keys, values=found[1].values, count=found[0])
        elif count:
            self._cache.copy(shared.index(count), row, count=count)

    def _finish(self, sequence: SequenceState, *, finish: Finish) -> None:
        """Deliver the result and free the row."""
        self._guarded([sequence], lambda: self._deliver(sequence, finish=finish))
        if sequence in self._sequences:
            self._free_row(sequence)

    def _deliver(self, sequence: SequenceState, *, finish: Finish) -> None:
        row = self._sequences.index(sequence)
        read = min(self._cache.lengths[row], len(sequence.ids))
        self._keep_prefix(sequence, row=row)  # before its row is written anew
        hurry = finish == "deadline" or sequence.cancelled.is_set()
        details = {} if hurry else self._read_details(sequence, row, read)
        sequence.future.set_result(SequenceResult(read=read, finish=finish, details=details))

    def _keep_prefix(self, sequence: SequenceState, *, row: int) -> None:
        """Put keys and values into the prefix cache, if there is memory; a failure to does not fail the sequence."""
        if not self._prefixes:
            return
        try:
            whole = np.concatenate([sequence.ids, np.array(sequence.sampled.tokens, dtype=np.int64)])
            self._prefixes.keep(whole, cache=self._cache, row=row)
        except Exception as error:
            log.warning("a prompt does not fit into the prefix cache, which was emptied: %s", error)
            self._forget_prefixes()

    def _free_row(self, sequence: SequenceState) -> None:
        """Free its row and close the gap with the last sequence in decode, and that gap with the last in prefill."""
        row = self._sequences.index(sequence)
        self._cache.empty(row)
        if row < self._decoding:
            self._decoding -= 1
            self._exchange(row, self._decoding)
            row = self._decoding
        self._exchange(row, len(self._sequences) - 1)
        self._sequences.pop()
        self._cache.pop()

    def _exchange(self, one: int, other: int) -> None:
        if one != other:
            self._cache.swap(one, other)
            self._sequences[one], self._sequences[other] = self._sequences[other], self._sequences[one]

    def _guarded(self, concerned: Sequence[SequenceState], work: Callable[[], None]) -> None:
        """Run `work`; a failure fails these sequences alone, and the engine goes on."""
        try:
            work()
        except Exception as error:  # callers are told before rows are freed: nobody may wait for ever
            self._fail(concerned, error=error)
            for sequence in concerned:
                if sequence in self._sequences:
                    self._free_row(sequence)
            if not self._sequences:
                self._cache.clear()
            self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._prefixes.clear()
        self._empty_cache()

    def _empty_cache(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fail_step(self, error: Exception) -> None:
        """Fail every sequence, waiting ones included: the step might fail in the same place for ever."""
        self._fail_all(error)
        self._cache.clear()
        self._forget_prefixes()

    def _fail_all(self, error: BaseException) -> None:
        """Fail all sequences, under way and waiting."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        under_way, self._sequences, self._decoding = self._sequences, [], 0
        self._fail([*under_way, *(each for each in waiting if each.future.set_running_or_notify_cancel())], error=error)

    @staticmethod
    def _fail(sequences: Sequence[SequenceState], *, error: BaseException) -> None:
        failure = ArmFailed(f"the language model failed: {error}")
        failure.__cause__ = error
        for sequence in sequences:
            if not sequence.future.done():
                sequence.future.set_exception(failure)

    # ---- computing

    def _prefill(self, prefilling: Sequence[SequenceState]) -> None:
        """Read the next chunk of every prompt in prefill; sequences that are through get their first token."""
        lengths, chunk = self._cache.lengths[self._decoding :], self._chunk_length()
        pieces = [text.ids[length : length + chunk].tolist() for text, length in zip(prefilling, lengths, strict=True)]
        began = time.monotonic()
        logits = self._cache.run(self._model, pieces, first=self._decoding).logits[:, -1]  # (prefilling, vocabulary)
        self._seconds_per_token = (time.monotonic() - began) / max(map(len, pieces))
        lengths = self._cache.lengths[self._decoding :]
        through = [at for at, text in enumerate(prefilling) if lengths[at] == len(text.ids)]
        if not through:
            return
        self._sample([prefilling[at] for at in through], logits if len(through) == len(prefilling) else logits[through])
        for text in [prefilling[at] for at in through]:
            if text in self._sequences:
                self._exchange(self._sequences.index(text), self._decoding)
                self._decoding += 1

    def _chunk_length(self) -> int:
        """Tokens of a prompt to read in this step: as many as the last speed allows before the next deadline."""
        left = min((each for text in self._sequences if (each := text.seconds_left()) is not None), default=None)
        if left is None:
            return self.config.prefill_chunk
        return min(self.config.prefill_chunk, max(_MIN_PREFILL, int(left / max(self._seconds_per_token, 1e-9))))

    def _decode(self, decoding: Sequence[SequenceState]) -> None:
        """Sample the next token of every sequence in decode."""
        last = [[text.sampled.tokens[-1]] for text in decoding]
        self._sample(decoding, self._cache.run(self._model, last).logits[:, -1])

    def _sample(self, sequences: Sequence[SequenceState], logits: "torch.Tensor") -> None:
        """Sample the next token of each; finished sequences leave. logits: (sequences, vocabulary)."""
        sample_next(torch, logits, sequences=[each.sampled for each in sequences])
        for sequence in sequences:
            if self._is_finished(sequence):
                self._finish(sequence, finish="stop")
            elif len(sequence.sampled.tokens) >= sequence.request.max_tokens:
                self._finish(sequence, finish="length")
            elif sequence.on_token is not None:
                sequence.on_token()
