"""What imported questions with the outcomes of several arms prove about a policy, as evidence for its restraint.

A warm start (`advise --apply`, `advise --warm`) enters the rows of a question one after the other. The rule:

- Before the policy learns the first row of a question, it is asked which arm it would prefer to the incumbent: the arm
  with the highest score, reduced by its doubt, if this is above the incumbent's score. So the policy is never judged on
  a question that it has learned.
- If the question has an outcome of this arm and one of the incumbent, the difference of their rewards is an observation
  of what the policy gains where it leaves the incumbent. If an arm has several outcomes, the first counts. So a
  question gives at most one observation, and no row is used twice.
- A question without both outcomes, a row of this service, and a row of weight 0 give no observation.
- If an arm changes, all observations are dropped.

The policy knows more after the last question than it knew when it was asked, so the observations rather understate the
gain (prequential analysis: Dawid 1984).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.shared.types import ArmName, Json, Update

#: maximum number of imported questions that the policy is asked about; each takes as long as a decision
MOST_ASKED: Final = 1000
#: smallest number of observations for `bound`, and distance of `bound` from their mean, in standard errors
_LEAST: Final = 10
_ERRORS: Final = 1.0


class PairedGains:
    """The observed gains, and the question whose rows are being learned."""

    def __init__(self, incumbent: ArmName) -> None:
        self.incumbent = incumbent
        self.restart()

    def restart(self) -> None:
        self.asked = self.count = 0
        self._sum = self._squares = 0.0
        #: key of the question, the arm that the policy prefers there, and the first reward of each of the two arms
        self._question, self._preferred = "", ""
        self._rewards: dict[str, float] = {}

    @property
    def bound(self) -> float:
        """Lower bound of the mean gain where the policy leaves the incumbent, in rewards, >= 0; 0 without evidence."""
        if self.count < _LEAST:
            return 0.0
        mean = self._sum / self.count
        variance = max(self._squares / self.count - mean * mean, 0.0)
        return max(mean - _ERRORS * math.sqrt(variance / (self.count - 1)), 0.0)

    def opens(self, question: str) -> bool:
        """Whether a row with this `imported_question_key` begins a question that the policy is asked about."""
        return question not in ("", self._question) and self.asked < MOST_ASKED

    def learn(self, update: Update, *, question: str, preferred: ArmName | None, reward: float, rows: float) -> None:
        """Take an observation from a row that the policy has learned, if the row completes one.

        preferred: the arm that the policy preferred before it learned the row, if the row opens a question. reward: the
        row's reward at the weight of the account. rows: weight of the row
        """
        if self.opens(question):
            self.asked += 1
        if question != self._question:
            self._question, self._preferred, self._rewards = question, preferred or "", {}
        is_pair = self._preferred and update.arm in (self.incumbent, self._preferred)
        if not is_pair or update.arm in self._rewards or rows == 0.0:
            return
        self._rewards[update.arm] = reward
        if len(self._rewards) == 2:
            gain = self._rewards[self._preferred] - self._rewards[self.incumbent]
            self.count, self._sum, self._squares = self.count + 1, self._sum + gain, self._squares + gain * gain

    def state(self) -> dict[str, Json]:
        numbers = {"asked": self.asked, "count": self.count, "sum": self._sum, "squares": self._squares}
        return numbers | {"question": self._question, "preferred": self._preferred, "rewards": dict(self._rewards)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.asked, self.count, self._sum, self._squares = (
            state[name] for name in ("asked", "count", "sum", "squares")
        )
        self._question, self._preferred, self._rewards = state["question"], state["preferred"], dict(state["rewards"])


def imported_question_key(update: Update, *, context: bool) -> str:
    """Key of an imported row's question; "" for other rows, and if nothing of the question is stored.

    The key is made from the features if the row has any, since policies that need no texts get rows without texts.
    context: whether the policy learns from the context
    """
    text = update.query.text.encode("utf-8", "surrogatepass")
    content = text if update.features is None else update.features.tobytes()
    if not update.imported or not content:
        return ""
    parts = json.dumps(dict(update.query.context), sort_keys=True).encode() if context else b""
    return hashlib.sha256(content + b"\0" + parts).hexdigest()
