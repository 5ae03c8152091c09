"""The comparison on a warm start's questions, which a report shows next to the live comparison.

A warm start learns a table with the outcomes of every arm. The addition `advice` lets policies decide the questions of
the table that they have not learned. Their comparison with each arm is stored when the service's policy learns the
table. It is never pooled with live traffic, which has other questions and another policy.
"""

from collections.abc import Sequence

from ragbandit.router.comparison import Comparison, Difference, words
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.shared.texts.formats import counted


def _reader(label: str) -> str:
    return f"before_start:{label}"


def keep_comparisons(
    database: Database, comparisons: Sequence[Comparison], *, label: str, weight: float, now: float
) -> None:
    """Store the rewards of the comparisons by paired outcomes. Comparisons of other designs are not stored.

    weight: `reward.weight` of the rewards. Raises StoreError.
    """
    paired = [one for one in comparisons if one.design == "paired outcomes" and one.reward.is_known]
    if not paired:
        return
    rewards = {one.second: [one.reward.estimate, one.reward.low, one.reward.high] for one in paired}
    position = {"weight": weight, "questions": paired[0].questions, "rewards": rewards}
    with database.write() as connection:
        move_position(connection, _reader(label), position=position, now=now)


def before_start(database: Database, live: Comparison, *, label: str, weight: float) -> str | None:
    """The stored comparison with the same arm, and the live one, in a sentence.

    None if no comparison with this arm is stored, or if `reward.weight` has changed. Raises StoreError.
    """
    with database.read() as connection:
        stored = position_of(connection, _reader(label))
    ends = stored.get("rewards", {}).get(live.second)
    if ends is None or stored["weight"] != weight:
        return None
    estimate, low, high = ends
    found = words.estimate_with_interval(Difference(estimate=estimate, low=low, high=high))
    now = "not known yet" if live.reward.low is None else words.interval_words(live.reward)
    on = counted(stored["questions"], "labelled question")
    return f"Before the start, on {on}: {found} reward against {live.second}; live so far: {now}."
