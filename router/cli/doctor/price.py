"""Checks of what an answer costs: whether another `reward.weight` is proposed, and whether the arms differ at all."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from ragbandit.router.cli.doctor.database import opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, warning
from ragbandit.router.learning.monitoring.costs import costs_alike
from ragbandit.router.learning.monitoring.price import LEAST_LABELS, implied, means_of, price_of, proposal, remedy
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.tables import updates

#: newest rows of the ledger that are read
MOST_ROWS: Final = 20_000
_CHECK: Final = "reward.weight"


def weight(installation: Installation) -> Sequence[Finding]:
    """The weight against half the slope from the cheapest arm to the dearest, of configured arms with LEAST_LABELS."""
    settings, of = installation.settings, updates.c
    rows = select(of.arm, of.quality, of.cost, of.sample_weight, of.propensity).where(
        of.policy == settings.policy.label,
        of.arm.in_(settings.arms),
        of.source == "explicit",
        of.preset != "reward",  # whose cost is inside
        of.terms == canonical(dict(settings.reward.cost)),  # other prices are another unit of cost
        of.propensity < 1.0,  # where no other arm was there the question may be of a kind of its own
    )
    with opened(settings) as database, database.read() as connection:
        means = means_of(map(tuple, connection.execute(rows.order_by(of.seq.desc()).limit(MOST_ROWS))))
    known = [one for one in means if one.labels >= LEAST_LABELS]
    if len(known) < 2:
        labels = {str(one.arm): one.labels for one in means}
        counted = ", ".join(f"{arm} {labels.get(arm, 0.0):.0f}" for arm in settings.arms)
        return [fine(_CHECK, f"compared with the ledger once two arms have {LEAST_LABELS} labels: {counted}")]
    price = price_of(known, weight=settings.reward.weight)
    if price.verdict is not None:
        return [warning(_CHECK, proposal(price), means=implied(price), remedy=remedy(price))]
    return [fine(_CHECK, f"{proposal(price)}; {implied(price)}")]


def costs(installation: Installation) -> Sequence[Finding]:
    """Whether the newest answers tell the arms apart by their cost."""
    settings = installation.settings
    with opened(settings) as database:
        alike = costs_alike(database, reward=settings.reward, arms=settings.arms)
    if alike is None:
        return [fine("costs", "no sign that all arms cost the same")]
    means = "no price of an answer moves the choice between the arms"
    remedy = "say with `outcome_of`, `steps` or `cost` what an answer took, or set reward.cost to what is measured"
    return [warning("costs", alike, means=means, remedy=remedy)]
