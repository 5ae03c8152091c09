"""Reads the pages of a list of ratings, from any place on and within a budget, so that every poll ends."""

import json
import logging
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import httpx

from ragbandit.additions.other_tools.ratings.rating_lists import RatingList
from ragbandit.router.offline.logs.records import cell
from ragbandit.shared.model_servers.outbound import shown_address
from ragbandit.shared.proxies import httpx_options
from ragbandit.shared.reading.fields import flat_text, objects_in

log = logging.getLogger("ragbandit.worker")

#: maximum bytes of a reply, and its time limit, seconds
MOST_BYTES, REPLY_S = 64 << 20, 30.0
#: maximum number of pages of a list that are read, because a faulty list may have no end
MOST_PAGES: Final = 1000
GROUP: Final = 500  #: ratings that are stored in one transaction
_LONGEST_CURSOR: Final = 2048


@dataclass(kw_only=True, slots=True)
class PollBudget:
    """Amounts that a poll may still read: ratings, bytes of replies, and seconds. The next poll continues the list."""

    rows: int = 50_000
    bytes: int = 256 << 20
    seconds: float = 60.0
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0 or time.monotonic() - self._began > self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place in a list: a page, and the number of its ratings before the place."""

    page: int = 1
    #: cursor of this page; "" for the first page and for lists with numbers of pages
    cursor: str = ""
    rows: int = 0
    #: hash of the previous page, and hashes of all cursors so far
    former: bytes = b""
    cursors: frozenset[bytes] = frozenset()


class RatingPages:
    """Ratings from a place on, in groups. `place`: where the next poll continues, or None if the list has ended.

    credentials: value of the header Authorization. name: name of the setting, for the log.
    """

    def __init__(self, url: str, *, credentials: str, name: str, place: Place) -> None:
        self._url, self._name = url, name
        self._headers = {"Authorization": credentials, "Accept-Encoding": "identity"}
        self.place: Place | None = place

    def groups(self, budget: PollBudget) -> Iterator[list[Mapping[str, Any]]]:
        """Yield groups of ratings until the list or the budget ends. Reads at least one group.

        Raises httpx.HTTPError or ValueError for a failing service, and a slow or large reply, after earlier ratings.
        """
        with httpx.Client(headers=self._headers, timeout=REPLY_S / 3, **httpx_options(self._url)) as client:
            while (place := self.place) is not None:
                reply, content = RatingList(self._fetch(client, place, budget=budget)), sha256()
                count = 0
                for group in _group_rows(reply.rows()):
                    if place.rows < count and budget.is_spent:
                        return
                    content.update(_group_json(group))
                    count += len(group)
                    if count > place.rows:
                        yield objects_in(group)
                        budget.rows -= len(group)
                        self.place = replace(place, rows=count)
                self.place = self._next_place(place, reply, content=content.digest())
                if budget.is_spent:
                    return

    def _fetch(self, client: httpx.Client, place: Place, *, budget: PollBudget) -> bytes:
        parameter = {"cursor": place.cursor} if place.cursor else {"page": place.page}
        url = httpx.URL(self._url).copy_merge_params(parameter)
        body, deadline = bytearray(), time.monotonic() + REPLY_S
        with client.stream("GET", url) as response:
            for piece in response.iter_raw():
                body += piece
                budget.bytes -= len(piece)
                if len(body) > MOST_BYTES or time.monotonic() > deadline:
                    raise ValueError(f"a reply has more than {MOST_BYTES} bytes, or took over {REPLY_S:g} s")
        if response.status_code != 200:
            raise ValueError(f"{shown_address(self._url)}: status {response.status_code}, no list of ratings")
        return bytes(body)

    def _next_place(self, place: Place, reply: RatingList, *, content: bytes) -> Place | None:
        """The beginning of the next page; None after the last one."""
        cursor = flat_text(cell({"meta": reply.meta}, "meta.cursor"))
        if reply.is_bare or content in (place.former, sha256().digest()) or (place.cursor and not cursor):
            return None
        key, fault = sha256(cursor.encode("utf-8", "replace")).digest(), None
        if cursor and key in place.cursors:
            fault = "the list names a cursor again, and is taken as read"
        elif len(cursor) > _LONGEST_CURSOR:
            fault = f"the list has a cursor of more than {_LONGEST_CURSOR} characters, and is taken as read"
        elif place.page >= MOST_PAGES:
            fault = f"the list has more than {MOST_PAGES} pages, and is taken as read"
        if fault is not None:
            log.warning(fault, extra={"action": "ratings", "list": self._name, "page": place.page})
            return None
        cursors = place.cursors | {key} if cursor else place.cursors
        return Place(page=place.page + 1, cursor=cursor, former=content, cursors=cursors)


def authorization_of(key: str) -> str:
    return f"Basic {b64encode(key.encode()).decode()}" if ":" in key else f"Bearer {key}"


def _group_rows(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield groups of up to GROUP rows. A ValueError of `rows` is raised after the rows before it."""
    group: list[Any] = []
    while True:
        fault = None
        try:
            group.extend(islice(rows, GROUP - len(group)))
        except ValueError as error:
            fault = error
        if group:
            yield group
        if fault is not None:
            raise fault
        if len(group) < GROUP:
            return
        group = []


def _group_json(group: list[Any]) -> bytes:
    try:
        return json.dumps(group).encode()
    except RecursionError:
        raise ValueError("a rating is nested too deeply") from None
