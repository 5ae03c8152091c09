"""A copy of the API keys in the memory of a process, at most a second old."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ragbandit.router.api.dependencies import SharedRead
from ragbandit.router.storage.access.api_keys import KeysInForce, KeyStore
from ragbandit.shared.errors import NotReady, StoreError

log = logging.getLogger("ragbandit.api")

#: largest age of a process's copy of the keys, seconds
MAX_AGE_S: Final = 1.0
WAIT_S: Final = 2.0
#: shortest time between two writes of the last use of a key, seconds
NOTE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyCopy:
    keys: KeysInForce
    #: time.monotonic() when the read began
    at: float


class KeyRing:
    """A copy of the keys. Only code on one event loop may call `in_force` and `note_use`."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        # Reads and writes have a thread each, so a slow database blocks no other work.
        self._reading = SharedRead(self._read, name="keys", limit_s=WAIT_S)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-key-uses")
        #: public id of a key -> time of the last use that was stored
        self._noted: dict[str, float] = {}
        self.known: KeyCopy | None = None

    async def in_force(self) -> KeysInForce:
        """The keys, at most MAX_AGE_S old. Raises NotReady if the database cannot be read."""
        copy = self.known
        if copy is None or time.monotonic() - copy.at > MAX_AGE_S:
            try:
                self.known = copy = await self._reading.value()
            except (StoreError, NotReady) as error:
                remedy = "try again; /ready says whether the database is there"
                raise NotReady(f"API keys cannot be checked: {error.message}", remedy=remedy) from error
        return copy.keys

    def note_use(self, public_id: str) -> None:
        """Store, on another thread, that the key is used now; at most once in NOTE_S seconds for each key."""
        now = time.time()
        if now - self._noted.get(public_id, 0.0) < NOTE_S:
            return
        if self.known is not None and len(self._noted) > len(self.known.keys.keys):
            self._noted = {key: at for key, at in self._noted.items() if key in self.known.keys.keys}
        self._noted[public_id] = now
        self._writer.submit(self._note, public_id, now)

    def close(self) -> None:
        self._reading.close()
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> KeyCopy:
        at = time.monotonic()
        return KeyCopy(keys=self._store.in_force(now=time.time()), at=at)

    def _note(self, public_id: str, now: float) -> None:
        try:
            self._store.note_uses({public_id: now})
        except StoreError as error:
            log.warning("the use of an API key is not noted", extra={"action": "keys", "reason": error.message})
