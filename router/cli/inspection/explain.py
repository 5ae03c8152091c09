"""Verb `explain`: one decision, told in text; read from the database, without a running service."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from ragbandit.router.api.schemas.replies import explanation_json, plain
from ragbandit.router.cli.console import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.facts import show
from ragbandit.router.cli.store import opened
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.explanations import explain as explanations
from ragbandit.router.serving.explanations.policy_map import FEWEST, PolicyMap, policy_map
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.errors import InvalidInput

#: of the record: what was asked, and by whom
_ASKED: Final = ("question", "asked", "messages", "context", "tenant", "session_id", "run_by", "made_at")
#: of the outcome; its trace is told as steps
_ENDING: Final = ("status", "stop_reason", "answer", "error", "steps", "cost")


def explain(
    decision_id: Annotated[str | None, typer.Argument(metavar="ID", help="id of the decision")] = None,
    policy: Annotated[bool, typer.Option("--policy", help="what the policy does, by kinds of questions")] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a decision was made and what came of it, from its question to its place in the ledger; or what a policy does.

    --json prints what the service has at /v1/decisions/ID/explanation.
    """
    if policy == (decision_id is not None):
        raise InvalidInput("one of ID and --policy is needed", field="decision_id", remedy="give an id, or --policy")
    with opened(config, label=label) as (settings, ledger):
        if decision_id is None:
            mapped = policy_map(
                ledger.database, label=ledger.label, schema=settings.context, weight=settings.reward.weight
            )
            show(_mapped(mapped, as_json=as_json), as_json=as_json)
            return
        store = DecisionStore(ledger.database, label=ledger.label)
        explained = explanations.explain(store, decision_id, rule=closing_rule(settings.learning))
    reply: dict[str, Any] = plain(explanation_json(explained))
    show(reply if as_json else _in_order(reply) | {"key": explained.record.decision.query.api_key}, as_json=as_json)


def _mapped(mapped: PolicyMap | None, *, as_json: bool) -> dict[str, Any]:
    """A policy's map, as JSON, or for people."""
    if mapped is None:
        return {"map": None if as_json else f"fewer than {2 * FEWEST} questions had a choice of arms"}
    if as_json:
        return {"map": asdict(mapped)}
    return {"policy": mapped.sentence, "What it does": mapped.cells}


def _in_order(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The reply in the order of the story, without what only programs want."""
    record = reply["record"]
    outcome = record["outcome"]
    return {
        "decision": reply["decision_id"],
        "progress": reply["progress"],
        **{name: record[name] for name in _ASKED},
        "texts": None if reply["texts"] == "full" else reply["texts"],
        f"Why {record['arm']}": reply["reasons"],
        "Policy": {**reply["snapshot"], "noted": reply["facts"]},
        "Draw": reply["draw"],
        "Arms": reply["arms"],
        "Left out": reply["excluded"],
        "Answer": None if outcome is None else {name: outcome[name] for name in _ENDING},
        "Steps": reply["steps"],
        "Feedback": [{**one, "held": one["id"] in reply["held"]} for one in record["feedback"]],
        "Reward": record["reward"],
        "Bill": reply["bill"],
    }
