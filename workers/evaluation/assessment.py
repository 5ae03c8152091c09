"""The advice as it is shown: one sentence and one number, then pictures, then tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ragbandit.router.comparison import NOT_KNOWN, Comparison, Difference, words
from ragbandit.router.comparison.assessment import Assessment, NumberTable
from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.learning.monitoring.price import implied, in_words, proposal
from ragbandit.router.offline.advice import Advice
from ragbandit.router.offline.gains import CONFIDENCE, ROUTING
from ragbandit.router.offline.simulation.measure import while_learning
from ragbandit.shared.formats import NOTHING, counted, decimal, money, number, percent
from ragbandit.shared.types import ArmName

TITLE: Final = "Is routing worth it?"


def assessment(advice: Advice, *, details: Mapping[str, Any], notes: Sequence[str], settings: Settings) -> Assessment:
    """What `advise` shows. details: facts about the run and about what was applied."""
    actions = tuple(_actions(advice, details))
    if advice.verdict == "wrong log":
        return Assessment(
            title=TITLE,
            sentence=advice.sentence,
            number=advice.verdict,
            about="no verdict",
            missing=advice.missing,
            progress=advice.progress,
            actions=actions,
            notes=tuple(notes),
        )
    best = advice.comparisons[0]
    is_known = advice.verdict != "not enough"
    return Assessment(
        title=TITLE,
        sentence="; ".join([advice.sentence, *_asked(details)]),
        number=words.signed(best.reward.estimate) if is_known else NOT_KNOWN,
        about=f"reward a question that routing adds to {best.second}; {reward_in_words(settings.reward, best.unit)}",
        verdict=best.verdict if is_known else NOT_KNOWN,
        comparisons=advice.comparisons,
        frontier=advice.frontier,
        kinds=advice.kinds,
        curves=() if advice.curve is None else (advice.curve,),
        missing=advice.missing,
        progress=advice.progress,
        actions=actions,
        tables=tuple(_tables(advice)),
        notes=(*_method(advice), *_prices(advice, settings.reward), *notes),
        cost_unit=best.unit,
        facts=dict(_cards(advice, details)),
    )


def reward_in_words(reward: RewardSettings, unit: str) -> str:
    return f"reward = right answers - {number(reward.weight)} x {'units of cost' if unit == 'cost' else unit}"


def _actions(advice: Advice, details: Mapping[str, Any]) -> Iterator[str]:
    if advice.verdict == "wrong log":
        yield "ragbandit replay shows the draws of each arm"
    elif "incumbent" in details:
        yield f"policy.incumbent: {details['incumbent']}"
    elif advice.verdict == "route":
        yield (
            "the same command with --apply starts the policy with these outcomes, "
            f"and writes {advice.best} as policy.incumbent and as the arm of a holdback"
        )
    elif advice.verdict == "fix":
        yield f"answer every question with {advice.best}"
    else:
        yield "add what is missing, then ask again; answers that are stored cost nothing"


def _cards(advice: Advice, details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "judged", advice.on.removeprefix("on ")
    if details.get("dollars"):
        yield "new answers cost", money(details["dollars"], "dollars")
    if details.get("unjudged"):
        yield "not judged", f"{counted(details['unjudged'], 'question')}, since the judge gave no score"
    if "added" in details:
        yield "learned", f"{counted(details['added'], 'row')}, {details['known']:,} known before"


def _asked(details: Mapping[str, Any]) -> Iterator[str]:
    """How many questions were asked, and why not all."""
    if "of" in details:
        asked, of = details["answered"] + details["unjudged"], details["of"]
        yield (
            f"{asked:,} of {counted(of, 'question')} were asked: {details['ended']}" if asked < of else "all were asked"
        )


def _tables(advice: Advice) -> Iterator[NumberTable]:
    best, unit = advice.comparisons[0], advice.comparisons[0].unit
    cost = "cost a question" if unit == "cost" else f"{unit} a question"
    rows: list[tuple[str, ...]] = [(f"{ROUTING} (the policy after learning)", *_means(best, first=True), "", "")]
    for one in advice.comparisons:
        share = advice.shares.get(ArmName(one.second.removeprefix("always ")))
        rows.append((one.second, *_means(one, first=False), gain_in_words(one.reward), percent_or_nothing(share)))
    heads = ("way of answering", "reward a question", "quality", cost, "routing adds to the reward", "routed to it")
    yield NumberTable(title="Routing and always one arm", columns=heads, rows=tuple(rows))
    prices = [point for point in advice.frontier if point.kind == "price"]
    if prices:
        prices_heads = (f"weight of cost (reward for one {unit.removesuffix('s')})", "quality", cost)
        cells = ((point.name.removeprefix("weight "), decimal(point.quality), number(point.cost)) for point in prices)
        yield NumberTable(title="Routing at other weights of cost", columns=prices_heads, rows=tuple(cells))


def _means(comparison: Comparison, *, first: bool) -> tuple[str, str, str]:
    reward, quality, cost = (
        part.first if first else part.second for part in (comparison.reward, comparison.quality, comparison.cost)
    )
    return decimal(reward), decimal(quality), number(cost)


def percent_or_nothing(share: float | None) -> str:
    return NOTHING if share is None else percent(round(share, 2))


def gain_in_words(gain: Difference) -> str:
    return f"{words.signed(gain.estimate)} ({words.between(gain)})" if gain.is_known else NOT_KNOWN


def _method(advice: Advice) -> Iterator[str]:
    best, folds = advice.comparisons[0], advice.ask.folds
    shared = "" if best.confidence == CONFIDENCE else ", so that all looks of the run share an error of 5 %"
    yield f"intervals of {percent(round(best.confidence, 4))}{shared}; {best.design}"
    yield f"each question was decided by a policy that had learned the other {folds - 1} of {folds} parts of them"
    if advice.control is not None:
        yield f"control: with the outcomes permuted routing adds {gain_in_words(advice.control)}: that is chance"
    if advice.cold is not None:
        yield f"from cold, {percent(advice.ask.labelled)} labelled, {while_learning(advice.cold)}"


def _prices(advice: Advice, reward: RewardSettings) -> Iterator[str]:
    # With the weight set, the sentences do not propose this command.
    yield from in_words(reward.model_copy(update={"weight": reward.weight}))
    if advice.price is not None:
        yield implied(advice.price)
        yield proposal(advice.price, reward=reward)
