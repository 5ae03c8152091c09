"""Rules: the setting `rules` says which questions may get which arms. Each draw and failover obeys them."""

from collections.abc import Iterator

from ragbandit.router.serving.deciding.steps.step import Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.errors import Forbidden
from ragbandit.shared.types import AppliedRules, ArmName, Decision


class Rules(Step):
    def configure(self, served: ServedPolicy) -> None:
        self.book = served.settings.rule_book
        self.is_on = bool(self.book)

    def check(self, question: Question) -> None:
        """Raises Forbidden if no arm is left, and UndecidedRule if a rule cannot be decided."""
        permission = self.book.permission(question.query)
        if permission.arms is None:
            return
        left = tuple(arm for arm in question.allowed if permission.allows(arm))
        if not left:
            raise Forbidden(
                f"the rules {', '.join(permission.names)} allow none of these arms: {', '.join(question.allowed)}",
                field="arms",
                remedy="leave arms out, use the model auto, or ask the operator to change the setting rules",
            )
        question.allow(left, cause="rule")
        question.add(AppliedRules(names=permission.names, arms=tuple(map(ArmName, sorted(permission.arms)))))

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        rules = AppliedRules.of(decision.facts)
        if rules is not None:
            yield f"The operator's rules allow only {', '.join(rules.arms)} here: {', '.join(rules.names)}."
