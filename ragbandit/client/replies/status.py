"""Replies about the service: probes, the state of the ledger, of the judge and of the arms."""

from typing import Literal

from typing_extensions import TypedDict

from ragbandit.shared.types import CircuitState


class HealthReply(TypedDict):
    """The process is alive."""

    status: Literal["ok"]
    """Always `ok`."""


class ReadyReply(TypedDict):
    """Whether the service can serve requests."""

    status: Literal["ok", "not ready"]
    """Whether requests can be served."""
    parts: dict[str, str]
    """For each part "ok", or what is wrong with it."""


class ArmReply(TypedDict):
    """Circuit breaker of an arm."""

    state: CircuitState
    """`closed`: healthy; `open`: suspended after `failures` failures in a row, or at once if its server cannot be
    reached or names a Retry-After; `half_open`: one question may try it."""
    offered: bool
    """Whether the next question may be offered the arm."""
    failures: int
    """Failures in a row."""
    since: float | None
    """When the first of them was stored, seconds since 1970; null without failures."""


class JudgeDay(TypedDict):
    """What the judge did in the present day (UTC), over all processes of the store."""

    begun: int
    """Judgements that began."""
    scored: int
    """Scores that were stored."""
    failed: int
    """Attempts that gave no score."""
    given_up: int
    """Answers that were tried too often."""
    expired: int
    """Answers that waited too long."""
    suspicious: int
    """Answers withheld because a text in them addresses the judge."""
    skipped: int
    """Answers not judged because too many waited."""
    prompt_tokens: int
    """Tokens that the judge read."""
    completion_tokens: int
    """Tokens that the judge wrote."""
    dollars: float
    """Price of these tokens, where the judge has prices."""


class JudgeReply(TypedDict):
    """State of the judge, see docs/judge.md."""

    waiting: int
    """Answers that wait for the judge."""
    today: JudgeDay
    """What it did in the present day (UTC)."""


class CountersReply(TypedDict):
    """Counts of decisions by state, and of feedback: the fields of `ragbandit.Counters`."""

    decided: int
    """All decisions."""
    learned: int
    """Learned from feedback."""
    defaulted: int
    """Learned with the default reward."""
    waiting: int
    """Not closed yet."""
    closed: int
    """Closed with nothing to learn."""
    quarantined: int
    """Cannot be learned; `ragbandit feedback rejected` names the reason."""
    feedback: int
    """All feedback that is stored."""
    late_feedback: int
    """Feedback that came after its decision was closed, and was not learned."""
    unseen: int
    """Decisions made before this ledger began, or while it was retired; the learner adds them to the ledger."""
    disagreements: int
    """Learned decisions whose raters lay 0.5 or more apart in quality."""


class LagReply(TypedDict):
    """Milliseconds from feedback to a router's policy, over the last thousand feedbacks; null where there are none."""

    p50: float | None
    """Median, milliseconds."""
    p99: float | None
    """99th percentile, milliseconds."""
    n: int
    """Number of feedbacks measured."""


LearningWord = Literal["steady", "learning", "held back", "stuck", "drifting", "starved"]


class ArmLearningReply(TypedDict):
    """How far an arm is learned."""

    state: LearningWord
    """In a word."""
    worth: float
    """Reward a question that knowing the arm would bring, at least 0."""
    labels: int
    """Labels of the arm that would settle it."""
    questions: int | None
    """Questions until these labels have come; null: never."""


class LearningReply(TypedDict):
    """How far the policy has learned, by the newest decisions."""

    state: LearningWord
    """In a word; `starved`: no labels come."""
    sentence: str
    """Why, with the numbers."""
    slack: float | None
    """Reward that may be lost before the promise to the incumbent is broken; null without an incumbent."""
    remedy: str
    """What to do."""
    arms: dict[str, ArmLearningReply]
    """Each arm."""


class LedgerReply(TypedDict):
    """State of a ledger."""

    policy: str
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    counters: CountersReply
    """Decisions by state."""
    balanced: bool
    """Whether the counters add up."""
    last_seq: int
    """Number of the newest update in the ledger."""
    snapshot: str | None
    """Newest snapshot; null if there is none."""
    snapshot_last_seq: int
    """Number of the last update that this snapshot has learned."""
    behind: int
    """Updates of the ledger that are not in that snapshot."""
    lag_s: float
    """Age of the oldest decision that is ready to be learned, seconds."""
    backlog: int
    """Decisions with feedback that wait for the learner, if they are more than 100; else 0."""
    caught_up_s: float | None
    """Seconds until the learner has learned them, at its present pace; null if none wait, or if it does not learn."""
    unanswered: int
    """Decisions for our workers without an outcome."""
    missing_outcome: int
    """Decisions with feedback that cannot be learned before the caller reports their outcome."""
    judge: JudgeReply
    """The judge: its queue, and its work of today."""
    unchecked: int
    """Answers that wait for the check (setting `reward.check`)."""
    learning: LearningReply | None
    """How far the policy has learned; null where it does not say."""
    rebuilding: bool
    """Whether the policy is being learned again from the ledger; another one decides meanwhile."""
    arms: dict[str, ArmReply]
    """Health of each arm."""


class StatusReply(LedgerReply):
    """State of the ledger and of this router."""

    serving: str
    """Snapshot that this router uses."""
    algorithm: str
    """Name of the policy (setting `policy.name`)."""
    faults: int
    """Decisions by the fallback arm since the start."""
    fail_opens: int
    """Questions since the start for which no arm was healthy, so that all were offered."""
    feedback_to_policy_ms: LagReply
    """Time from feedback to this router's policy."""
    redis: str
    """`ok`, or what this process cannot do with Redis; as in /ready."""
