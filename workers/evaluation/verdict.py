"""Output of `advise`: one screen of 80 columns and 24 lines; with --all, every number and how it was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import fitting
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import implied, in_words, proposal
from ragbandit.router.offline.advice import CONFIDENCE, Advice, Standing
from ragbandit.router.offline.replay.plan import EstimateWithInterval
from ragbandit.router.offline.simulation.measure import while_learning
from ragbandit.shared.formats import number
from ragbandit.shared.types import ArmName

#: maximum number of arms on one screen if their names need several lines
_LONG_ARMS: Final = 3
#: maximum number of notes on one screen
_NOTES: Final = 3


def print_advice(
    advice: Advice,
    *,
    facts: Mapping[str, Any],
    notes: Sequence[str],
    settings: Settings,
    console: Console,
    every: bool = False,
) -> None:
    """Print the verdict and its evidence. every: also print all arms, intervals, the frontier and the method."""
    console.print(escape(advice.sentence), highlight=False, style="bold", soft_wrap=every)
    if advice.verdict == "wrong log":
        console.print("give the probabilities that the arms were drawn with; `ragbandit replay` shows each arm")
        return
    cost = "steps" if list(settings.reward.cost) == ["steps"] else "cost"
    policy, *fixed = advice.standings
    shown = fixed if every else _most_rewarding(fixed, width=console.width)
    console.print(fitting(_standings(advice, [policy, *shown], cost=cost, every=every), console=console))
    if every and advice.frontier:
        frontier = Table("weight of cost", "quality", "cost")
        for point in advice.frontier:
            frontier.add_row(escape(point.name), _value(point.quality), _value(point.cost))
        console.print(frontier)
    prices = in_words(settings.reward)
    lines = [*_evidence(advice), *prices] if every else prices[:1]
    if advice.price is not None:
        if every or len(advice.price.arms) <= _LONG_ARMS:
            lines.append(implied(advice.price))
        lines.append(proposal(advice.price, reward=settings.reward))
    if every:
        lines += [f"{key.replace('_', ' ')}: {_fact(fact)}" for key, fact in facts.items()]
    else:
        lines += _facts(facts)
    lines += [f"note: {note}" for note in (notes if every else notes[:_NOTES])]
    if not every:
        arms = f"{len(fixed) - len(shown)} more arms, " if len(shown) < len(fixed) else ""
        hidden_notes = f"{len(notes) - _NOTES} more notes, " if len(notes) > _NOTES else ""
        lines.append(f"--all prints {arms}{hidden_notes}intervals, other prices, and how this was measured")
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=every)


def _most_rewarding(fixed: Sequence[Standing], *, width: int) -> list[Standing]:
    count = 6 if max(len(arm.name) for arm in fixed) <= width - 62 else _LONG_ARMS  # width of the other columns
    first = sorted(fixed, key=lambda arm: ("best fixed" not in arm.roles, not arm.roles, -arm.reward.value))[:count]
    return [arm for arm in fixed if arm in first]


def _standings(advice: Advice, standings: Sequence[Standing], *, cost: str, every: bool) -> Table:
    table = Table(f"{advice.questions:,} questions", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for title in ("reward", "gain of routing", "quality", cost, "routed"):
        table.add_column(title, justify="right")
    shares = advice.standings[0].shares
    for standing in standings:
        roles = f" ({', '.join(standing.roles)})" if every and standing.roles else ""
        is_policy = standing.gain is None
        table.add_row(
            escape(f"{standing.name} after learning" if is_policy else standing.name + roles),
            _value(standing.reward) if every else f"{standing.reward.value:.3f}",
            "" if standing.gain is None else _value(standing.gain, sign="+"),
            f"{standing.quality.value:.3f}",
            number(standing.cost.value),
            "" if is_policy else f"{100 * shares[ArmName(standing.name.removeprefix('always '))]:.0f}%",
        )
    return table


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    if "of" in facts:
        count = f"{facts['answered']} of {facts['of']} questions were asked"
        yield f"{count}, for {number(facts['dollars'])} dollars now: {facts['ended']}"
    if facts.get("unjudged"):
        yield f"{facts['unjudged']} questions count for no arm: the judge gave no score"
    if "added" in facts:
        yield f"{facts['added']} rows were learned, {facts['known']} were known (ledger {facts['label']})"
    if "incumbent" in facts:
        yield f"policy.incumbent: {facts['incumbent']}"


def _evidence(advice: Advice) -> Iterator[str]:
    folds = advice.ask.folds
    is_shared = advice.ask.confidence != CONFIDENCE
    shared = f", of gains {advice.ask.confidence:.1%}: the looks share 5 %" if is_shared else ""
    yield f"routed: share of questions sent to the arm; intervals of 95 %{shared}"
    is_full = advice.by == "every arm"
    method = "the outcome of every arm is known" if is_full else "doubly robust estimates of the logged draws"
    yield f"each question was asked of a policy that had learned the other {folds - 1} of {folds} parts; {method}"
    if advice.control is not None:
        yield f"control: with the outcomes permuted the policy gains {_value(advice.control, sign='+')}: that is chance"
    if advice.cold is not None:
        yield f"from cold, {advice.ask.labelled:.0%} labelled, {while_learning(advice.cold)}"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} after {count} questions" for key, count in value.items()) or "none"
    if value is None:
        return "not by this command"
    return number(value) if isinstance(value, float) else str(value)


def _value(value: EstimateWithInterval, *, sign: str = "") -> str:
    text = f"{value.value:{sign}.3f}"
    if value.low is None or value.high is None:
        return text
    return f"{text} ({value.low:{sign}.3f} to {value.high:{sign}.3f})"
