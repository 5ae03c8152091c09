"""Picks: a language model is asked for the arm before the draw, if the policy that decides, or one in shadow, needs it.

The pick is stored in `Sent.pick`, with the model, its tokens and dollars, or the reason of a failure:
`no_arm` or `several_arms` (the reply names none, or several), `too_long` (it was cut off), or one of `AskedModel`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Final

from ragbandit.additions.model_picks.need import PickSource
from ragbandit.additions.model_picks.picking import INSTRUCTIONS, material_of, parse_pick
from ragbandit.additions.model_picks.settings import PickSection
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.asked_model import AskedModel
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.live import LiveVersions
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import Decision, ModelPick

#: maximum number of questions that wait until their model is free
MOST_WAITING: Final = 1024


class Picks(Step):
    """Asks the models. Not thread-safe: a router prepares all questions on one event loop."""

    follows = "Needs"  # the model picks among the arms that remain
    provides: ClassVar = {"pick": PickSource()}

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        #: picks since the start, by result: "picked", or the reason of the failure
        self.results: Counter[str] = Counter()
        #: label of a policy -> its settings, and the model that they name
        self._models: dict[str, tuple[Settings, AskedModel]] = {}

    def configure(self, served: ServedPolicy) -> None:
        self._served, self._rules = served, served.settings.rule_book

    def asks(self, question: Question, *, live: LiveVersions) -> bool:
        return self._policy_to_ask(question, live=live) is not None

    def _policy_to_ask(self, question: Question, *, live: LiveVersions) -> ServedPolicy | None:
        """The first policy that needs a pick for this question; None if no model may be asked, or none is needed.

        The policy that decides comes first, then the versions in shadow, the oldest first.
        """
        if not live.candidates and "pick" not in self._served.policy.needs:
            return None
        query = question.query
        is_drawn = len(question.allowed) > 1 and query.arm_by is None and query.continues.loop is None
        if not is_drawn or query.sent.pick or live.control.killed == "arm":
            return None
        shadows = live.candidates if live.asks_candidates else ()
        for served in (self._served, *(candidate.served for candidate in shadows)):
            if served is not None and "pick" in served.policy.needs:
                return served if self._rules.may_read(query, model="pick") else None
        return None

    async def prepare(self, question: Question, *, live: LiveVersions) -> None:
        """Ask the model of the policy that needs a pick, and store its pick with the question's request."""
        asking = self._policy_to_ask(question, live=live)
        if asking is None:
            return
        query, arms = question.query, question.allowed
        material = material_of(query.text, arms=arms, descriptions=asking.settings.arm_descriptions)
        messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": material}]
        reply, facts = await self._model(asking).ask(messages, query=query)
        if reply is not None:
            facts |= {"failed": "too_long"} if reply.finish == "length" else parse_pick(reply.text, arms=arms)
        self.results[str(facts.get("failed", "picked"))] += 1
        question.query = replace(query, sent=replace(query.sent, pick=facts))

    def counters(self) -> Iterator[tuple[str, str, Mapping[str, int]]]:
        if self.results:
            text = "Questions by the result of a model's pick of the arm: picked, or why it failed."
            yield "ragbandit_picks", text, dict(self.results)

    def _model(self, asking: ServedPolicy) -> AskedModel:
        settings = asking.settings
        label, pick = settings.policy.label, settings.policy.of(PickSection).pick
        known = self._models.get(label)
        if known is not None and known[0] is settings:
            return known[1]
        model = AskedModel(
            pick.generator or settings.generator,
            seconds=pick.seconds,
            max_tokens=pick.max_tokens,
            purpose="pick",
            database=self.database,
            most_waiting=MOST_WAITING,
        )
        self._models[label] = settings, model
        return model

    def after(self, batch: Batch) -> None:
        """Store the picks among the facts, also for versions in shadow and for exported logs."""
        for question in batch.questions:
            pick = ModelPick.read(question.query.sent.pick) if question.query.sent.pick else None
            if pick is not None and question.is_drawn:
                question.add(pick)

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        pick = ModelPick.of(decision.facts)
        if pick is None:
            return
        asked = f"The model {pick.by or 'of the caller'} was asked for an arm before the draw"
        if pick.arm is None:
            yield f"{asked}, and gave none: {pick.failed}."
        else:
            yield f"{asked}, and picked {pick.arm}{'' if pick.arm in decision.arms else ', which was not offered'}."
