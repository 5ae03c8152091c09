"""Remembers the fields that a model's server has refused, so that later requests of the same caller lack them."""

from collections.abc import Iterable
from threading import Lock
from typing import Final

from ragbandit.shared.model_servers.field_paths import Place

#: time for which a refusal is remembered, seconds
REMEMBERED_S: Final = 86_400.0
#: maximum number of remembered fields: of one server and caller, and of all. The oldest fields leave first
MOST_OF_CALLER: Final = 64
MOST: Final = 10_000

#: (number of the generator, id of the API key); all requests without a key are one caller with None
Caller = tuple[int, str | None]


class RefusedFields:
    """The refusals that a process remembers. A refusal counts only for the caller that got it, because the server's
    message may repeat a caller's text. Times are values of time.monotonic(). Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: caller -> field -> the time until which the field is left out, the oldest first
        self._ends: dict[Caller, dict[Place, float]] = {}
        #: all fields, the oldest first
        self._order: dict[tuple[Caller, Place], None] = {}

    def of(self, caller: Caller, *, now: float) -> list[Place]:
        """The fields that this caller's requests leave out."""
        if caller not in self._ends:
            return []
        with self._lock:
            return [place for place, end in self._ends.get(caller, {}).items() if end > now]

    def note(self, caller: Caller, places: Iterable[Place], *, now: float) -> None:
        """Remember fields that the server refused, and without which it then answered."""
        with self._lock:
            for place in places:
                if (caller, place) in self._order:
                    self._drop(caller, place)
                self._order[caller, place] = None
                ends = self._ends.setdefault(caller, {})
                ends[place] = now + REMEMBERED_S
                if len(ends) > MOST_OF_CALLER:
                    self._drop(caller, next(iter(ends)))
                if len(self._order) > MOST:
                    self._drop(*next(iter(self._order)))

    def _drop(self, caller: Caller, place: Place) -> None:
        del self._order[caller, place], self._ends[caller][place]
        if not self._ends[caller]:
            del self._ends[caller]


#: refusals of servers in this process
REFUSED: Final = RefusedFields()
