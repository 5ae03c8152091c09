"""Screening: which feedback of a decision may be learned, before the closing rule and the reward see it.

Left out are: what an operator has excluded, what a rater gave beyond `learning.rater_per_day`, what has the weight 0 by
`learning.sources`, and votes that were replaced or taken back. What is left out was there in time: it is not late. All
of it follows from stored rows, so that learning again leaves the same feedback out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.ratings.raters import is_retraction, standing
from ragbandit.router.learning.sources.origin import IMPORTED_RATER, KeyDirectory, Origin, factor, matches
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.quarantines import Quarantine, RaterDay, first_beyond, quarantines_of
from ragbandit.shared.types import Feedback, JoinedDecision


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """A decision with the feedback that may be learned."""

    joined: JoinedDecision
    #: what was left out, though it came in time
    left_out: tuple[Feedback, ...] = ()
    #: factor on the weight of a feedback, by its id; 1 where it is not named
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether feedback is there, and none that can be learned."""
        return bool(self.left_out) and all(item.value is None for item in self.joined.feedback)


class Screening:
    """Filter of the feedback that one ledger learns from."""

    def __init__(self, ledger: Ledger, *, settings: Settings) -> None:
        self.ledger, self.settings = ledger, settings
        self._keys = KeyDirectory()
        self._quarantines: tuple[Quarantine, ...] = ()
        #: (received_at, id) of the first feedback beyond the cap, by rater and day; of the decisions looked up last
        self._beyond: Mapping[RaterDay, tuple[float, str]] = {}

    def refresh(self) -> None:
        """Read what others may have changed: keys and exclusions."""
        self._keys = KeyDirectory(KeyStore(self.ledger.database).listed())
        self._quarantines = tuple(quarantines_of(self.ledger.database, new_label=self.ledger.label))

    def look_up(self, joined: Sequence[JoinedDecision]) -> None:
        """Read which raters of these decisions have given more than a day's cap, before they are screened."""
        days = {day for one in joined for item in one.feedback if (day := _capped_day(item)) is not None}
        cap = self.settings.learning.rater_per_day
        self._beyond = first_beyond(self.ledger.database, days, cap=cap) if days and cap else {}

    def screened(self, joined: JoinedDecision) -> Screened:
        """The decision with what may be learned of its feedback. It must have been looked up."""
        kept: list[Feedback] = []
        factors: dict[str, float] = {}
        for item in joined.feedback:
            origin = self._keys.origin(item, tenant=joined.decision.query.tenant)
            if self._is_excluded(item, origin) or self._is_beyond_cap(item):
                continue
            weight = factor(item, origin=origin, configured=self.settings.learning.sources)
            if weight > 0.0 or is_retraction(item):
                kept.append(item)
            if weight != 1.0:
                factors[item.id] = weight
        stands = self._standing(joined, kept)
        left = tuple(item for item in joined.feedback if item.id not in {one.id for one in stands})
        remaining = replace(joined, feedback=tuple(stands)) if left else joined
        return Screened(joined=remaining, left_out=left, factors=factors)

    def _is_excluded(self, item: Feedback, origin: Origin) -> bool:
        return any(one.covers(item.received_at) and matches(one.source, origin) for one in self._quarantines)

    def _is_beyond_cap(self, item: Feedback) -> bool:
        day = _capped_day(item)
        first = None if day is None else self._beyond.get(day)
        return first is not None and (item.received_at, item.id) >= first

    def _standing(self, joined: JoinedDecision, items: Sequence[Feedback]) -> list[Feedback]:
        """The judgements that stand, and events without a value; with a window, by what came in it."""
        wait_s = self.settings.learning.wait_s
        end = joined.decision.made_at + wait_s
        in_time = [item for item in items if wait_s == 0 or item.received_at <= end]
        votes = [item for item in in_time if item.value is not None or is_retraction(item)]
        stands = {item.id for item in standing(votes)}
        gone = {item.id for item in votes if item.id not in stands}
        return [item for item in items if item.id not in gone]


def _capped_day(item: Feedback) -> RaterDay | None:
    """The rater and day that a feedback counts for.

    None without a rater's name, and for what processes of the operator write: the judge, checks by code, imports.
    """
    if item.rater is None:
        return None
    if item.api_key is None and (item.source in ("judge", "code") or item.rater.startswith(IMPORTED_RATER)):
        return None
    return RaterDay.of(item)
