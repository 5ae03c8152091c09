"""The demo's figures: results of each arm in the live run, and rewards of always one arm on the same questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from ragbandit.examples.handbook.command import ARMS, Row
from ragbandit.shared.texts.formats import decimal

MEASURES: Final = ("reward", "quality", "steps")
#: an interval must exclude 0 even if it is wider by this factor, because the headline selects from six intervals
WIDER: Final = 1.5


def summarise(asked: list[Row], *, records: list[Row], status: Row, verdict: Row, judged: Row, seconds: float) -> Row:
    """The contents of the report file."""
    rows = [_row(question, record) for question, record in zip(asked, records, strict=True)]
    counters = status["counters"]
    learned = [row for row in rows if row["reward"] is not None]
    routes = [row["route_ms"] for row in rows]
    report = {
        **{key: counters[key] for key in ("decided", "learned", "defaulted", "waiting", "closed", "quarantined")},
        "late_feedback": counters["late_feedback"],
        "balanced": status["balanced"],
        **judged,
        "replay_sha256": verdict["replay_sha256"],
        "live_sha256": verdict["live_sha256"],
        "propensity_mismatches": verdict["propensity_mismatches"],
        "deep_mismatches": verdict["deep_mismatches"],
        "verify_ok": verdict["ok"],
        "feedback_to_policy_ms_p50": status["feedback_to_policy_ms"]["p50"],
        "feedback_to_policy_ms_p99": status["feedback_to_policy_ms"]["p99"],
        "route_ms_p50": float(np.percentile(routes, 50)),
        "route_ms_p99": float(np.percentile(routes, 99)),
        "lag_s": status["lag_s"],
        "policy": status["algorithm"],
        "version": status["serving"],
        "failed": sum(row["status"] != "answered" for row in rows),
        "arms": {arm: _means([row for row in rows if row["arm"] == arm], share_of=len(rows)) for arm in ARMS},
        "kinds": {kind: _kind(rows, kind) for kind in ("none", "one", "two")},
        "logged": _means(learned, share_of=len(learned)),
        "always": {arm: _always(arm, rows=learned) for arm in ARMS},
        "seconds": seconds,
    }
    agree = verdict["ok"] and status["balanced"]
    report["ok"] = bool(agree and counters["learned"] == judged["to_learn"] and counters["quarantined"] == 0)
    return report


def _row(question: Row, record: Row) -> Row:
    outcome, reward = record["outcome"], record["reward"]
    return {
        **{key: question[key] for key in ("kind", "recorded")},
        "arm": record["arm"],
        "status": outcome["status"],
        "steps": outcome["steps"],
        "seconds": outcome["cost"]["seconds_total"],
        "quality": question["quality"],
        "reward": None if reward is None else reward["value"],
        "route_ms": question["reply"]["route_ms"],
    }


def _means(rows: list[Row], *, share_of: int) -> Row:
    if not rows:
        return {"n": 0, "share": 0.0} | dict.fromkeys(("quality", "steps", "seconds", "reward"))
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "n": len(rows),
        "share": len(rows) / share_of,
        "quality": float(np.mean([row["quality"] for row in rows])),
        "steps": float(np.mean([row["steps"] for row in rows])),
        "seconds": float(np.mean([row["seconds"] for row in rows])),
        "reward": float(np.mean(rewards)) if rewards else None,
    }


def _always(arm: str, *, rows: list[Row]) -> Row:
    """Recorded means of always this arm on these questions; None without questions."""
    recorded = [row["recorded"][arm] for row in rows]
    return {name: float(np.mean([row[name] for row in recorded])) if rows else None for name in MEASURES}


def _kind(rows: list[Row], kind: str) -> Row:
    """Quality of every arm on one kind of question."""
    chosen = [row for row in rows if row["kind"] == kind]
    found: Row = {"n": len(chosen)}
    for arm in ARMS:
        quality = [row["quality"] for row in chosen if row["arm"] == arm]
        found[arm] = float(np.mean(quality)) if quality else None
    return found


def show(console: Console, report: Row, *, file: Path) -> None:
    """Print the tables."""
    table = Table("arm", "share", "right", "steps", "seconds", title="What was played live")
    for arm in ARMS:
        row = report["arms"][arm]
        table.add_row(arm, f"{row['share']:.0%}", *_numbers(row, "quality", "steps", "seconds"))
    console.print(table)
    table = Table("questions that need", "n", *ARMS, title="Share answered right live, by what the question needs")
    for kind, words in (("none", "no passage"), ("one", "one passage"), ("two", "two passages")):
        row = report["kinds"][kind]
        table.add_row(words, str(row["n"]), *(_number(row[arm]) for arm in ARMS))
    console.print(table)
    table = Table("policy", "reward", "right", "steps", title=f"The {report['logged']['n']} rated questions")
    table.add_row("the router, live", *_numbers(report["logged"], *MEASURES))
    for arm, row in report["always"].items():
        table.add_row(f"always {arm}, recorded", *_numbers(row, *MEASURES))
    console.print(table)
    console.print(_facts(report), soft_wrap=True)
    console.print(f"report: {file}   seconds: {report['seconds']:.0f}")
    if advice := report["warm"].get("advice"):
        console.print(
            f"\nragbandit advise, on the {report['warm']['questions']} other recorded questions:", highlight=False
        )
        console.print(advice, style="bold", soft_wrap=True, highlight=False)
        console.print("On your own: `ragbandit advise questions.jsonl`", highlight=False)


def live(report: Row) -> str:
    """Results of the live run, and whether all that was computed again from the store is equal."""
    arms = ", ".join(f"{arm} {report['arms'][arm]['n']}" for arm in ARMS)
    right = sum(row["n"] * (row["quality"] or 0.0) for row in report["arms"].values())
    equal = "equal" if report["ok"] else "NOT EQUAL"
    return (
        f"   {right:.0f} are right; answered by {arms}; {report['logged']['n']} were judged and learned. "
        f"Every draw and the whole learning, computed again from the store: {equal}."
    )


def headline(report: Row) -> str:
    """Leads of the policy after learning and while learning that are beyond doubt, and the leads that are not."""
    gains = report["warm"].get("gains", {})
    leads = {
        "Learned": {arm: (gain["value"], gain["low"], gain["high"]) for arm, gain in gains.items()},
        "While learning": (report["learning"] or {}).get("free", {}).get("leads", {}),
    }
    said = [f"{when}: {_surely(found)}." for when, found in leads.items()]
    unclear = []
    for when, found in leads.items():
        doubted = [arm for arm, lead in found.items() if not (_sure(lead, sign=1) or _sure(lead, sign=-1))]
        if doubted:
            unclear.append(f"over always {' or '.join(doubted)} {'after' if when == 'Learned' else 'while'} learning")
    unclear.append(f"on the {report['logged']['n']} live questions, which are too few")
    return f"{' '.join(said)} Not shown yet: a lead {', or '.join(unclear)}."


def _surely(leads: Mapping[str, Sequence[float | None]]) -> str:
    """The smallest lead and the largest loss that are beyond doubt, in words."""
    parts = []
    for sign in (1, -1):
        sure = [arm for arm, lead in leads.items() if _sure(lead, sign=sign)]
        if sure:
            arm = min(sure, key=lambda arm: leads[arm][0] or 0.0)
            mean, low, high = leads[arm]
            lead, lowest, highest = (decimal(value, sign="+") for value in (mean, low, high))
            parts.append(f"{lead} a question over always {arm} ({lowest} to {highest})")
    return "; ".join(parts) or "nothing beyond doubt"


def _sure(lead: Sequence[float | None], *, sign: int) -> bool:
    """Whether a lead (mean, low, high) has this sign beyond doubt."""
    mean, low, high = lead
    if mean is None or low is None or high is None:
        return False
    half = mean - low if sign > 0 else high - mean
    return sign * mean - WIDER * half > 0


def _facts(report: Row) -> str:
    before = f" ({report['warm']['rows']} of them before the first question)" if report["warm"]["rows"] else ""
    places = ", ".join(f"{key} {report[key]}" for key in ("learned", "defaulted", "waiting", "closed", "quarantined"))
    same = "the same as" if report["ok"] else "NOT"
    return (
        f"decided {report['decided']}{before} = {places} ({'balanced' if report['balanced'] else 'NOT BALANCED'}); "
        f"late feedback {report['late_feedback']}, duplicates recognised {report['duplicates_recognised']} "
        f"of {report['duplicates_sent']}\n"
        f"route p50 {report['route_ms_p50']:.1f} ms, p99 {report['route_ms_p99']:.1f} ms; feedback to live policy p50 "
        f"{report['feedback_to_policy_ms_p50'] or 0:.0f} ms; lag now {report['lag_s']:.1f} s\n"
        f"verify: {report['propensity_mismatches']} propensity mismatches, {report['deep_mismatches']} pmf mismatches; "
        f"policy replayed from the ledger is {same} the live one ({report['replay_sha256'][:12]})"
    )


def _numbers(row: Row, *keys: str) -> tuple[str, ...]:
    return tuple(_number(row[key]) for key in keys)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
