"""Verbs that read the database, without a running service: `verify`, `explain`, and the slow part of `status`."""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.status_line import line_file, store_line
from ragbandit.router.cli.store import open_store, serving_policy
from ragbandit.router.cli.tables import counts_in_words, show
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.audit import verify as verification
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.interim import needs_rebuild
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.status import Status
from ragbandit.router.operation import findings as checks
from ragbandit.router.operation.budget_words import budget_lines
from ragbandit.router.replies.explanations import explanation_json
from ragbandit.router.replies.status import ledger_json
from ragbandit.router.replies.values import json_ready
from ragbandit.router.reporting.prompt_line import prompt_line
from ragbandit.router.reporting.reading import Report
from ragbandit.router.reporting.status import status as status_now
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.explanations import explain as explanations
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.health.gone_models import GoneModels
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.serving.overview import overview
from ragbandit.router.storage.access.turn_sums import forget_all_sums
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import stored_origin
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql import counters
from ragbandit.shared.additions import distributions
from ragbandit.shared.texts.formats import moment, number, percent
from ragbandit.shared.types import ArmName, PolicyLabel

#: period of the totals from which the line takes its shares, seconds
_MONTH_S: Final = 30 * 86_400
#: name of a count -> its meaning. Only counts above 0 are printed; counts that need an action are findings instead
_MEANINGS: Final = {
    "defaulted": "learned with the default reward, since no feedback came in time",
    "waiting": "decisions that wait for feedback or an outcome",
    "closed": "decisions whose time is over, with nothing to learn",
    "feedback": "judgements received",
    "late_feedback": "of these came after their decision was closed",
    "unanswered": "decisions that workers have still to answer",
    "unchecked": "answers that wait for reward.check",
}


def print_status(label: str | None, *, config: str | None, as_json: bool) -> None:
    """Print the status of `ragbandit status`, and write the file of --line. Raises Exit(1) if there is a problem."""
    with open_store(config, label=label) as (settings, ledger):
        serving = serving_policy(ledger, settings=settings)
        now = time.time()
        arms = [ArmName(arm) for arm in settings.arms]
        state = status_now(ledger, serving=serving, rule=closing_rule(settings.learning), now=now, arms=arms)
        gone = GoneModels(ledger.database, arms=settings.worker_arms, generators=settings.named_generators)
        seconds = settings.budget.seconds
        poller = OutcomePoller(ledger.database, settings=settings.health, seconds=seconds, gone=gone)
        healths = poller.read(arms, now=now)
        files = SnapshotFiles(settings.snapshot_root)
        rebuilding = serving is not None and needs_rebuild(ledger, files=files, policy=serving)
        month = checks.month_report(ledger.database, settings=settings, now=now)
        findings = [
            *checks.findings_of_settings(settings, database=ledger.database),
            *checks.run_check("disk", lambda: checks.findings_of_disk(settings)),
            *checks.findings_of_ledger(state, rebuilding=rebuilding),
            *checks.findings_of_report(month),
            *checks.findings_of_store(ledger.database, settings=settings, now=now),
            *checks.findings_of_processes(settings),
        ]
        store_line(_line(month, ledger=ledger, settings=settings), file=line_file(config, label=label))
        if as_json:
            reply = json_ready(ledger_json(state, label=ledger.label, arms=healths, rebuilding=rebuilding))
            print_json(
                reply | {"additions": dict(distributions()), "findings": [asdict(finding) for finding in findings]}
            )
        else:
            first: dict[str, object] = {"routing": month.sentence}
            first["findings"] = [f"{finding.severity} {finding.line}" for finding in findings]
            first["budgets"] = budget_lines(ledger.database, tenants=settings.tenants, policy=settings.policy, now=now)
            sections: dict[str, object] = {"policy": ledger.label} | _champion_line(ledger, settings=settings)
            if state.learning is not None:
                sections["learning"] = state.learning.line
            sections |= _ledger_facts(state) | {
                "arms": list(map(_health_in_words, healths)),
                "judge": _judge_in_words(state),
            }
            origin = stored_origin(ledger.database, label=ledger.label)
            if origin is not None:
                sections["encoder"] = _encoder_in_words(origin)
            if distributions():
                sections["additions"] = [f"{name}: package {brought}" for name, brought in distributions().items()]
            show(first, as_json=False)
            console.print()
            show(sections, as_json=False)
        if checks.is_problem(findings):
            raise typer.Exit(1)


def _line(month: Report, *, ledger: Ledger, settings: Settings) -> str:
    """The line that --line prints, with each arm's share of all questions in the report's period."""
    period: dict[str, Any] = {"since": month.since, "until": month.until, "weight": settings.reward.weight}
    arms = overview(ledger.database, policy=PolicyLabel(settings.policy.label), step=_MONTH_S, **period).arms
    return prompt_line(month, shares={one.arm: one.share for one in arms if one.totals.decided})


def _champion_line(ledger: Ledger, *, settings: Settings) -> dict[str, object]:
    """A line about the champion if it learns from another ledger than `ledger`; else {}."""
    with ledger.database.read() as connection:
        versions = versions_of(connection, base=PolicyLabel(settings.policy.label))
    champion = next((v for v in versions if v.state == "champion" and v.label != ledger.label), None)
    if champion is None:
        return {}
    algorithm = settings_of(settings, champion).policy.name
    see = f"see: `ragbandit status --label {champion.label}`"
    return {"champion": f"{champion.name} ({algorithm}) decides, not the policy of this ledger; {see}"}


def _ledger_facts(state: Status) -> dict[str, object]:
    counted = {**asdict(state.counters), "unanswered": state.unanswered, "unchecked": state.unchecked}
    snapshot = state.snapshot or "none yet"
    return {
        "decided": counted["decided"],
        "learned": counted["learned"],
        **counts_in_words(counted, meanings=_MEANINGS),
        "ledger": f"{state.last_seq} updates",
        "snapshot": f"{snapshot}, {state.behind} updates behind",
    }


def _encoder_in_words(origin: Mapping[str, str | None]) -> str:
    wheel = origin["wheel"]
    return str(origin["model"]) if wheel is None else f"{origin['model']}, by the stand-in of the wheel {wheel}"


def _judge_in_words(state: Status) -> str:
    today = [f"{name} {count:g}" for name, count in state.judge.today.items() if count]
    shares = [f"{arm} {percent(one.share)}" for arm, one in state.judge.arms.items() if one.suspicious]
    parts = [f"{state.judge.waiting} wait"]
    parts += [f"today {', '.join(today)}"] if today else []
    parts += [f"suspicious in 7 days: {', '.join(shares)}"] if shares else []
    return "; ".join(parts)


#: fields that are not printed, because the sentence about the result contains them
_IN_SENTENCE: Final = frozenset({"ok", "decisions", "updates", "replay_sha256", "live_sha256", "live_version"})


def verify(
    label: LabelOption = None,
    config: ConfigOption = None,
    deep: Annotated[bool, typer.Option(help="also compute all probabilities again, and compare the rows")] = False,
    recount: Annotated[
        bool, typer.Option("--recount", help="only correct counters; writes wait 1 s per 10^6 rows")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repeat the draws of decisions and the learning of the ledger; exit code 1 if a result is not the stored one.

    Use --recount only if this command reports a wrong counter: it corrects the counters, and verifies nothing.
    """
    with open_store(config, label=label) as (settings, ledger):
        if recount:
            with ledger.database.write() as connection:
                wrong = counters.recount(connection)
                forget_all_sums(connection)
            corrected = {name: {"kept": stored, "counted": counted} for name, (stored, counted) in wrong.items()}
            show(corrected if as_json or corrected else {"recounted": "every counter is right"}, as_json=as_json)
            return
        files = SnapshotFiles(settings.snapshot_root)
        with show_progress(errors) as progress:
            verdict = verification.verify(
                ledger,
                files=files,
                serving=serving_policy(ledger, settings=settings),
                deep=deep,
                progress=lambda done, total: progress("rows", done, total),
            )
        facts = asdict(verdict) | {"ok": verdict.ok}
        if not as_json:
            console.say(verdict.sentence)
            facts = {name: value for name, value in facts.items() if value and name not in _IN_SENTENCE}
        show(facts, as_json=as_json)
        if not verdict.ok:
            raise typer.Exit(1)


def _health_in_words(health: ArmHealth) -> str:
    if health.since is None:
        return f"{health.arm}: healthy"
    failures = f"{health.failures} failure{'' if health.failures == 1 else 's in a row'} since {moment(health.since)}"
    states = {
        "closed": f"healthy, {failures}",
        "open": f"suspended, {failures}",
        "half_open": f"on probation (one question may try it), {failures}",
    }
    return f"{health.arm}: {states[health.state]}"


def explain(
    decision_id: Annotated[str, typer.Argument(metavar="ID", help="id of the decision")],
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why an arm was drawn for a decision, and what came of it: answer, feedback, reward, place in the ledger.

    --json prints the reply of /v1/decisions/ID/explanation, with facts, steps of the arm and each judgement, but
    without the kind of question, which is computed from the newest decisions.
    """
    with open_store(config, label=label) as (settings, ledger):
        store, rule = DecisionStore(ledger.database, label=ledger.label), closing_rule(settings.learning)
        explained = explanations.explain(store, decision_id, rule=rule, known=settings.arms)
        asked: dict[str, Any] = {"label": ledger.label, "schema": settings.context, "weight": settings.reward.weight}
        kinds = {} if as_json else policy_map(ledger.database, **asked).kind_of
    reply: dict[str, Any] = json_ready(explanation_json(explained))
    kind = kinds.get(explained.decision_id, "")
    show(reply if as_json else _short_explanation(reply, kind=kind), as_json=as_json)


def _amount_in_words(value: float, *, unit: str) -> str:
    """An amount with its unit in the singular or plural: `1 llm call`, `0.4 seconds generate`."""
    shown = number(value)
    singular = re.sub(r"\b(call|dollar|passage|second|token|turn)s\b", r"\1", unit)
    return f"{shown} {singular if shown == '1' else unit}"


def _short_explanation(reply: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    record = reply["record"]
    outcome, judged = record["outcome"], record["feedback"]
    probabilities = sorted(((arm["probability"], arm["arm"]) for arm in reply["arms"]), reverse=True)
    names = ("status", "stop_reason", "answer", "error", "steps")
    answer = {} if outcome is None else {name: outcome[name] for name in names}
    cost = {} if outcome is None else explanations.amounts_in_words(outcome["cost"])
    reward, earned = record["reward"], ""
    if reward is not None:
        price = f"{number(reward['weight'])} x cost {number(reward['cost'])}"
        earned = f"{number(reward['value'])}, of quality {number(reward['quality'])} and {price}"
    return {
        "decision": f"{reply['decision_id']}, {moment(record['made_at'])}",
        "question": record["question"],
        "kind of question": kind,
        "probabilities": ", ".join(f"{arm} {percent(p)}" for p, arm in probabilities[:6]),
        "chosen": reply["chosen"],
        **answer,
        "cost": ", ".join(_amount_in_words(value, unit=unit) for unit, value in cost.items()),
        "price": reply["price"] or "",
        "judgements": "; ".join(f"{item['source']} {item['value']}" for item in judged[-3:]),
        "reward": earned,
        "progress": reply["progress"],
        f"Why {record['arm']}": [reason for reason in reply["reasons"] if not reason.startswith("The random draw")],
    }
