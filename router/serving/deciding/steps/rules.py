"""Rules: the setting `rules` says which questions may get which arms. No draw and no failover leaves them."""

from collections.abc import Iterator

from ragbandit.router.config.rules import named
from ragbandit.router.serving.deciding.steps.step import Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.errors import Forbidden
from ragbandit.shared.types import AppliedRules, ArmName, Decision


class Rules(Step):
    def configure(self, served: ServedPolicy) -> None:
        self._rules = named(served.settings.rules)
        self.is_on = bool(self._rules)

    def check(self, question: Question) -> None:
        applied = [(name, rule) for name, rule in self._rules if rule.applies_to(question.query)]
        if not applied:
            return
        left = tuple(arm for arm in question.allowed if all(arm in rule.arms for _, rule in applied))
        names = tuple(name for name, _ in applied)
        if not left:
            raise Forbidden(
                f"the rules {', '.join(names)} allow none of these arms: {', '.join(question.allowed)}",
                field="arms",
                remedy="leave arms out, use the model auto, or ask the operator to change the setting rules",
            )
        permitted = tuple(map(ArmName, sorted(set.intersection(*(set(rule.arms) for _, rule in applied)))))
        question.allowed = left
        question.add(AppliedRules(names=names, arms=permitted))

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        rules = AppliedRules.of(decision.facts)
        if rules is not None:
            yield f"The operator's rules allow only {', '.join(rules.arms)} here: {', '.join(rules.names)}."
