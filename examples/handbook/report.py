"""The demo's figures: what happened per arm, early against late, and what the log says of other policies."""

from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.handbook.command import ARMS, Row
from ragbandit.router.offline.estimation.estimators import Estimate, estimate

#: effective rows below which an estimate of the log is no figure to compare with
FEWEST: Final = 10.0
SHORT: Final = "A short run shows the loop; what learning earns is in the curve of the recorded table."


def summarise(asked: list[Row], *, records: list[Row], status: Row, verdict: Row, judged: Row, seconds: float) -> Row:
    """All that the report file holds."""
    rows = [_row(question, record) for question, record in zip(asked, records, strict=True)]
    counters = status["counters"]
    learned = sorted((row for row in rows if row["reward"] is not None), key=lambda row: row["seq"])
    open_to_all = [row for row in learned if min(row["pmf"].values()) > 0.0]  # an incumbent may leave no chance
    third = len(learned) // 3
    first, last = learned[:third], learned[len(learned) - third :]
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
        "first_third": _means(first, share_of=len(learned)),
        "last_third": _means(last, share_of=len(learned)),
        "shares_first_third": _shares(first),
        "shares_last_third": _shares(last),
        "logged": _means(learned, share_of=len(learned)),
        "judged_questions": len(open_to_all),
        "counterfactual": _counterfactual(open_to_all),
        "seconds": seconds,
    }
    agree = verdict["ok"] and status["balanced"] and report["replay_sha256"] == report["live_sha256"]
    report["ok"] = bool(agree and counters["learned"] == judged["to_learn"] and counters["quarantined"] == 0)
    return report


def _row(question: Row, record: Row) -> Row:
    outcome, reward = record["outcome"], record["reward"]
    return {
        "kind": question["kind"],
        "arm": record["arm"],
        "pmf": record["pmf"],
        "status": outcome["status"],
        "steps": outcome["steps"],
        "seconds": outcome["cost"]["seconds_total"],
        "quality": question["quality"],
        "reward": None if reward is None else reward["value"],
        "seq": record["learned_seq"],
        "route_ms": question["reply"]["route_ms"],
    }


def _means(rows: list[Row], *, share_of: int) -> Row:
    if not rows:
        return {"n": 0, "share": 0.0} | dict.fromkeys(("quality", "steps", "seconds", "reward", "reward_error"))
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "n": len(rows),
        "share": len(rows) / share_of,
        "quality": float(np.mean([row["quality"] for row in rows])),
        "steps": float(np.mean([row["steps"] for row in rows])),
        "seconds": float(np.mean([row["seconds"] for row in rows])),
        "reward": float(np.mean(rewards)) if rewards else None,
        "reward_error": float(np.std(rewards, ddof=1) / np.sqrt(len(rewards))) if len(rewards) > 1 else None,
    }


def _shares(rows: list[Row]) -> Row:
    return {arm: sum(row["arm"] == arm for row in rows) / max(1, len(rows)) for arm in ARMS}


def _kind(rows: list[Row], kind: str) -> Row:
    """Quality of every arm on one kind of question."""
    chosen = [row for row in rows if row["kind"] == kind]
    found: Row = {"n": len(chosen)}
    for arm in ARMS:
        quality = [row["quality"] for row in chosen if row["arm"] == arm]
        found[arm] = float(np.mean(quality)) if quality else None
    return found


def _counterfactual(rows: list[Row]) -> Row:
    """Reward, quality and steps of always-X and uniform, by SNIPS on the propensities that were logged.

    rows: those in which every arm had a chance.
    """
    if not rows:
        return {}
    action = np.array([ARMS.index(row["arm"]) for row in rows])
    logged = np.array([[row["pmf"].get(arm, 0.0) for arm in ARMS] for row in rows])
    candidates = {f"always {arm}": np.eye(len(ARMS))[np.full(len(rows), k)] for k, arm in enumerate(ARMS)}
    candidates["uniform"] = np.array([[(arm in row["pmf"]) / len(row["pmf"]) for arm in ARMS] for row in rows])
    measures = {name: np.array([float(row[name]) for row in rows]) for name in ("reward", "quality", "steps")}
    found: Row = {}
    for name, candidate in candidates.items():
        estimates: dict[str, Estimate] = {
            measure: estimate("snips", values, action=action, logged=logged, candidate=candidate)
            for measure, values in measures.items()
        }
        if estimates["reward"].effective_rows == 0.0:
            found[name] = None  # the log never drew what this policy plays: nothing can be said
            continue
        low, high = estimates["reward"].interval()
        found[name] = {
            **{measure: estimate.value for measure, estimate in estimates.items()},
            "reward_low": low,
            "reward_high": high,
            "effective_rows": estimates["reward"].effective_rows,
        }
    return found


def show(console: Console, report: Row, *, file: Path) -> None:
    """The tables that a person reads."""
    table = Table("arm", "share", "first third", "last third", "quality", "steps", "seconds", title="What was played")
    for arm in ARMS:
        row = report["arms"][arm]
        early, late = report["shares_first_third"][arm], report["shares_last_third"][arm]
        table.add_row(
            arm, f"{row['share']:.0%}", f"{early:.0%}", f"{late:.0%}", *_numbers(row, "quality", "steps", "seconds")
        )
    console.print(table)
    table = Table("questions that need", "n", *ARMS, title="Share answered right, by what the question needs")
    for kind, words in (("none", "no passage"), ("one", "one passage"), ("two", "two passages")):
        row = report["kinds"][kind]
        table.add_row(words, str(row["n"]), *(_number(row[arm]) for arm in ARMS))
    console.print(table)
    table = Table(
        "policy", "reward", "95 % interval", "quality", "steps", title="This run, and what its log says of others"
    )
    table.caption = f"SNIPS: from the {report['judged_questions']} questions on which every arm had a chance"
    for name, key in (("this run", "logged"), ("its first third", "first_third"), ("its last third", "last_third")):
        row, error = report[key], report[key]["reward_error"]
        interval = "" if error is None else f"{row['reward'] - 1.96 * error:.2f} to {row['reward'] + 1.96 * error:.2f}"
        table.add_row(name, _number(row["reward"]), interval, *_numbers(row, "quality", "steps"))
    for name, row in report["counterfactual"].items():
        if row is None:
            table.add_row(f"{name} (SNIPS)", "-", "never drawn", "-", "-")
            continue
        interval = f"{row['reward_low']:.2f} to {row['reward_high']:.2f}"
        if row["effective_rows"] < FEWEST:
            interval = f"only {row['effective_rows']:.0f} effective rows"
        table.add_row(f"{name} (SNIPS)", _number(row["reward"]), interval, *_numbers(row, "quality", "steps"))
    console.print(table)
    console.print(_verdict(report))
    console.print(_facts(report), soft_wrap=True)
    console.print(f"report: {file}   seconds: {report['seconds']:.0f}")


def _verdict(report: Row) -> str:
    """Two honest sentences: did it learn, and is it better than a fixed choice? With what the numbers can carry."""
    first, last = report["first_third"], report["last_third"]
    if first["reward_error"] is None or last["reward_error"] is None:
        return f"Too few questions to say anything about learning. {SHORT}"
    gain = last["reward"] - first["reward"]
    error = float(np.hypot(first["reward_error"], last["reward_error"]))
    sure = (
        "more than chance would explain" if gain > 1.96 * error else "within what chance explains on so few questions"
    )
    learned = (
        f"Reward per question went from {first['reward']:.2f} in the first third to {last['reward']:.2f} in the last: "
        f"{gain:+.2f} ± {error:.2f}, {sure}."
    )
    others = {name: row for name, row in report["counterfactual"].items() if row is not None}
    known = {name: row for name, row in others.items() if row["effective_rows"] >= FEWEST}
    if not known:
        return f"{learned} {SHORT}"
    name, best = max(known.items(), key=lambda item: item[1]["reward"])
    gap = last["reward"] - best["reward"]
    width = (best["reward_high"] - best["reward_low"]) / 2
    versus = "above" if gap > 0 else "below"
    return (
        f"{learned} The last third is {abs(gap):.2f} {versus} the best of the others "
        f"({name}, itself known to ± {width:.2f}). {SHORT}"
    )


def _facts(report: Row) -> str:
    places = ", ".join(f"{key} {report[key]}" for key in ("learned", "defaulted", "waiting", "closed", "quarantined"))
    same = "the same as" if report["replay_sha256"] == report["live_sha256"] else "NOT"
    return (
        f"decided {report['decided']} = {places} ({'balanced' if report['balanced'] else 'NOT BALANCED'}); "
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
