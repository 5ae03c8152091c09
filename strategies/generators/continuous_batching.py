"""Continuous batching: many texts written at once by one model, one step of the model for all.

A text takes a row when one is free, first come first served, has its prompt read in pieces, then gets one token in
every step together with all others that write, and leaves at its end. See strategies.generators.kv_cache for the rows.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from ragbandit.router.errors import ArmFailed
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.kv_cache import Prefixes, RowCache, TokenIds, shared_beginning, usable
from ragbandit.strategies.generators.sampling import Taken, picked

__all__ = ["Engine", "Finish", "Pace", "Writing", "Written", "pace_on"]

log = logging.getLogger("ragbandit.local")

Finish = Literal["stop", "length", "deadline"]

#: tokens that others write at most while a text waits beside a free row for more rows to be free
_PATIENCE: Final = 8
#: tokens of a prompt that are read whatever the clock says
_LEAST_READ: Final = 16
#: part of the device's free memory that texts under way may fill; growing holds two copies for a moment
_SHARE: Final = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How much is done at a time."""

    #: texts under way
    rows: int
    #: rows that must be free before prompts are read, unless none is taken or one waits for long: reading one by one
    #: costs a pass each
    free: int
    #: tokens of a prompt that are read between two tokens of those that write, and two looks at the clock; near a
    #: deadline, fewer
    chunk: int
    #: prompts are read together up to so many tokens; one is always read
    together: int
    #: rows x tokens that fit in memory; None: not asked
    room: int | None


def pace_on(device: str, *, rows: int, bytes_per_token: int, less: int) -> Pace:
    """A pace for "cpu" or "cuda", less: bytes of its memory that are spoken for.

    A processor computes as long for two prompts as for one after the other; a graphics card is launched once.
    """
    free = _free_memory() if device == "cpu" else torch.cuda.mem_get_info()[0]
    room = None if free is None else max(0, int((free - less) * _SHARE)) // bytes_per_token
    if device == "cpu":
        return Pace(rows=rows, free=1, chunk=256, together=1, room=room)
    return Pace(rows=rows, free=max(1, rows // 8), chunk=2048, together=16384, room=room)


def _free_memory() -> int | None:
    """Bytes that Linux can give to new work, what files occupy included; None on another system."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Written:
    """How a text ended; its tokens are in Writing.taken. The default is that of a text not begun."""

    #: tokens of the prompt
    read: int = 0
    finish: Finish = "deadline"
    #: what only its row could tell, by need
    seen: Mapping[str, Any] = field(default_factory=dict)


class Writing:
    """One text on its way: what was asked, how far it is, and whether anybody still waits for it."""

    def __init__(self, request: Request, *, ids: TokenIds, taken: Taken) -> None:
        self.request, self.ids, self.taken = request, ids, taken
        self.stop = tuple(filter(None, request.stop))
        self.abandoned = threading.Event()
        self.future: Future[Written] = Future()

    @property
    def plain(self) -> bool:
        """Whether special tokens are left out of its text."""
        return "trained_tokens" not in self.request.want

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
    looked: (text, its row, tokens of the prompt that were read) -> what only the row can tell, which still holds the
    text; it may be written anew.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        cache: RowCache,
        prefixes: Prefixes,
        pace: Pace,
        ended: Callable[[Writing], bool],
        looked: Callable[[Writing, int, int], Mapping[str, Any]],
        start: Callable[[], None],
    ) -> None:
        self.pace = pace
        self._model, self._cache, self._prefixes = model, cache, prefixes
        self._ended, self._looked = ended, looked
        self._waiting: deque[Writing] = deque()
        #: text of every row of the cache: first those that write, then those whose prompt is being read
        self._texts: list[Writing] = []
        self._writing = 0
        self._passed_by = 0
        #: that reading a token took when one was read last
        self._seconds_a_token = math.inf
        self._lock = threading.Lock()
        #: why no more texts are taken on
        self._closed = ""
        self._serving = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate", initializer=start)

    def submit(self, writing: Writing) -> None:
        """Take a text on; its future ends with a Written or ArmFailed. Raises ArmFailed if the engine was closed."""
        with self._lock:
            if not self._closed:
                self._waiting.append(writing)
                if self._serving or self._go_on():
                    return
                self._waiting.pop()
        raise ArmFailed(f"the generator cannot be asked: {self._closed}")

    def close(self) -> None:
        """End the thread once what was taken on is done. A second time does nothing."""
        with self._lock:
            self._closed = self._closed or "it was closed"
            if not self._serving:
                self._thread.shutdown(wait=False)

    def _go_on(self) -> bool:
        """Put a turn into the thread's queue, if there is anything to do; whether one is. Under the lock.

        Turn by turn, because the queue alone tells that the interpreter is ending: it takes nothing any more.
        """
        self._serving = bool(self._waiting or self._texts)
        if self._serving:
            try:
                self._thread.submit(self._serve)
            except RuntimeError as error:
                self._serving, self._closed = False, f"its thread has ended: {error}"
        elif self._closed:
            self._thread.shutdown(wait=False)
        return self._serving

    def _serve(self) -> None:
        try:
            with torch.inference_mode():
                try:
                    self._turn()
                except Exception as error:  # even clearing up after a failure failed
                    self._give_up(error)
                if not self._texts and not self._waiting and self._cache.rest():
                    self._empty_cache()
            with self._lock:
                if not self._go_on() and (self._texts or self._waiting):
                    self._abandon(RuntimeError(self._closed))
        except BaseException as error:
            # A graphics card that failed for good, say: every try would fail, and nobody may wait for ever.
            log.exception("the language model failed and could not be cleared up: it is closed")
            with self._lock:
                self._serving, self._closed = False, f"it failed: {error}"
                self._abandon(error)
            self._thread.shutdown(wait=False)

    def _turn(self) -> None:
        """A piece of the prompts in hand, and a token for all that write; a look at the clock before each."""
        self._look_at_the_clock()
        if self._writing == len(self._texts):
            self._admit()
        if readers := self._texts[self._writing :]:
            self._attempt(readers, lambda: self._read(readers))
            self._look_at_the_clock()
        if writers := self._texts[: self._writing]:
            self._attempt(writers, lambda: self._write(writers))

    def _look_at_the_clock(self) -> None:
        for writing in [each for each in self._texts if each.over()]:
            self._leave(writing, finish="deadline")

    # ---- coming and going

    def _admit(self) -> None:
        """Give free rows to those who wait, as many as are read together."""
        free = self.pace.rows - len(self._texts)
        if self._texts and free < self.pace.free and self._passed_by < _PATIENCE:
            self._passed_by += bool(free and self._waiting)
            return
        self._passed_by = 0
        longest = max((each.needs for each in self._texts), default=0)
        width = count = 0
        while len(self._texts) < self.pace.rows and (writing := self._next()):
            longest = max(longest, writing.needs)
            width = max(width, min(len(writing.ids), self.pace.chunk))
            full = self.pace.room is not None and (len(self._texts) + 1) * longest > self.pace.room
            if (full and self._texts) or (count and (count + 1) * width > self.pace.together):
                return
            self._waiting.popleft()
            if not writing.future.set_running_or_notify_cancel():
                continue
            count += 1
            self._texts.append(writing)
            self._cache.append()
            self._attempt([writing], partial(self._reuse, len(self._texts) - 1))

    def _next(self) -> Writing | None:
        """The first who waits and has a use for it."""
        while self._waiting:
            writing = self._waiting[0]
            if not writing.over() and not writing.future.cancelled():
                return writing
            self._waiting.popleft()
            if writing.future.set_running_or_notify_cancel():
                writing.future.set_result(Written())
        return None

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
        self._keep(writing, row=row)  # before its row is written anew
        hurry = finish == "deadline" or writing.abandoned.is_set()
        seen = {} if hurry else self._looked(writing, row, read)
        writing.future.set_result(Written(read=read, finish=finish, seen=seen))

    def _keep(self, writing: Writing, *, row: int) -> None:
        """Keep what was read, if there is memory for it: a text that is done does not fail for that."""
        if not self._prefixes:
            return
        try:
            whole = np.concatenate([writing.ids, np.array(writing.taken.tokens, dtype=np.int64)])
            self._prefixes.keep(whole, cache=self._cache, row=row)
        except Exception as error:
            log.warning("what was read cannot be kept: %s", error)
            self._forget()

    def _free(self, writing: Writing) -> None:
        """Close the gap: the last that writes takes the row, the last that reads takes that one's."""
        row = self._texts.index(writing)
        self._cache.empty(row)
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
        except Exception as error:  # whatever broke, nobody may wait for ever: they are told before rows are freed
            self._fail(concerned, error=error)
            for writing in concerned:
                if writing in self._texts:
                    self._free(writing)
            if not self._texts:
                self._cache.clear()
            self._forget()

    def _forget(self) -> None:
        """Give back what was kept for later texts."""
        self._prefixes.clear()
        self._empty_cache()

    def _empty_cache(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _give_up(self, error: Exception) -> None:
        """End everything, what waits included: it might break in the same place for ever."""
        self._abandon(error)
        self._cache.clear()
        self._forget()

    def _abandon(self, error: BaseException) -> None:
        """Tell everybody that there will be no text."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        under_way, self._texts, self._writing = self._texts, [], 0
        self._fail([*under_way, *(each for each in waiting if each.future.set_running_or_notify_cancel())], error=error)

    @staticmethod
    def _fail(texts: Sequence[Writing], *, error: BaseException) -> None:
        failure = ArmFailed(f"the language model failed: {error}")
        failure.__cause__ = error
        for writing in texts:
            if not writing.future.done():
                writing.future.set_exception(failure)

    # ---- computing

    def _read(self, readers: Sequence[Writing]) -> None:
        """The next piece of every prompt in hand; those that are through get their first token."""
        lengths, chunk = self._cache.lengths[self._writing :], self._chunk()
        pieces = [text.ids[length : length + chunk].tolist() for text, length in zip(readers, lengths, strict=True)]
        began = time.monotonic()
        logits = self._cache.run(self._model, pieces, first=self._writing).logits[:, -1]  # (readers, vocabulary)
        self._seconds_a_token = (time.monotonic() - began) / max(map(len, pieces))
        lengths = self._cache.lengths[self._writing :]
        through = [at for at, text in enumerate(readers) if lengths[at] == len(text.ids)]
        if not through:
            return
        self._pick([readers[at] for at in through], logits if len(through) == len(readers) else logits[through])
        for text in [readers[at] for at in through]:
            if text in self._texts:
                self._exchange(self._texts.index(text), self._writing)
                self._writing += 1

    def _chunk(self) -> int:
        """Tokens of a prompt to read now: no more than can be read before the next deadline, as far as one can tell."""
        left = min((each for text in self._texts if (each := text.seconds_left()) is not None), default=None)
        if left is None:
            return self.pace.chunk
        return min(self.pace.chunk, max(_LEAST_READ, int(left / max(self._seconds_a_token, 1e-9))))

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
