"""Evaluations: a judgement of an answer as OpenTelemetry's event of an evaluation."""

from collections.abc import Mapping

from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.tracing import Tracing
from ragbandit.shared.types import Feedback


def tell_evaluation(tracing: Tracing, feedback: Feedback, *, late: bool, carrier: Mapping[str, str]) -> None:
    """Tell of a judgement, in the trace of its decision. Gold answers, raters and reasons are left out.

    carrier: the W3C headers that are kept with the decision; empty: it is in no trace, and its id alone says which.
    """
    score = feedback.value if isinstance(feedback.value, int | float) else None
    tracing.event(
        names.EVALUATION_RESULT,
        attributes={
            names.EVALUATION: feedback.event or feedback.kind,
            names.EVALUATION_SCORE: score,
            names.RESPONSE_ID: feedback.decision_id,
            names.DECISION_ID: feedback.decision_id,
            names.FEEDBACK_SOURCE: feedback.source,
            names.FEEDBACK_LATE: late,
        },
        parent=carrier,
    )
