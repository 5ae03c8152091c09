"""Names, kinds and limits that the values share."""

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
else:  # names for annotations: importing numpy would take longer than all the rest of `ragbandit --help`
    Features = FeatureRows = Vector = Matrix = object

FeedbackKind = Literal["label", "rating", "reward", "event"]
#: of an API key: what it may do
Role = Literal["reader", "app", "rater", "worker", "operator", "admin"]
Aggregate = Literal["first", "last", "mean", "sum", "min", "max"]
RewardSource = Literal["explicit", "default"]
RunBy = Literal["worker", "caller"]
FeedbackSource = Literal["human", "label", "judge", "code", "event"]
#: of an arm: healthy, suspended, or one question may try it
CircuitState = Literal["closed", "open", "half_open"]
#: the feedback that a reward was made of, the most trusted first: gold answers, raw rewards and checks by code; a
#: person's rating; a model's; what a user did with the answer
JudgedBy = Literal["label", "human", "judge", "event"]
OutcomeStatus = Literal["answered", "exhausted", "failed"]
#: where a decision is, for one ledger: exactly one of these (promise 7)
DecisionState = Literal["learned", "defaulted", "waiting", "closed", "quarantined"]

#: stop reason of a failed outcome whose arm was cut off, or never began, because the caller asked for it
CANCELLED: Final = "cancelled"

#: stop reason of an outcome that came with a log; facts of a decision and made_by of an outcome have the log's format
#: under this key where they were made elsewhere: such a draw cannot be made again
IMPORTED: Final = "imported"
#: in the facts of a decision that came with the log of another store, whose secret made the seed of its draw
SEEDED_ELSEWHERE: Final = "seeded_elsewhere"
#: in `Query.request` of a decision whose id came with the request: whether the caller named it
NAMED_ID: Final = "named_id"
#: in the facts of a decision that stayed on the arm of an earlier turn of its session: it is no draw of the policy
STICKY: Final = "sticky"
#: in the facts of a decision: how likely it was to be put into the label queue, and whether it was
LABEL_QUEUE: Final = "label_queue"
#: in the facts of a decision: what a candidate version says to it (rollouts/served.py)
CANDIDATE: Final = "candidate"
#: in the facts of a decision that the kill switch gave an arm: it is no draw of the policy. {"arm": the pinned arm}
KILLED: Final = "killed"
#: in the facts of a decision whose texts were erased: "texts", or "texts and features"
ERASED: Final = "erased"

#: longest question or answer, and gold answer of a label, in characters; a longer one is refused
MAX_TEXT: Final = 100_000
#: most arms of a configuration, and of a table's row
MAX_ARMS: Final = 1_000
#: largest amount of a cost, and largest cap on one
MAX_AMOUNT: Final = 1e9
#: largest weight of cost
MAX_WEIGHT: Final = 1e6
#: a rate: so many requests in a second, minute, hour or day, or in several of them ("20/10 seconds")
RATE_PATTERN: Final = r"[1-9][0-9]{0,8}/([1-9][0-9]{0,3} ?)?(second|minute|hour|day)s?"
#: longest error of an outcome that is kept, characters; a longer one is cut there
MAX_ERROR: Final = 20_000


def finite_json(value: Any) -> Any:
    """The value with None for every float that is not finite, at any depth: JSON has no NaN and no infinity.

    value: dicts, lists, tuples (which become lists) and scalars.
    """
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
