"""Report of an import: what became of the judgements, by name."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: what may become of one judgement, each in a few words
OUTCOMES: Final[Mapping[str, str]] = {
    "imported": "new feedback",
    "replaced": "an edited judgement, in place of an earlier one of the same rater",
    "duplicate": "read before",
    "late": "kept, but its decision was closed before: not learned",
    "retracted": "deleted there, and taken back here",
    "kept": "deleted there, with most others at once, which may be a fault: not taken back",
    "unmatched": "about no decision that is known here",
    "ambiguous": "about a trace of several decisions, or decisions of several tenants",
    "archived": "its decision is in the archive",
    "unmapped": "its name stands in no importers.*.names",
    "refused": "its value cannot be used",
}
#: names that are counted apart, and examples of each result that are shown
_MAX_NAMES: Final = 200
_EXAMPLES: Final = 3
_OTHERS: Final = "(other names)"


@dataclass(kw_only=True, slots=True)
class ImportReport:
    """Counts of one import."""

    source: str
    dry_run: bool
    pages: int = 0
    #: entries that had not the shape of a judgement
    unreadable: int = 0
    by_name: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: result -> a few ids, or reasons for refused ones
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def count(self, name: str, result: str, *, example: str | None = None) -> None:
        """One judgement of this name came to this, one of OUTCOMES."""
        assert result in OUTCOMES, result
        known = name if name in self.by_name or len(self.by_name) < _MAX_NAMES else _OTHERS
        self.by_name[known][result] += 1
        some = self.examples[result]
        if example is not None and len(some) < _EXAMPLES and example not in some:
            some.append(example[:200])

    def total(self, result: str) -> int:
        """All of this result."""
        return sum(counts[result] for counts in self.by_name.values())

    @property
    def seen(self) -> int:
        """All judgements that were looked at."""
        return sum(sum(counts.values()) for counts in self.by_name.values())

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "source": self.source,
            "dry_run": self.dry_run,
            "pages": self.pages,
            "judgements": self.seen,
            "unreadable": self.unreadable,
            "names": {name: dict(counts) for name, counts in sorted(self.by_name.items())},
            "examples": {result: list(some) for result, some in self.examples.items() if some},
        }
