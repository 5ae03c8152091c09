"""Prices: sets the cost weight at which each question is decided."""

from collections.abc import Iterator
from dataclasses import replace

from ragbandit.router.serving.deciding.steps.step import Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.prices import (
    check_aim,
    check_weight,
    price_name,
    price_terms,
    served_weight,
)
from ragbandit.shared.texts.plain_values import plain
from ragbandit.shared.types import Decision


class Prices(Step):
    def configure(self, served: ServedPolicy) -> None:
        self._served, settings = served, served.settings
        self._reward, self._named = settings.reward, settings.cost_weights

    def check(self, question: Question) -> None:
        query, served = question.query, self._served
        if query.cost_weight is not None:
            query = replace(query, cost_weight=plain(query.cost_weight))
            check_weight(query.cost_weight, prices=self._named)
        if query.aim:
            check_aim(query)
        if served.settings.tenants and not query.terms.has_prices:  # over HTTP the terms have prices already
            terms = price_terms({}, tenant=served.settings.tenant(query.tenant), named=self._named)
            query = replace(query, terms=replace(terms, budget_factor=query.terms.budget_factor))
        question.query = query
        question.cost_weight = served_weight(
            query,
            reward=self._reward,
            named=self._named,
            policy=served.policy,
            rebuilding=served.rebuilding,
            frontier=served.frontier,
        )

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if decision.cost_weight is None:
            return
        query, name = decision.query, price_name(decision.query)
        why = "as its caller wanted" if query.cost_weight is not None or query.aim else "as its key or tenant has it"
        named = "" if name is None else f" ({name})"
        factor = query.terms.budget_factor
        why += f", raised {factor:g}-fold by a dollar budget" if factor > 1.0 else ""
        yield (
            f"It was served at cost weight {decision.cost_weight:g}{named}, {why}; "
            "it is learned at that weight, and scores are read at it."
        )
