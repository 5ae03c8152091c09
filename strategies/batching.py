"""Continuous batching: many texts written at once by one model, one step of the model for all.

A text takes a row when one is free, first come first served, has its prompt read in pieces, then gets one token in
every step together with all others that write, and leaves at its end. See strategies.row_cache for the rows.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from router.errors import ArmFailed
from strategies.base import Completion, Request
from strategies.row_cache import Prefixes, RowCache, TokenIds, shared_beginning, usable
from strategies.telling import Taken, picked

__all__ = ["Engine", "Finish", "Pace", "Writing"]

Finish = Literal["stop", "length", "deadline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How much is done at a time."""

    #: texts under way
    rows: int
    #: rows that must be free before prompts are read, unless none is taken: reading one by one costs a pass each
    free: int
    #: tokens of a prompt that are read between two tokens of those that write, and two looks at the clock
    chunk: int
    #: prompts are read together up to so many tokens; one is always read
    together: int
    #: rows x tokens that fit in memory; None: not asked
    room: int | None


class Writing:
    """One text on its way: what was asked, how far it is, and whether anybody still waits for it."""

    def __init__(self, request: Request, *, ids: TokenIds, taken: Taken) -> None:
        self.request, self.ids, self.taken = request, ids, taken
        self.stop = tuple(filter(None, request.stop))
        self.abandoned = threading.Event()
        self.future: Future[Completion] = Future()

    @property
    def needs(self) -> int:
        """Tokens of a row that it may come to fill."""
        return len(self.ids) + self.request.max_tokens

    def seconds_left(self) -> float | None:
        """Until its deadline, 0.0 at the least; None: it has none."""
        deadline = self.request.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def over(self) -> bool:
        """Whether there is no more use in writing."""
        return self.abandoned.is_set() or self.seconds_left() == 0.0


class Engine:
    """The one thread in which the model computes.

    ended: whether the tokens taken so far end the text by themselves.
    told: (text, its row, tokens of the prompt that were read, why it ended) -> what the caller gets; the row still
    holds the text.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        cache: RowCache,
        prefixes: Prefixes,
        pace: Pace,
        ended: Callable[[Writing], bool],
        told: Callable[[Writing, int, int, Finish], Completion],
        start: Callable[[], None],
    ) -> None:
        self.pace = pace
        self._model, self._cache, self._prefixes = model, cache, prefixes
        self._ended, self._told = ended, told
        self._waiting: deque[Writing] = deque()
        #: text of every row of the cache: first those that write, then those whose prompt is being read
        self._texts: list[Writing] = []
        self._writing = 0
        self._lock = threading.Lock()
        self._closed = self._serving = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate", initializer=start)

    def submit(self, writing: Writing) -> None:
        """Take a text on; its future ends with a Completion or ArmFailed. Raises ArmFailed if the engine was closed."""
        with self._lock:
            if not self._closed:
                try:
                    if not self._serving:
                        self._thread.submit(self._serve)
                        self._serving = True
                    self._waiting.append(writing)
                    return
                except RuntimeError:  # the interpreter is ending
                    self._closed = True
        raise ArmFailed("the generator cannot be asked: it was closed")

    def close(self) -> None:
        """End the thread once what was taken on is done. A second time does nothing."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=False)

    def _serve(self) -> None:
        with torch.inference_mode():
            while self._more():
                try:
                    self._turn()
                except Exception as error:  # even clearing up after a failure failed
                    self._give_up(error)

    def _more(self) -> bool:
        with self._lock:
            self._serving = bool(self._waiting or self._texts)
            return self._serving

    def _turn(self) -> None:
        """A look at the clock, a piece of the prompts in hand, and a token for all that write."""
        for writing in [each for each in self._texts if each.over()]:
            self._leave(writing, finish="deadline")
        if self._writing == len(self._texts):
            self._admit()
        if readers := self._texts[self._writing :]:
            self._attempt(readers, lambda: self._read(readers))
        if writers := self._texts[: self._writing]:
            self._attempt(writers, lambda: self._write(writers))

    # ---- coming and going

    def _admit(self) -> None:
        """Give free rows to those who wait, as many as are read together."""
        if self._texts and self.pace.rows - len(self._texts) < self.pace.free:
            return
        longest = width = count = 0
        while len(self._texts) < self.pace.rows and self._waiting:
            writing = self._waiting[0]
            longest = max([longest, writing.needs, *(each.needs for each in self._texts)])
            width = max(width, min(len(writing.ids), self.pace.chunk))
            full = self.pace.room is not None and (len(self._texts) + 1) * longest > self.pace.room
            if (full and self._texts) or (count and (count + 1) * width > self.pace.together):
                return
            self._waiting.popleft()
            if not writing.future.set_running_or_notify_cancel():
                continue
            if writing.over():
                writing.future.set_result(_nothing())
                continue
            count += 1
            self._texts.append(writing)
            self._cache.append()
            self._attempt([writing], partial(self._reuse, len(self._texts) - 1))

    def _reuse(self, row: int) -> None:
        """Fill a new row with what another text, under way or done, has read of its beginning."""
        if not self._prefixes:
            return
        ids = self._texts[row].ids
        shared = [
            usable(shared_beginning(ids, other.ids[: self._cache.lengths[at]]), of=len(ids))
            for at, other in enumerate(self._texts[:row])
        ]
        count = max(shared, default=0)
        if found := self._prefixes.best(ids, more_than=count):
            self._cache.put(row, keys=found[1].keys, values=found[1].values, count=found[0])
        elif count:
            self._cache.copy(shared.index(count), row, count=count)

    def _leave(self, writing: Writing, *, finish: Finish) -> None:
        """Answer its caller and free its row."""
        self._attempt([writing], lambda: self._answer(writing, finish=finish))
        if writing in self._texts:
            self._free(writing)

    def _answer(self, writing: Writing, *, finish: Finish) -> None:
        row = self._texts.index(writing)
        read = min(self._cache.lengths[row], len(writing.ids))
        if self._prefixes:
            whole = np.concatenate([writing.ids, np.array(writing.taken.tokens, dtype=np.int64)])
            self._prefixes.keep(whole, cache=self._cache, row=row)
        if writing.abandoned.is_set():
            writing.future.set_result(_nothing())
        else:
            writing.future.set_result(self._told(writing, row, read, finish))

    def _free(self, writing: Writing) -> None:
        """Close the gap: the last that writes takes the row, the last that reads takes that one's."""
        row = self._texts.index(writing)
        self._cache.lengths[row] = 0
        if row < self._writing:
            self._writing -= 1
            self._exchange(row, self._writing)
            row = self._writing
        self._exchange(row, len(self._texts) - 1)
        self._texts.pop()
        self._cache.pop()

    def _exchange(self, one: int, other: int) -> None:
        if one != other:
            self._cache.swap(one, other)
            self._texts[one], self._texts[other] = self._texts[other], self._texts[one]

    def _attempt(self, concerned: Sequence[Writing], work: Callable[[], None]) -> None:
        """Do it; a failure is theirs alone, and the engine lives on."""
        try:
            work()
        except Exception as error:  # whatever broke, nobody may wait for ever
            for writing in concerned:
                if writing in self._texts:
                    self._free(writing)
            self._fail(concerned, error=error)
            self._prefixes.clear()
            if not self._texts:
                self._cache.clear()
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()

    def _give_up(self, error: Exception) -> None:
        """End everything, what waits included: it might break in the same place for ever."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._fail(
            [*self._texts, *(each for each in waiting if each.future.set_running_or_notify_cancel())], error=error
        )
        self._texts, self._writing = [], 0
        self._prefixes.clear()
        self._cache.clear()

    @staticmethod
    def _fail(texts: Sequence[Writing], *, error: Exception) -> None:
        failure = ArmFailed(f"the language model failed: {error}")
        failure.__cause__ = error
        for writing in texts:
            if not writing.future.done():
                writing.future.set_exception(failure)

    # ---- computing

    def _read(self, readers: Sequence[Writing]) -> None:
        """The next piece of every prompt in hand; those that are through get their first token."""
        lengths = self._cache.lengths[self._writing :]
        pieces = [
            text.ids[length : length + self.pace.chunk].tolist() for text, length in zip(readers, lengths, strict=True)
        ]
        logits = self._cache.run(self._model, pieces, first=self._writing).logits[:, -1]  # (readers, vocabulary)
        lengths = self._cache.lengths[self._writing :]
        through = [at for at, text in enumerate(readers) if lengths[at] == len(text.ids)]
        if not through:
            return
        self._pick([readers[at] for at in through], logits if len(through) == len(readers) else logits[through])
        for text in [readers[at] for at in through]:
            if text in self._texts:
                self._exchange(self._texts.index(text), self._writing)
                self._writing += 1

    def _write(self, writers: Sequence[Writing]) -> None:
        """One token more for all that write."""
        last = [[text.taken.tokens[-1]] for text in writers]
        self._pick(writers, self._cache.run(self._model, last).logits[:, -1])

    def _pick(self, texts: Sequence[Writing], logits: "torch.Tensor") -> None:
        """The next token of each; texts that it ends leave. logits: (texts, vocabulary)."""
        picked(torch, logits, texts=[text.taken for text in texts])
        for text in texts:
            if self._ended(text):
                self._leave(text, finish="stop")
            elif len(text.taken.tokens) >= text.request.max_tokens:
                self._leave(text, finish="length")


def _nothing() -> Completion:
    """The answer to whom time ran out before anything was read, or who does not wait for one any more."""
    return Completion(text="", prompt_tokens=0, completion_tokens=0, finish="deadline")
