"""Key ring: the keys in force, as one process knows them, never more than a second old.

A request is checked against a copy of all keys in memory: its secret is hashed and compared each time, so nothing is
remembered by a public id alone, and a flood of wrong keys asks the database nothing. Whoever comes when the copy is a
second old waits for a new one, one read for all. Without a database no key can be checked, and no request is let in.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ragbandit.router.storage.access.api_keys import KeysInForce, KeyStore
from ragbandit.shared.errors import NotReady, StoreError

log = logging.getLogger("ragbandit.api")

#: oldest copy of the keys that a request is checked against, seconds
MAX_AGE_S: Final = 1.0
#: longest wait for a new copy, seconds
WAIT_S: Final = 2.0
#: how often the use of a key is written, seconds
NOTE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A copy of the keys."""

    keys: KeysInForce
    #: when its read began, by time.monotonic()
    at: float


class KeyRing:
    """The keys of one process. `in_force` and `note_use` belong to one event loop."""

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        # One thread reads, so that a database which takes its time holds one thread; one writes.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-keys")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-key-uses")
        self._reading: Future[Known] | None = None
        self._began = 0.0
        self._noted: dict[str, float] = {}
        #: the last copy; None: none could be read yet
        self.known: Known | None = None

    async def in_force(self) -> KeysInForce:
        """The keys as they were at most a second ago. Raises NotReady while the database does not tell."""
        known, now = self.known, time.monotonic()
        if known is not None and now - known.at <= MAX_AGE_S:
            return known.keys
        if self._reading is None or self._reading.done():
            self._reading, self._began = self._reader.submit(self._read), now
        try:
            # All who come meanwhile wait for the same read, and none of them longer than the first.
            left = max(0.0, self._began + WAIT_S - now)
            self.known = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._reading)), left)
        except (StoreError, TimeoutError) as error:
            reason = error.message if isinstance(error, StoreError) else f"no reply within {WAIT_S:g} s"
            raise NotReady(
                f"API keys cannot be checked: {reason}", remedy="try again; /ready says whether the database is there"
            ) from error
        return self.known.keys

    def note_use(self, public_id: str) -> None:
        """Write when the key was used, on a thread of its own and at most once a minute."""
        now = self._clock()
        if now - self._noted.get(public_id, 0.0) < NOTE_S:
            return
        if self.known is not None and len(self._noted) > len(self.known.keys.keys):
            self._noted = {key: at for key, at in self._noted.items() if key in self.known.keys.keys}
        self._noted[public_id] = now
        self._writer.submit(self._note, public_id, now)

    def close(self) -> None:
        """Read and write no more; what runs ends by itself."""
        for executor in (self._reader, self._writer):
            executor.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> Known:
        at = time.monotonic()
        return Known(keys=self._store.in_force(now=self._clock()), at=at)

    def _note(self, public_id: str, at: float) -> None:
        try:
            self._store.note_uses({public_id: at})
        except StoreError as error:
            log.warning("the use of an API key is not noted", extra={"action": "keys", "reason": error.message})
