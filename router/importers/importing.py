"""Importing: one walk through another system; each page's feedback and the cursor are kept in one transaction."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection

from ragbandit.router.config.importers import ImporterSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.importers.joining import joined
from ragbandit.router.importers.mapping import feedback_of, importer_raters, is_mapped, retraction_of
from ragbandit.router.importers.report import ImportReport
from ragbandit.router.importers.source import MAX_PAGES, FeedbackSystem, Judgement, SourcePage, Walk
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.imported_feedback import Imported, open_imports, votes_of
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.leases import Lease, position_of, set_position
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.errors import Conflict, InvalidInput, NotReady, RagBanditError
from ragbandit.shared.types import Feedback, Receipt

#: feedback of which one import asks whether it is still there, the newest
MOST_ASKED: Final = 1000
#: so many deletions at once, and more than half of what is known, are taken for a fault of the server
DOUBTFUL: Final = 20
#: an import that died lets another one begin after that long, seconds; no page takes longer
LEASE_S: Final = 900.0


class Importer:
    """Brings judgements of one source into a store. Not for several threads."""

    def __init__(
        self,
        source: FeedbackSystem,
        *,
        store: DecisionStore,
        settings: Settings,
        clock: Callable[[], float],
        ending: threading.Event,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        """on_new: called after a commit that brought feedback. ending: once it is set, no further page is read."""
        self.source, self.store, self.settings, self.clock = source, store, settings, clock
        self._ending, self._on_new = ending, on_new
        self.section: ImporterSettings = getattr(settings.importers, source.name)
        #: its row of reading_positions
        self.cursor = f"{source.name}:{source.place}"[:128]

    def run(
        self,
        *,
        since: float | None = None,
        dry_run: bool = False,
        progress: Callable[[ImportReport], None] = lambda _report: None,
    ) -> ImportReport:
        """Import what has come since the last time, or goes on where that was cut off.

        since: read what was made or edited from then on, whatever the cursor says. dry_run: nothing is kept, and the
        cursor stays. Raises NotReady, ConfigError, StoreError; what was kept before stays.
        """
        report = ImportReport(source=self.cursor, dry_run=dry_run)
        began = self.clock()
        with self._alone(keep=not dry_run) as prolong:

            def taken(walk: Walk) -> bool:
                for page in self.source.pages(walk):
                    walk = replace(walk, mark=page.mark)
                    self._take(page, walk=walk, report=report)
                    progress(report)
                    prolong()
                    if self._ending.is_set() or report.pages >= MAX_PAGES:
                        return False
                return True

            unfinished = None if since is not None or dry_run else self._unfinished()
            if (unfinished is None or taken(unfinished)) and taken(self._begin(since=since)):
                self._retract(report, before=began)
        return report

    def _retract(self, report: ImportReport, *, before: float) -> None:
        """Take back what was deleted there, of decisions that are still open. before: when it was imported."""
        known = [one for one in self._standing() if one.received_at < before]
        gone = self.source.gone(known) if known else set()
        lost = [one for one in known if one.facts["id"] in gone]
        name = {one.feedback_id: one.facts.get("name", "") for one in lost}
        doubtful = len(lost) >= DOUBTFUL and 2 * len(lost) > len(known)
        if doubtful or report.dry_run:
            for one in lost:
                report.count(name[one.feedback_id], "kept" if doubtful else "retracted")
            return
        now = self.clock()
        group = [retraction_of(one, settings=self.settings, now=now) for one in lost]
        for one, reply in zip(lost, self.store.add_feedback(group) if group else (), strict=True):
            result = _result(reply, replaces=False)
            report.count(name[one.feedback_id], "retracted" if result == "imported" else result)
        if group:
            self._on_new()

    def _standing(self) -> list[Imported]:
        """What was imported from this place, of open decisions, and stands: the last vote of each rater there."""
        with self.store.database.read() as connection:
            imports = open_imports(connection, raters=importer_raters(self.source.name))
        last = {(one.decision_id, one.source, one.rater, one.kind): one for one in imports}
        ours = [one for one in last.values() if one.facts.get("from") == self.source.place and one.kind != "event"]
        return [one for one in ours if one.value is not None][-MOST_ASKED:]

    def _unfinished(self) -> Walk | None:
        """The walk that an earlier import did not end."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return Walk(**self._position()["walk"])
        return None

    def _position(self) -> dict[str, Any]:
        with self.store.database.read() as connection:
            return position_of(connection, self.cursor)

    def _begin(self, *, since: float | None) -> Walk:
        now = self.clock()
        if since is not None:
            return Walk(since=since, until=now)
        position = self._position()
        lookback = max(self.section.lookback_s, self.settings.learning.wait_s)
        last = position.get("since")
        # What was decided before that is closed: nothing can be learned of it.
        first = now - self.settings.learning.expire_s
        return Walk(since=(float(last) if isinstance(last, int | float) else first) - lookback, until=now)

    def _take(self, page: SourcePage, *, walk: Walk, report: ImportReport) -> None:
        """Keep what a page brings, and move the cursor behind it."""
        report.pages += 1
        report.unreadable += page.unreadable
        candidates = self._candidates(page.judgements, report)
        group = [item for _, item in candidates]
        with self.store.database.read() as connection:
            voted = votes_of(connection, [item.decision_id for item in group]) if group else set()
        if report.dry_run:
            for judgement, item in candidates:
                report.count(judgement.name, "replaced" if _vote(item) in voted else "imported")
            return
        now = self.clock()
        position: dict[str, Any] = {"since": walk.until} if walk.mark is None else {"walk": asdict(walk)}

        def move(connection: Connection, _moves: Moves | None = None) -> None:
            set_position(connection, self.cursor, to=position, now=now)

        if not group:
            with self.store.database.write() as connection:
                move(connection)
            return
        results = self.store.add_feedback(group, beside=move)
        for (judgement, item), result in zip(candidates, results, strict=True):
            outcome = _result(result, replaces=_vote(item) in voted)
            if outcome in ("imported", "late", "replaced"):
                voted.add(_vote(item))
            report.count(judgement.name, outcome)
        if any(isinstance(result, Receipt) and not result.duplicate for result in results):
            self._on_new()

    def _candidates(self, judgements: Sequence[Judgement], report: ImportReport) -> list[tuple[Judgement, Feedback]]:
        """The judgements that are about a decision, each as feedback, in the order made; the others are counted."""
        known = []
        for judgement in sorted(judgements, key=lambda one: (one.at, one.id)):
            if is_mapped(judgement, settings=self.section):
                known.append(judgement)
            else:
                report.count(judgement.name, "unmapped", example=judgement.name)
        with self.store.database.read() as connection:
            joins = joined(connection, known, tenant=self.section.tenant) if known else []
        candidates: list[tuple[Judgement, Feedback]] = []
        for judgement, decision_id, missing in joins:
            if decision_id is None:
                report.count(judgement.name, missing, example=_links(judgement))
                continue
            try:
                # In the order in which they were made there, which may decide whose vote stands.
                now = self.clock() + 1e-6 * len(candidates)
                item = feedback_of(
                    judgement,
                    decision_id=decision_id,
                    importer=self.source.name,
                    place=self.source.place,
                    settings=self.settings,
                    now=now,
                )
            except InvalidInput as error:
                report.count(judgement.name, "refused", example=str(error))
            else:
                candidates.append((judgement, item))
        return candidates

    @contextlib.contextmanager
    def _alone(self, *, keep: bool) -> Iterator[Callable[[], None]]:
        """Hold the lease of this cursor, where anything is kept. Raises NotReady where another import has it."""
        if not keep:
            yield lambda: None
            return
        lease = Lease(database=self.store.database, name=f"import-{sha256(self.cursor.encode()).hexdigest()[:40]}")
        holder = lease_holder("import")

        def prolong() -> None:
            if not lease.acquire(holder=holder, lease_s=LEASE_S):
                raise NotReady(
                    f"another process imports from {self.cursor}",
                    field=f"importers.{self.source.name}",
                    remedy="let one process import from one place; after a kill it may take 15 minutes",
                )

        prolong()
        try:
            yield prolong
        finally:
            lease.release(holder=holder)


def _vote(item: Feedback) -> tuple[str, str, str | None, str]:
    return item.decision_id, item.source, item.rater, item.kind


def _links(judgement: Judgement) -> str:
    return ", ".join(f"{kind} {value}" for kind, value in judgement.links[:2]) or judgement.id


def _result(reply: Receipt | RagBanditError, *, replaces: bool) -> str:
    """What became of a feedback."""
    if isinstance(reply, Conflict):  # this very judgement was joined with another decision before
        return "duplicate"
    if isinstance(reply, RagBanditError):  # its decision has left the database since it was looked up
        return "archived"
    if reply.duplicate:
        return "duplicate"
    if reply.late:
        return "late"
    return "replaced" if replaces else "imported"
