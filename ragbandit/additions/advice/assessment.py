"""The advice as it is shown: one sentence and one number, then pictures, then tables."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragbandit.additions.advice.gains import ROUTING
from ragbandit.additions.advice.verdict import Advice
from ragbandit.additions.evaluation.warm import WarmRows
from ragbandit.router.comparison import CONFIDENCE, words
from ragbandit.router.comparison.assessment import Assessment, NumberTable
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.monitoring.price import FREE, price_words
from ragbandit.router.offline.labels import confusion_table
from ragbandit.shared.texts.formats import counted, decimal, money, number, percent


def advice_assessment(
    advice: Advice,
    *,
    details: Mapping[str, Any],
    notes: Sequence[str],
    incumbent: str | None,
    reward: RewardSettings,
    arms: Sequence[str],
    log: Path | None = None,
    is_live: bool = True,
) -> Assessment:
    """The result of `advise` for people.

    details: facts about the run and about applied changes. arms: names in the order of the settings. log: file that was
    read instead of the store. is_live: whether there is a store.
    """
    common: dict[str, Any] = {
        "title": "Is routing worth it?",
        "sentence": advice.sentence,
        "actions": tuple(_actions(advice, details, incumbent=incumbent, log=log, is_live=is_live)),
        "missing": advice.missing,
    }
    if advice.verdict == "wrong log":
        return Assessment(number=advice.verdict, about="no verdict", notes=tuple(notes), **common)
    best = advice.comparisons[0]
    unit = "units of cost" if best.unit == "cost" else best.unit
    return Assessment(
        number=words.lead_words(best),
        about=f"reward a question over {best.second}; reward = right answers - {number(reward.weight)} x {unit}",
        verdict=best.verdict,
        arms=tuple(arms if {*advice.shares} <= {*arms} else advice.shares),
        comparisons=advice.comparisons,
        frontier=advice.frontier,
        kinds=advice.kinds,
        kinds_of=advice.kinds_of,
        tables=tuple(_tables(advice, unit=unit)),
        notes=(*_method(advice), price_words(reward) or FREE, *notes),
        cost_unit=best.unit,
        facts=dict(_cards(advice, details)),
        **common,
    )


def arm_notes(material: WarmRows, *, incumbent: str | None, configured: Collection[str]) -> list[str]:
    notes = []
    if incumbent is not None:
        notes.append(f"in service policy.harm holds the policy back to {incumbent}; in the comparisons it does not")
    without_rows = [arm for arm in configured if arm not in material.arms]
    if without_rows:
        notes.append(f"nothing is known of {', '.join(without_rows)}: explored as on the first day")
    unconfigured = [arm for arm in material.arms if arm not in configured]
    if unconfigured:
        notes.append(f"never drawn in service, since not configured: {', '.join(unconfigured)}")
    if material.encoded:
        notes.append(f"the features of {material.encoded} rows were made with the configured encoder")
    return notes


def _actions(
    advice: Advice, details: Mapping[str, Any], *, incumbent: str | None, log: Path | None, is_live: bool
) -> Iterator[str]:
    """Next steps, in lines that fit a terminal. Never proposes the same command unchanged."""
    if "incumbent" in details:
        done, *why = details["incumbent"]
        yield from (f"policy.incumbent: {done}", *why)
    if advice.verdict == "wrong log":
        source = "" if log is None else f" --log {shlex.quote(str(log))}"
        yield f"`ragbandit replay{source}` shows the draws of each arm"
    elif advice.verdict == "fix":
        yield f"answer every question with {advice.best}"
    elif advice.verdict == "not enough":
        yield "add what is missing, then ask again: answers that are stored cost nothing"
    elif "incumbent" not in details and incumbent != advice.best:
        yield f"add --apply: a warm start, with {advice.best} as the incumbent and in a holdback"
    elif is_live or "incumbent" in details:
        yield "`ragbandit report` shows what routing earns on live questions"
    else:
        yield "serve questions (`ragbandit up`, or Router.open() in your code), then see `ragbandit report`"


def _cards(advice: Advice, details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "judged", advice.on.removeprefix("on ")
    if "of" in details:
        asked, of = details["answered"] + details["unjudged"], details["of"]
        yield "asked", f"{asked:,} of {counted(of, 'question')}: {details['ended']}" if asked < of else "all questions"
    if details.get("dollars"):
        yield "answers cost", money(details["dollars"], "dollars")
    if details.get("unjudged"):
        yield "not judged", f"{counted(details['unjudged'], 'question')}, since the judge gave no score"
    if "added" in details:
        yield "learned", f"{counted(details['added'], 'row')}, {details['known']:,} known before"


def _tables(advice: Advice, *, unit: str) -> Iterator[NumberTable]:
    yield _means(advice, unit=unit)
    if advice.confusion is not None:
        yield confusion_table({"": advice.confusion.labels}, arms=list(advice.shares), chosen="routing chose")


def _means(advice: Advice, *, unit: str) -> NumberTable:
    best = advice.comparisons[0]
    rows = [(ROUTING, decimal(best.reward.first), decimal(best.quality.first), number(best.cost.first), "", "")]
    for one in advice.comparisons:
        share = 0.0 if one.second_arm is None else advice.shares.get(one.second_arm, 0.0)
        means = (decimal(one.reward.second), decimal(one.quality.second), number(one.cost.second))
        rows.append((one.second, *means, words.difference(one.reward), percent(round(share, 2))))
    heads = ("reward a question", "quality", f"{unit} a question", "routing adds to the reward", "routed to it")
    return NumberTable(title="Means", columns=("way of answering", *heads), rows=tuple(rows))


def _method(advice: Advice) -> Iterator[str]:
    best, folds = advice.comparisons[0], advice.ask.folds
    shared = "" if best.confidence == CONFIDENCE else ", so that all looks of the run share an error of 5 %"
    yield f"intervals of {percent(round(best.confidence, 4))}{shared}; {best.design}"
    if advice.confusion is not None and advice.confusion.accuracy is not None:
        share = percent(round(advice.confusion.accuracy, 2))
        yield f"the label of a question is its cheapest right arm; routing chose it for {share} of those that have one"
    yield f"each question was decided by a policy that had learned the other {folds - 1} of {folds} parts of them"
