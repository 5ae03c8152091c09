"""Cached prefixes: what a turn of a conversation would pay to leave the arm of the turn before.

A provider that has the prompt of the last turn in its cache reads it again at `cached_input` in place of `input`. With
`conversation.sticky_prefix` a turn leaves its arm only where the policy expects more of another one than that saves.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import select

from ragbandit.router.config.settings import DEFAULT, Settings
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.serving.conversations import Stay
from ragbandit.router.serving.deciding.question import Question
from ragbandit.router.storage.decisions.search import SessionTurn, newest_turns
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.types import ArmName


def saved_per_token(settings: Settings) -> dict[ArmName, float]:
    """Arm -> dollars that a token of its prompt costs less out of the cache, of arms for which that is known."""
    saved = {}
    for name, params in settings.worker_arms.items():
        generator = settings.named_generators.get(str(params.get("generator", DEFAULT)))
        prices = () if generator is None else generator.prices_by_model.get(generator.model, ())
        if len(prices) > 2 and prices[0] > prices[2]:
            saved[ArmName(name)] = (prices[0] - prices[2]) / 1e6
    return saved


def keep_prefixes(
    questions: Sequence[Question],
    outputs: Sequence[PolicyOutput | Exception],
    *,
    saved: Mapping[ArmName, float],
    settings: Settings,
    database: Database,
) -> None:
    """Let turns stay on the arm of the turn before where leaving it costs more than it gains. Raises StoreError.

    saved: of `saved_per_token`. Of turns that are forced, or stay already, nothing changes.
    """
    rate = settings.reward.cost.get("dollars", 0.0)
    asked = [one for one in questions if one.query.session is not None and one.stay is None and not one.query.forced]
    if not asked or not saved or rate <= 0.0:
        return
    turns = newest_turns(database, {(str(one.query.session), one.query.tenant) for one in asked})
    tokens = _prompt_tokens(database, [turn.last for turn in turns.values()])
    for question, output in zip(questions, outputs, strict=True):
        last = turns.get((question.query.session or "", question.query.tenant))
        if question not in asked or last is None or last.arm not in question.arms or isinstance(output, Exception):
            continue
        weight = settings.reward.weight if question.cost_weight is None else question.cost_weight
        saves = weight * rate * saved.get(last.arm, 0.0) * tokens.get(last.last, 0)
        gain = _gain(output, arms=question.arms, arm=last.arm)
        if gain is not None and gain <= saves > 0.0:
            question.stay = _stay(last, gain=gain, saves=saves)


def _gain(output: PolicyOutput, *, arms: Sequence[ArmName], arm: ArmName) -> float | None:
    """What the policy expects of the best arm beyond this one; None: it expects nothing of arms."""
    return None if output.scores is None else max(output.scores) - output.scores[arms.index(arm)]


def _stay(last: SessionTurn, *, gain: float, saves: float) -> Stay:
    return Stay(arm=last.arm, first=last.first, turn=last.turn + 1, turns=0, prefix={"gain": gain, "saves": saves})


def _prompt_tokens(database: Database, ids: Sequence[str]) -> dict[str, int]:
    """Tokens of the prompts of these decisions' answers, those that are there."""
    with database.read() as connection:
        rows = connection.execute(
            select(outcomes.c.decision_id, outcomes.c.cost).where(outcomes.c.decision_id.in_(ids))
        )
        return {row.decision_id: int(json.loads(row.cost).get("prompt_tokens", 0)) for row in rows}
