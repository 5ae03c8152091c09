"""Names, literals and limits that several modules use."""

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NewType, get_args

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# A recursive alias needs Python 3.12's `type`. JSON values are checked when they are received.
Json = object

DecisionId = NewType("DecisionId", str)
FeedbackId = NewType("FeedbackId", str)
ArmName = NewType("ArmName", str)
#: name of a ledger
PolicyLabel = NewType("PolicyLabel", str)

if TYPE_CHECKING:
    #: an embedded question, shape (d,)
    Features = npt.NDArray[np.float32]
    #: n embedded questions, shape (n, d)
    FeatureRows = npt.NDArray[np.float32]
    Vector = npt.NDArray[np.float64]
    Matrix = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]
    Indices = npt.NDArray[np.intp]
else:  # only annotations use these names, and the import of numpy takes longer than the rest of `ragbandit --help`
    Features = FeatureRows = Vector = Matrix = Flags = Indices = object

#: first words of the ids of feedback that the service itself makes, by its origin: the label queue, scorers of answers
#: (judge, check), files of feedback (import), logs (imported, labelled), and ratings that are read from elsewhere
OwnFeedback = Literal["label", "judge", "check", "import", "imported", "labelled", "rating"]
FeedbackKind = Literal["label", "rating", "reward", "event"]
Role = Literal["reader", "app", "rater", "worker", "operator", "admin"]
Aggregate = Literal["first", "last", "mean", "sum", "min", "max"]
RewardSource = Literal["explicit", "default"]
RunBy = Literal["worker", "caller"]
#: who chose the arm of a decision without a draw. calls: results of tools go to the arm that made the calls. failover:
#: in place of a failed arm. task: a later turn keeps the arm of its task. The last four: a filter left a single arm
ArmBy = Literal["caller", "calls", "failover", "limit", "kill switch", "task", "rule", "needs", "breaker", "only arm"]
#: values of ArmBy of decisions that do not count among those that a policy decided (`Update.decided`)
NOT_BY_POLICY: Final[tuple[ArmBy, ...]] = ("caller", "calls", "failover", "limit", "kill switch")
#: values of ArmBy of decisions for which filters left a single arm to draw from
ONE_ARM_LEFT: Final[tuple[ArmBy, ...]] = ("rule", "needs", "breaker", "only arm")
#: scope of an API key: whether its caller may choose the arm
CHOOSES_ARM: Final = "forced"
#: what one draw decides: one question with its loop of tools, or all turns of a conversation until its task ends
DecisionUnit = Literal["turn", "task"]
UNITS: Final[tuple[DecisionUnit, ...]] = get_args(DecisionUnit)
FeedbackSource = Literal["human", "label", "judge", "code", "event"]
#: states of an arm's circuit breaker: "closed" (healthy), "open" (suspended), "half_open" (one question may try it)
CircuitState = Literal["closed", "open", "half_open"]
#: classes of feedback, most trusted first: "label" (gold answers, raw rewards, checks by code), "human" (ratings),
#: "judge" (a model's scores), "event" (user actions)
JudgedBy = Literal["label", "human", "judge", "event"]
#: classes of feedback whose scores are calibrated by scores of the other classes
SURROGATES: Final = ("judge", "event")
OutcomeStatus = Literal["answered", "exhausted", "failed"]
#: states of a decision in one ledger; every decision has exactly one state
DecisionState = Literal["learned", "defaulted", "waiting", "closed", "quarantined"]

#: stop reason of a failed outcome: the caller cancelled the answer
CANCELLED: Final = "cancelled"
#: stop reason of a question that no arm ran, because the operator's rules do not let its arm run any more
NOT_PERMITTED: Final = "not_permitted"
#: stop reason of a question whose runs ended their processes
DIED: Final = "worker_died"
#: stop reason of a run that ignored its cancellation and still ran after its time limit
ABANDONED: Final = "abandoned"
#: stop reason of an answer that ends where its model reached the limit of tokens, as in OpenAI's finish_reason
CUT: Final = "length"
#: stop reason of an answer of images, audio or video without a text or transcript. It gets no score of texts
NO_TEXT: Final = "no_text"

#: stop reason of an imported outcome; also the key of the log's format in the facts of an imported decision and in
#: `made_by` of an imported outcome. The draw of an imported decision cannot be repeated
IMPORTED: Final = "imported"
#: `Terms.budget_factor` of a spent budget, the largest one. The cheapest arm then gets all questions, except for the
#: smallest probabilities (floors) of the other arms
MOST_FACTOR: Final = 1000.0
#: fact of a decision whose texts were erased: "texts" or "texts and features"
ERASED: Final = "erased"
#: entry of a feedback's facts: the id that the caller sent, if another tenant has used it before
SENT_ID: Final = "feedback_id"

#: longest question, answer and gold answer, characters; a longer one is refused
MAX_TEXT: Final = 100_000
#: longest images, audio and video of an answer, characters of base64; a larger answer fails
MAX_MEDIA: Final = 16_000_000
#: maximum number of arms in a configuration, and in a row of a routing table
MAX_ARMS: Final = 1_000
#: largest amount of a cost term, and largest limit in a budget
MAX_AMOUNT: Final = 1e9
#: largest cost weight
MAX_WEIGHT: Final = 1e6
#: rate limit: number of requests / period, as "600/minute" or "20/10 seconds"
RATE_PATTERN: Final = r"[1-9][0-9]{0,8}/([1-9][0-9]{0,3} ?)?(second|minute|hour|day)s?"
#: longest error message of an outcome, characters; a longer one is cut
MAX_ERROR: Final = 20_000

#: beginnings of feedback ids that no caller may send
OWN_BEGINNINGS: Final = tuple(f"{origin}-" for origin in get_args(OwnFeedback))


def own_feedback_id(origin: OwnFeedback, *, digest: str) -> FeedbackId:
    """Id of feedback that the service itself makes."""
    return FeedbackId(f"{origin}-{digest}")


def finite_json(value: Any) -> Any:
    """Copy nested dicts and lists with None instead of NaN and infinity, which JSON lacks. Tuples become lists."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
