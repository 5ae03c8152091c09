"""Check of the sample ratios: whether draws, outcomes and ratings come to the arms as the log promises."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.cli.doctor.database import opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, warning
from ragbandit.router.learning.monitoring.sample_ratio import lately

_CHECK: Final = "sample ratio"


def even(installation: Installation) -> Sequence[Finding]:
    """The side that the log of the present and the last week favours."""
    settings = installation.settings
    with opened(settings) as database:
        uneven = lately(database, policy=settings.policy.label, now=installation.clock())
    if uneven is None:
        text = "since last week no arm has more draws, outcomes or ratings than the logged probabilities promise"
        return [fine(_CHECK, text)]
    means = "the rows that one arm has differ from the others' by more than chance, so comparisons of arms may be wrong"
    remedy = "the page says what can be corrected, and what cannot"
    return [warning(_CHECK, uneven.sentence, means=means, remedy=remedy)]
