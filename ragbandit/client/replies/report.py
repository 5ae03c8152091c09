"""Replies of /v1/report: what the router spent and at what quality, against always one arm."""

from typing_extensions import TypedDict


class ComparisonReply(TypedDict):
    """What was served against always one arm, per question."""

    served: float | None
    """Mean of what was served; null: nothing is known of it."""
    always: float | None
    """The same had always the arm been used, estimated; null, with what follows, where it is not tried enough."""
    difference: float | None
    """`served` - `always`."""
    low: float | None
    """Lower end of its 95 % interval, which holds however often one looks."""
    high: float | None
    """Upper end of the interval."""
    draws: int
    """Questions that drew the arm."""
    seen: int
    """Of these: with an outcome (costs), or rated (quality)."""
    effective_rows: float
    """Effective rows of the comparison: how many rows of equal weight it is worth."""
    missing: str | None
    """Why there is no interval, in words; null where there is one."""


class LineReply(TypedDict):
    """One line of a report."""

    name: str
    """What it is about."""
    against: str
    """The arm that it is compared with."""
    questions: int
    """Questions that could have had this arm."""
    cost: ComparisonReply
    """Cost per question, in the report's unit."""
    quality: ComparisonReply
    """Quality of the rated answers, per question."""
    verdict: str
    """better, as good or worse, then cheaper, same cost or dearer, as "as good, cheaper"; or "cannot tell yet"."""
    missing: str | None
    """Why there is no verdict, and how many more questions it takes; null where there is one."""
    saved: str
    """What was saved in all, in words."""
    words: str
    """The verdict in words, with its numbers."""


class ReportReply(TypedDict):
    """A report of a time."""

    sentence: str
    """All of it in one sentence."""
    since: float
    """Beginning of the time, seconds since 1970."""
    until: float
    """End of the time."""
    tenant: str | None
    """The tenant that it is about; null: all."""
    unit: str
    """What costs are in: dollars; where none were reported steps or seconds."""
    why: str | None
    """Why it is compared with this arm; null where there is none to compare with."""
    total: LineReply | None
    """All questions; null where nothing can be compared."""
    costs: dict[str, ComparisonReply]
    """Dollars, steps and seconds over these questions, as far as outcomes tell them."""
    arms: list[LineReply]
    """The same against each arm, the most used first."""
    tenants: list[LineReply]
    """By tenant, the largest first; empty where there is one alone."""
    prices: list[LineReply]
    """By price."""
    weeks: list[LineReply]
    """By week, which begin on Mondays, UTC."""
    left_out: dict[str, int]
    """Questions that are in no line, by the reason."""
    notes: list[str]
    """How the numbers are meant, and what is not among them."""
    learning: str | None
    """The state of learning: a word, why, and what to do; null where it is not known."""
