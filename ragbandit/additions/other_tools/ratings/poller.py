"""Ratings in other services: fetched by one process at a time, and stored as feedback exactly once.

The feedback's id is a hash of the rating's id, last change and value, so a page that is read again adds nothing. Lists
begin with the newest rating: after a complete read, a process reads up to the first group with a known rating.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, select

from ragbandit.additions.other_tools.feedback_rows import FeedbackImporter
from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.additions.other_tools.ratings.rating_pages import Place, PollBudget, RatingPages, authorization_of
from ragbandit.additions.other_tools.ratings.settings import RatingsSettings
from ragbandit.router.offline.logs.records import cell
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX, plain_decision_id
from ragbandit.router.storage.rows.conversion import canonical, client_records_of
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.model_servers.outbound import check_address, check_header_value
from ragbandit.shared.reading.fields import flat_text
from ragbandit.shared.texts.redaction import variable_or_hidden
from ragbandit.shared.types import own_feedback_id, sent_of
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.worker")

LEASE_S: Final = 600.0  #: shortest lease, seconds
_MOST_DECISIONS: Final = 1000  #: maximum number of decisions of a chat among which a rating's decision is searched
_PATHS: Final = {name: paths.split() for name, paths in FORMS["fetched"].items()}


class RatingPoller:
    """Fetches the ratings of one source. budget: returns a poll's budget; the next poll continues a longer list."""

    def __init__(
        self,
        name: str,
        source: RatingsSettings,
        *,
        context: Context,
        budget: Callable[[], PollBudget] = PollBudget,
    ) -> None:
        self._budget = budget
        self._field, self._source, self._context = f"ratings.{name}", source, context
        self.lease = Lease(database=context.store.database, name=self._field[:64])
        self.holder, self._bad = lease_holder("ratings"), 0
        #: whether the list was read to its end once, and where the next poll continues after a spent budget
        self._is_complete, self._rest = False, cast("Place | None", None)

    def release(self) -> None:
        self.lease.release(holder=self.holder)

    def poll(self) -> None:
        """Store new ratings within the budget, if no other process does.

        Raises ConfigError, ValueError and httpx.HTTPError.
        """
        # The lease outlasts the pause, so that the list is not read whole by one process after the other.
        hold = partial(self.lease.acquire, holder=self.holder, lease_s=max(LEASE_S, 2 * self._source.every_s))
        if not hold():
            return
        common: dict[str, Any] = {"settings": self._context.settings, "source": None, "scale": self._source.scale}
        fields = {name: name for name in (*_PATHS, "label", "reward", "event")}
        importer = FeedbackImporter(self._context.store, fields=fields, **common)
        place, stops = self._rest or Place(), self._is_complete
        self._rest, self._is_complete = None, False  # after an error, the list is read again
        self._rest = self._store_new(place, importer=importer, hold=hold, stops=stops)
        self._is_complete = stops or self._rest is None
        if importer.bad and importer.bad != self._bad:  # most often ratings of other services' answers
            is_useless = not (importer.counts["imported"] or importer.counts["known"])
            extra = {"action": "ratings", "count": importer.bad, "first": importer.faults[0]}
            message = f"ratings of {self._field} could not be used"
            log.log(logging.WARNING if is_useless else logging.INFO, message, extra=extra)
        self._bad = importer.bad
        if importer.counts["imported"]:
            self._context.notifier.notify_learner()

    def _store_new(
        self, place: Place, *, importer: FeedbackImporter, hold: Callable[[], bool], stops: bool
    ) -> Place | None:
        """Store ratings from the place on. Returns where the next poll continues, or None if all are read.

        hold: renews the lease; returns False if another process has it. stops: whether to stop at a known rating.
        """
        pages = self._open_pages(place)
        for rows in pages.groups(self._budget()):
            if not hold():
                return place
            importer.store_lines([(number, partial(self._feedback_row, row)) for number, row in enumerate(rows)])
            if stops and importer.counts["known"]:
                return None
        return pages.place

    def _open_pages(self, place: Place) -> RatingPages:
        source, key = self._source, os.environ.get(self._source.key_env, "")
        variable, field = variable_or_hidden(source.key_env), f"{self._field}.key_env"
        check_address(source.url, field=f"{self._field}.url", remedy="see docs/logs.md", query=True)
        if not key:
            raise ConfigError(f"{variable} is not set", field=field, remedy="set the variable")
        check_header_value(key, source=variable, field=field, remedy="copy the key again")
        return RatingPages(source.url, credentials=authorization_of(key), name=self._field, place=place)

    def _feedback_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A rating as a row of `feedback import`."""
        sent = {name: [cell(row, path) for path in paths] for name, paths in _PATHS.items()}
        record = {name: next((value for value in values if value is not None), None) for name, values in sent.items()}
        chat = storable(flat_text(cell(row, "meta.chat_id"))) or ""
        message = flat_text(record["decision_id"])
        rows = self._find_decisions(decisions.c.session == chat) if chat else []
        named = {row.id: sent_of(client_records_of(row.request)).message for row in rows}
        # Older versions of Open WebUI do not send the id of the message: then only a chat's only decision is certain.
        matches = [key for key, known in named.items() if known == message or [*named.values()] == [None]]
        if len({row.tenant for row in rows}) > 1:  # callers choose the ids of their chats, so tenants may share one
            matches = []
        plain = plain_decision_id(storable(message) or "")
        if not (matches or self._find_decisions(decisions.c.id.in_([plain, plain.removeprefix(RESPONSE_PREFIX)]))):
            remedy = f"set {self._field}.tenant to the tenant that asked"
            raise InvalidInput("the rating belongs to no decision", field="decision_id", remedy=remedy)
        # Equal values at one time would be one rating if the rating has no id.
        own = [record["decision_id"], record["rater"]] if row.get("id") is None else []
        identity = canonical([self._field, row.get("id"), record["feedback_id"], record["rating"], *own])
        key = own_feedback_id("rating", digest=sha256(identity.encode("utf-8", "replace")).hexdigest()[:40])
        return {**record, "decision_id": next(iter(matches), message), "feedback_id": key}

    def _find_decisions(self, condition: ColumnElement[bool]) -> Sequence[Any]:
        """The first decisions of the setting's tenant that meet the condition."""
        query = select(*decisions.c["id", "tenant", "request"]).where(condition)
        if self._source.tenant is not None:
            query = query.where(decisions.c.tenant == self._source.tenant)
        with self._context.store.database.read() as connection:
            return connection.execute(query.order_by(decisions.c.made_at).limit(_MOST_DECISIONS)).all()
