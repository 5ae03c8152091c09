"""What an audit has checked, and what did not agree."""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

#: counters of what did not agree
Counter = Literal[
    "counter_mismatches",
    "deep_mismatches",
    "ledger_mismatches",
    "propensity_mismatches",
]

#: mismatches that are described; all are counted
MOST_NAMED: Final = 20


@dataclass(kw_only=True, slots=True)
class Verdict:
    """Counts of what was checked and of what did not agree. `ok` is the exit code's question."""

    decisions: int = 0
    #: of all, the ones that were not drawn by us: their draws cannot be made again
    made_elsewhere: int = 0
    #: of all, the ones that were drawn by their ids alone after the store had a secret for seeds
    seeded_by_id: int = 0
    #: seed, drawn arm, logged propensity, sum or floor of the pmf
    propensity_mismatches: int = 0
    updates: int = 0
    #: gaps in seq, rewards that do not follow from their parts
    ledger_mismatches: int = 0
    #: updates that the policy refuses, live as in replay
    refused: int = 0
    replay_sha256: str = ""
    live_sha256: str = ""
    live_version: str = ""
    #: where the two sha256 differ by no more than rounding: the largest relative difference of the policies' arrays
    within_rounding: float | None = None
    #: with deep: decisions whose pmf was made again by the policy version that made it
    deep_decisions: int = 0
    deep_mismatches: int = 0
    #: with deep: decisions of ours that were imported, by versions whose snapshots are in another store
    not_checkable: int = 0
    #: with deep: versions whose arrays are not kept any more, so that only their decisions' pmfs are compared
    not_compared: int = 0
    #: decisions whose texts, or texts and features, were erased on request
    erased: int = 0
    #: updates of the live policy that cannot be learned again, since what they were learned from was erased
    not_relearnable: int = 0
    #: updates that an earlier release archived: their rows are not here, and are not checked
    archived: int = 0
    #: counters that differ from what is in the tables
    counter_mismatches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No difference anywhere, but for rounding and for what was erased or archived."""
        differences = sum(getattr(self, counter) for counter in get_args(Counter))
        same = self.replay_sha256 == self.live_sha256 or self.within_rounding is not None
        same = same or self.not_relearnable > 0 or self.archived > 0
        return differences == 0 and same and not self.broken

    @property
    def broken(self) -> bool:
        """A snapshot that is needed could not be read."""
        return self.live_version != "" and self.live_sha256 == ""

    def fail(self, counter: Counter, text: str) -> None:
        """Count a mismatch, and name it."""
        setattr(self, counter, getattr(self, counter) + 1)
        self.note(text)

    def note(self, text: str) -> None:
        """Name something, up to a number that a person reads."""
        if len(self.notes) < MOST_NAMED:
            self.notes.append(text)
