"""Ratings in other services: fetched by one process of all, and stored as feedback exactly once.

The feedback's id is a hash of the rating's id, last change and value, so a page that is read again adds nothing. Lists
begin with the newest rating: after a complete read, a process reads up to the first page with a known rating.
"""

import json
import logging
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import httpx
from sqlalchemy import select

from ragbandit.router.cli.feedback import FeedbackImporter, cell
from ragbandit.router.config.sections import RatingsSettings
from ragbandit.router.offline.traffic.forms import FORMS
from ragbandit.router.storage.decisions.turns import edge_of
from ragbandit.router.storage.rows.conversion import RATED_MESSAGE, canonical
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.outbound import check_address, check_header_value, shown_address
from ragbandit.shared.reading.fields import listed, words_of
from ragbandit.workers.chores.rating_lists import RatingList
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.worker")

#: shortest lease, and time limit of one reply, seconds
LEASE_S, REPLY_S = 600.0, 30.0
MOST_BYTES, MOST_PAGES = 64 << 20, 1000
_GROUP: Final = 500  #: ratings that are stored in one transaction
_PATHS: Final = {name: paths.split() for name, paths in FORMS["fetched"].items()}


class RatingPoller:
    def __init__(self, name: str, source: RatingsSettings, *, context: Context) -> None:
        self._field, self._source, self._context = f"ratings.{name}", source, context
        self.lease = Lease(database=context.store.database, name=self._field[:64])
        self.holder, self._is_complete, self._bad = lease_holder("ratings"), False, 0

    def release(self) -> None:
        self.lease.release(holder=self.holder)

    def poll(self) -> None:
        """Store the new ratings, if no other process does. Raises ConfigError, ValueError and httpx.HTTPError."""
        # The lease outlasts the pause, so that the list is not read whole by one process after the other.
        hold = partial(self.lease.acquire, holder=self.holder, lease_s=max(LEASE_S, 2 * self._source.every_s))
        if not hold():
            return
        common: dict[str, Any] = {"settings": self._context.settings, "source": None, "scale": self._source.scale}
        fields = {name: name for name in (*_PATHS, "label", "reward", "event")}
        importer = FeedbackImporter(self._context.store, fields=fields, **common)
        is_complete, self._is_complete = self._is_complete, False
        for rows in self._pages():
            if not hold():
                return
            importer.store_lines([(number, partial(self._record, row)) for number, row in enumerate(rows)])
            if is_complete and importer.counts["known"]:
                break
        self._is_complete = True
        if importer.bad and importer.bad != self._bad:  # most often ratings of other services' answers
            is_useless = not (importer.counts["imported"] or importer.counts["known"])
            extra = {"action": "ratings", "count": importer.bad, "first": importer.faults[0]}
            message = f"ratings of {self._field} could not be used"
            log.log(logging.WARNING if is_useless else logging.INFO, message, extra=extra)
        self._bad = importer.bad
        if importer.counts["imported"]:
            self._context.notifier.notify_learner()

    def _record(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A rating as a row of `feedback import`."""
        sent = {name: [cell(row, path) for path in paths] for name, paths in _PATHS.items()}
        record = {name: next((value for value in values if value is not None), None) for name, values in sent.items()}
        chat, message = words_of(cell(row, "meta.chat_id")), words_of(record["decision_id"])
        query = select(*decisions.c["id", "request"]).where(decisions.c.session == chat)
        with self._context.store.database.read() as connection:
            rows = connection.execute(query.order_by(decisions.c.made_at).limit(MOST_PAGES)).all() if chat else []
        named = {key: edge_of(request).get(RATED_MESSAGE) for key, request in rows}
        # Older versions of Open WebUI do not send the id of the message: then only a chat's only decision is certain.
        matches = [key for key, known in named.items() if known == message or [*named.values()] == [None]]
        identity = canonical([self._field, row.get("id"), record["feedback_id"], record["rating"]])
        key = f"rating-{sha256(identity.encode('utf-8', 'replace')).hexdigest()[:40]}"
        return {**record, "decision_id": next(iter(matches), message), "feedback_id": key}

    def _pages(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield groups of ratings. A failing service, a slow or large reply raises httpx.HTTPError or ValueError."""
        source, key = self._source, os.environ.get(self._source.key_env, "")
        check_address(source.url, field=f"{self._field}.url", remedy="see docs/logs.md", query=True)
        if not key:
            raise ConfigError(f"{source.key_env} is not set", field=f"{self._field}.key_env", remedy="set the variable")
        check_header_value(key, what=source.key_env, field=f"{self._field}.key_env", remedy="copy the key again")
        credentials = f"Basic {b64encode(key.encode()).decode()}" if ":" in key else f"Bearer {key}"
        headers, cursor = {"Authorization": credentials, "Accept-Encoding": "identity"}, ""
        former = b""
        with httpx.Client(headers=headers, timeout=REPLY_S / 3) as client:
            for page in range(1, MOST_PAGES + 1):
                url = httpx.URL(source.url).copy_merge_params({"cursor": cursor} if cursor else {"page": page})
                body, deadline = bytearray(), time.monotonic() + REPLY_S
                with client.stream("GET", url) as response:
                    for piece in response.iter_raw():
                        body += piece
                        if len(body) > MOST_BYTES or time.monotonic() > deadline:
                            raise ValueError(f"a reply has more than {MOST_BYTES} bytes, or took over {REPLY_S:g} s")
                if response.status_code != 200:
                    raise ValueError(f"{shown_address(source.url)}: status {response.status_code}, no list of ratings")
                reply, content = RatingList(bytes(body)), sha256()
                body.clear()
                rows = reply.rows()
                while group := [*islice(rows, _GROUP)]:
                    content.update(json.dumps(group).encode("utf-8", "replace"))
                    yield listed(group)
                is_by_cursor, cursor = bool(cursor), words_of(cell({"meta": reply.meta}, "meta.cursor"))
                is_last = reply.is_bare or content.digest() in (former, sha256().digest())
                if is_last or (is_by_cursor and not cursor):
                    return
                former = content.digest()
