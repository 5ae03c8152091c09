"""Screening: which feedback of a decision may be learned, before the closing rule and the reward see it.

Left out are: what an operator has quarantined, what is held, what has the weight 0 by `learning.sources`, and votes
that were replaced or taken back. What is left out was there in time: it is not late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.ratings.raters import is_retraction, standing
from ragbandit.router.learning.sources.influence import Influence, InfluenceShare
from ragbandit.router.learning.sources.origin import IMPORTED_RATER, KeyDirectory, Origin, factor, matches
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.ledgers.held_feedback import judged_lately
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.quarantines import Quarantine, quarantines_of
from ragbandit.router.storage.rows.held_rows import HeldRow, states_of
from ragbandit.shared.types import Feedback, JoinedDecision


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """A decision with the feedback that may be learned."""

    joined: JoinedDecision
    #: what was left out, though it came in time
    left_out: tuple[Feedback, ...] = ()
    #: of these, what has to be noted as held
    to_hold: tuple[HeldRow, ...] = ()
    #: all that is learnable of it is held for its influence: it is not one that nobody has judged
    is_held: bool = False
    #: factor on the weight of a feedback, by its id; 1 where it is not named
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether feedback is there, and none that can be learned."""
        return bool(self.left_out) and all(item.value is None for item in self.joined.feedback)


class Screening:
    """Who may teach one ledger, at its end."""

    def __init__(self, ledger: Ledger, *, settings: Settings) -> None:
        self.ledger, self.settings = ledger, settings
        self._keys = KeyDirectory()
        self._quarantines: tuple[Quarantine, ...] = ()
        self._influence = Influence(settings.learning.influence)
        #: the last update that the window has seen
        self._seen = -1
        #: feedback that was held -> whether it was released; of the decisions looked at last
        self._held: dict[str, bool] = {}

    def refresh(self, *, last_seq: int) -> None:
        """Read what others may have changed: keys, quarantines, and the window where the ledger has grown."""
        self._keys = KeyDirectory(KeyStore(self.ledger.database).listed())
        self._quarantines = tuple(quarantines_of(self.ledger.database, new_label=self.ledger.label))
        settings = self.settings.learning.influence
        if self._seen == last_seq or not settings.enabled:
            return
        self._influence, self._seen = Influence(settings), last_seq
        for update in judged_lately(self.ledger, limit=settings.window):
            self._influence.add(self._parts(update.feedback, tenant=update.tenant, weight=update.weight), at=update.at)

    def look_up(self, joined: Sequence[JoinedDecision]) -> None:
        """Find out what is held of these decisions, before they are screened."""
        fed = [one.decision.id for one in joined if one.feedback]
        with self.ledger.database.read() as connection:
            self._held = states_of(connection, fed, label=self.ledger.label) if fed else {}

    def screened(self, joined: JoinedDecision) -> Screened:
        """The decision with what may be learned of its feedback. It must have been looked up."""
        kept: list[Feedback] = []
        rows: list[HeldRow] = []
        factors: dict[str, float] = {}
        is_held = False
        for item in joined.feedback:
            origin = self._keys.origin(item, tenant=joined.decision.query.tenant)
            released = self._held.get(item.id)
            banned = None if released else self._quarantine_of(item, origin)
            if banned is not None:
                if released is None:
                    rows.append(_row(item, source=banned.source, reason=f"quarantine {banned.number}"))
            elif released is False:
                is_held = True
            else:
                weight = factor(item, origin=origin, configured=self.settings.learning.sources)
                if weight > 0.0 or is_retraction(item):
                    kept.append(item)
                if weight != 1.0:
                    factors[item.id] = weight
        stands = self._standing(joined, kept)
        left = tuple(item for item in joined.feedback if item.id not in {one.id for one in stands})
        valued = any(item.value is not None for item in stands)
        remaining = replace(joined, feedback=tuple(stands)) if left else joined
        return Screened(
            joined=remaining, left_out=left, to_hold=tuple(rows), is_held=is_held and not valued, factors=factors
        )

    def without_excess(self, screened: Screened, *, used: Sequence[Feedback], weight: float) -> Screened | None:
        """The decision without feedback whose sources have more than their caps; None where they have not.

        used: the feedback that makes its reward; weight: rows that it counts as.
        """
        if not self.settings.learning.influence.enabled or not used:
            return None
        tenant = screened.joined.decision.query.tenant
        rows = list(screened.to_hold)
        for item, part in zip(used, self._parts(used, tenant=tenant, weight=weight), strict=True):
            if item.id not in self._held:  # what was released counts in the window, and is not held again
                over = self._influence.over(part, at=max(one.received_at for one in used))
                if over is not None:
                    rows.append(_row(item, source=over, reason="influence"))
        if len(rows) == len(screened.to_hold):
            return None
        gone = {row.feedback_id for row in rows}
        left = tuple(item for item in screened.joined.feedback if item.id not in gone)
        return replace(
            screened,
            joined=replace(screened.joined, feedback=left),
            left_out=(*screened.left_out, *(item for item in screened.joined.feedback if item.id in gone)),
            to_hold=tuple(rows),
            is_held=all(item.value is None for item in left),
        )

    def learned(self, used: Sequence[Feedback], *, tenant: str, weight: float, seq: int) -> None:
        """An update is made of this feedback."""
        self._seen = seq
        if used and self.settings.learning.influence.enabled:
            parts = self._parts(used, tenant=tenant, weight=weight)
            self._influence.add(parts, at=max(item.received_at for item in used))

    def forget(self) -> None:
        """The window is not to be trusted: what was to be learned was refused."""
        self._seen = -1

    def _parts(self, used: Sequence[Feedback], *, tenant: str, weight: float) -> list[InfluenceShare]:
        share = weight / max(1, len(used))
        return [
            InfluenceShare(
                origin=self._keys.origin(item, tenant=tenant),
                weight=share,
                own=item.api_key is None
                and item.source in ("judge", "code")
                and not (item.rater or "").startswith(IMPORTED_RATER),
            )
            for item in used
        ]

    def _quarantine_of(self, item: Feedback, origin: Origin) -> Quarantine | None:
        return next(
            (one for one in self._quarantines if one.covers(item.received_at) and matches(one.source, origin)), None
        )

    def _standing(self, joined: JoinedDecision, items: Sequence[Feedback]) -> list[Feedback]:
        """The judgements that stand, and events without a value; with a window, by what came in it."""
        wait_s = self.settings.learning.wait_s
        end = joined.decision.made_at + wait_s
        in_time = [item for item in items if wait_s == 0 or item.received_at <= end]
        votes = [item for item in in_time if item.value is not None or is_retraction(item)]
        stands = {item.id for item in standing(votes)}
        gone = {item.id for item in votes if item.id not in stands}
        return [item for item in items if item.id not in gone]


def _row(item: Feedback, *, source: str, reason: str) -> HeldRow:
    return HeldRow(feedback_id=item.id, decision_id=item.decision_id, source=source, reason=reason)
