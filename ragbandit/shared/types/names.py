"""Names, kinds and limits that are used by several types."""

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NewType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# A recursive alias would need Python 3.12's `type`; JSON values are checked where bytes enter.
Json = object

DecisionId = NewType("DecisionId", str)
FeedbackId = NewType("FeedbackId", str)
ArmName = NewType("ArmName", str)
#: The name of a ledger: one learner, one sequence of updates.
PolicyLabel = NewType("PolicyLabel", str)

if TYPE_CHECKING:
    #: One embedded question, shape (d,), float32.
    Features = npt.NDArray[np.float32]
    #: n embedded questions, shape (n, d), float32
    FeatureRows = npt.NDArray[np.float32]
    #: numbers in one and in two dimensions, float64
    Vector = npt.NDArray[np.float64]
    Matrix = npt.NDArray[np.float64]
else:  # only annotations use these names; importing numpy takes longer than the rest of `ragbandit --help`
    Features = FeatureRows = Vector = Matrix = object

FeedbackKind = Literal["label", "rating", "reward", "event"]
#: role of an API key: the requests that it may send
Role = Literal["reader", "app", "rater", "worker", "operator", "admin"]
Aggregate = Literal["first", "last", "mean", "sum", "min", "max"]
RewardSource = Literal["explicit", "default"]
RunBy = Literal["worker", "caller"]
FeedbackSource = Literal["human", "label", "judge", "code", "event"]
#: circuit breaker of an arm: "closed" (healthy), "open" (suspended), "half_open" (one question may try it)
CircuitState = Literal["closed", "open", "half_open"]
#: class of feedback, most trusted first: "label" (gold answers, raw rewards, checks by code), "human" (ratings),
#: "judge" (a model's scores), "event" (user actions)
JudgedBy = Literal["label", "human", "judge", "event"]
OutcomeStatus = Literal["answered", "exhausted", "failed"]
#: state of a decision in one ledger (promise 7 of the design: every decision has exactly one)
DecisionState = Literal["learned", "defaulted", "waiting", "closed", "quarantined"]

#: stop reason of a failed outcome: the caller cancelled the answer
CANCELLED: Final = "cancelled"

#: stop reason of an imported outcome; also the key for the log's format in the facts of an imported decision and in
#: `made_by` of an imported outcome. The draw of an imported decision cannot be repeated
IMPORTED: Final = "imported"
#: fact of a decision imported from another store, whose secret the seed was computed from
SEEDED_ELSEWHERE: Final = "seeded_elsewhere"
#: key in `Query.request`: whether the caller chose the decision id
NAMED_ID: Final = "named_id"
#: fact of a decision that stayed on the arm of an earlier turn; it was not drawn by the policy
STICKY: Final = "sticky"
#: fact of a decision: its probability of being put into the label queue, and whether it was
LABEL_QUEUE: Final = "label_queue"
#: fact of a decision: the pmf of a candidate version
CANDIDATE: Final = "candidate"
#: fact of a decision made by the kill switch, {"arm": the pinned arm}; it was not drawn by the policy
KILLED: Final = "killed"
#: fact of a decision whose texts were erased: "texts", or "texts and features"
ERASED: Final = "erased"

#: most characters of a question, an answer or a gold answer; longer ones are refused
MAX_TEXT: Final = 100_000
#: most arms of a configuration, and of a table's row
MAX_ARMS: Final = 1_000
#: largest amount of a cost term, and largest limit on one
MAX_AMOUNT: Final = 1e9
#: largest cost weight
MAX_WEIGHT: Final = 1e6
#: rate limit: number of requests / period, as "600/minute" or "20/10 seconds"
RATE_PATTERN: Final = r"[1-9][0-9]{0,8}/([1-9][0-9]{0,3} ?)?(second|minute|hour|day)s?"
#: most characters of an outcome's error; longer ones are cut
MAX_ERROR: Final = 20_000


def finite_json(value: Any) -> Any:
    """Copy nested dicts and lists with None instead of NaN and infinity, which JSON lacks; tuples become lists."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
