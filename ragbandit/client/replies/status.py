"""Replies about the service: probes, and the state of the ledger, the judge and the arms."""

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
    """`closed`: healthy; `open`: suspended after `health.failures` failures in a row, or at once if its server is not
    reached or names a Retry-After; `half_open`: one question may try it."""
    offered: bool
    """Whether the next question may be offered the arm."""
    failures: int
    """Failures in a row."""
    since: float | None
    """Time of the first of these failures, seconds since 1970; null without failures."""


class JudgeDay(TypedDict):
    """Work of the judge today (UTC), over all processes of the store."""

    begun: int
    """Judgements that were started."""
    scored: int
    """Scores that were stored."""
    failed: int
    """Attempts without a score."""
    given_up: int
    """Answers given up after too many attempts."""
    expired: int
    """Answers not judged because they waited too long."""
    suspicious: int
    """Answers not judged because a text seems to give the judge instructions."""
    skipped: int
    """Answers not judged because too many others waited."""
    prompt_tokens: int
    """Tokens of the judge's prompts."""
    completion_tokens: int
    """Tokens of the judge's completions."""
    dollars: float
    """Price of these tokens; 0 if the judge has no prices."""


class JudgedArm(TypedDict):
    """Answers of an arm in the last 7 days (UTC)."""

    scored: int
    """Scores that were stored."""
    suspicious: int
    """Answers that were not judged, because a text seems to give the judge instructions."""


class JudgeReply(TypedDict):
    """State of the judge, see docs/judge.md."""

    waiting: int
    """Answers that wait for the judge."""
    today: JudgeDay
    """Work of today (UTC)."""
    arms: dict[str, JudgedArm]
    """Judged answers by arm."""


class CountersReply(TypedDict):
    """Counts of decisions by state, and of feedback: the fields of `ragbandit.Counters`."""

    decided: int
    """Number of decisions."""
    learned: int
    """Decisions learned from feedback."""
    defaulted: int
    """Decisions learned with the default reward."""
    waiting: int
    """Decisions that are not closed yet."""
    closed: int
    """Decisions closed with nothing to learn."""
    quarantined: int
    """Decisions that cannot be learned; `ragbandit feedback quarantined` names the reasons."""
    feedback: int
    """Stored judgements."""
    late_feedback: int
    """Judgements that came after the decision was closed, and were not learned."""
    unseen: int
    """Decisions made before this ledger began, or while it was retired; the learner will add them."""


class LagReply(TypedDict):
    """Milliseconds until feedback reaches a router's policy, over the last 1,000 judgements; null if there are none."""

    p50: float | None
    """Median, milliseconds."""
    p99: float | None
    """99th percentile, milliseconds."""
    n: int
    """Number of measured judgements."""


LearningWord = Literal["steady", "learning", "held back", "stuck", "drifting", "starved"]


class ArmLearningReply(TypedDict):
    """How well the policy knows an arm."""

    state: LearningWord
    """State of learning about the arm."""
    worth: float
    """Expected gain in reward per question from knowing the arm, at least 0."""
    labels: int
    """Number of further labels that would decide whether the arm is better."""
    questions: int | None
    """Number of questions until these labels have come; null if they will not come."""


class LearningReply(TypedDict):
    """How well the policy has learned, by the newest decisions."""

    state: LearningWord
    """State of learning. `starved`: no labels come. `held back`: the safe start or something else decides."""
    sentence: str
    """Why learning is in this state, with numbers. First comes what decides instead of the policy."""
    slack: float | None
    """Reward that may be lost before the promise to the incumbent is broken; null without an incumbent."""
    remedy: str
    """What to do."""
    arms: dict[str, ArmLearningReply]
    """State of each arm."""


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
    """Seconds for which the longest-waiting decision has been ready to be learned; 0 if none is ready."""
    backlog: int
    """Decisions with feedback that wait for the learner, if they are at least 100; else 0."""
    caught_up_s: float | None
    """Seconds until the backlog is learned at the present pace; null if there is none, or if the learner stands still.
    """
    unanswered: int
    """Decisions for RagBandit's workers without an outcome."""
    missing_outcome: int
    """Decisions with feedback that cannot be learned before the caller reports their outcome."""
    judge: JudgeReply
    """The judge: its queue, and its work of today."""
    unchecked: int
    """Answers that wait for the check (setting `reward.check`)."""
    learning: LearningReply | None
    """How well the policy has learned; null if the policy does not report it."""
    rebuilding: bool
    """Whether the policy is being relearned from the ledger; until then another policy decides."""
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
    """`ok`, or what is wrong with Redis, as in /ready."""


class VerdictRequestReply(TypedDict):
    """A request for a paired comparison, and its state."""

    state: Literal["none", "waiting", "running", "planned", "ended", "refused"]
    """`none` without a request; `waiting` for a learner; `planned`: nothing was asked; `refused`: `ended` says why."""
    since: float
    """Begin of the period, seconds since 1970."""
    until: float
    """End of the period, seconds since 1970."""
    tenant: str | None
    """The tenant whose questions are compared; null for all."""
    against: str | None
    """The arm to compare with; null if it is not chosen yet."""
    judge: str | None
    """Who scores the answers: `judge`, `check` or `labels`; null for the configured one."""
    budget: float | None
    """Dollars that the comparison may cost; null for a plan."""
    actor: str
    """Who asked for the comparison, and pays for it."""
    plan: list[str]
    """What the comparison would ask, at what price, and how sure its result would be."""
    asked: int
    """Number of questions that were asked so far."""
    dollars: float
    """Dollars that the comparison has cost so far."""
    ended: str | None
    """Why the newest run of the request ended, or why the request was refused; null before."""
    missing: str | None
    """The process that an open request lacks, and how to start it; null if it lacks none."""
    made_at: float | None
    """Time of the request, seconds since 1970."""
    changed_at: float | None
    """Time of the last change, seconds since 1970."""
