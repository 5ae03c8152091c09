"""The evidence on a version in shadow: its comparison with the champion, computed from the log whenever it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.router.comparison import Comparison
from ragbandit.router.comparison.words import sentence
from ragbandit.router.learning.monitoring.sample_ratio import recent_sample_ratio
from ragbandit.router.reporting.reading import NO_PMF, ReportRows, ReportScope, Sample, read_log
from ragbandit.router.reporting.report import compared_ways, traffic_cost_unit
from ragbandit.router.reporting.words import sample_words
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import PolicyVersion

#: a version is faulty if it gave no usable pmf for at least this share of the decisions, and _LEAST_FAULTS times
_FAULTS: Final = 0.05
_LEAST_FAULTS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The log's evidence about a version since it entered shadow."""

    comparison: Comparison
    """The version compared with the champion."""
    sentence: str
    """The comparison in words."""
    sample: Sample | None
    """The sample that was read; null if every decision was read."""
    left_out: Mapping[str, int]
    """Reason -> number of decisions that the comparison leaves out."""


def evidence_on(database: Database, version: PolicyVersion, *, now: float) -> Evidence | None:
    """Compare a version with the champion; None if the version is not in shadow. Reads at most MOST_ROWS decisions.

    Raises StoreError.
    """
    with database.read() as connection:
        versions = versions_of(connection, base=version.base)
    champion = next((other for other in versions if other.state == "champion"), None)
    if champion is None or version.state != "shadow":
        return None
    rows = read_log(database, ReportScope(label=version.label, since=version.since, until=now, version=version.name))
    uneven = recent_sample_ratio(database, policy=champion.label, now=now)
    alarm = uneven.sentence if uneven is not None and uneven.stage in ("named", "drawn") else None
    names = {"version": version.name, "champion": champion.name}
    comparison = comparison_of(rows, **names, seconds=max(now - version.since, 0.0), alarm=alarm)
    text = sentence(comparison)
    if rows.sample is not None:
        text = f"{text}; {sample_words(rows.sample)}"
    return Evidence(comparison=comparison, sentence=text, sample=rows.sample, left_out=dict(rows.left_out))


def comparison_of(
    rows: ReportRows, *, version: str, champion: str, seconds: float, alarm: str | None = None
) -> Comparison:
    """Compare the pmf of a version with the pmf that was served, by the rewards of the version's ledger.

    seconds: time since the version entered its state. alarm: why the traffic allows no verdict; None if it does
    """
    faults = rows.left_out.get(NO_PMF, 0)
    if alarm is None and faults >= max(_FAULTS * (faults + len(rows.arm)), _LEAST_FAULTS):
        alarm = f"fewer faults: {version} gave no probabilities for {faults:,} of {faults + len(rows.arm):,} decisions"
    assert rows.candidate is not None
    ways: dict[str, Any] = {"names": (version, champion), "first": rows.candidate, "second": rows.pmf}
    comparison, *_ = compared_ways(rows, unit=traffic_cost_unit(rows), seconds=seconds, blocked=alarm, **ways)
    return comparison
