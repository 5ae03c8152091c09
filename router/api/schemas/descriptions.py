"""Descriptions of reply fields for /openapi.json: typed dicts and dataclasses carry none of their own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["REPLY_FIELDS", "describe"]

#: field -> description; "Object.field" where the name means something else there
REPLY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "decision_id": "Id of the decision; yours if you sent one.",
        "arm": "The arm that was drawn.",
        "propensity": "Probability with which it was drawn.",
        "pmf": "Probability of every offered arm, floors included; they sum to 1.",
        "scores": "The policy's value of every offered arm; null if it has none.",
        "policy": "Label of the ledger that the policy learns from (setting `policy.label`).",
        "version": "Snapshot of the policy that decided.",
        "explored": "Whether an arm other than the likeliest was drawn.",
        "fault": "Why the fallback arm was played instead of the policy's choice; null if it was not.",
        "route_ms": "Milliseconds from the request to the stored decision.",
        "status": "How the arm ended: with an answer, by the budget, or by a failure.",
        "CancellationReply.status": 'How the arm ended; "pending" while it has not.',
        "PendingReply.status": "The outcome is not there yet.",
        "HealthReply.status": "The process is alive.",
        "ReadyReply.status": "Whether requests can be served.",
        "answer": "The answer; after `exhausted` a draft, if there is one.",
        "PendingReply.answer": "Not there yet.",
        "stop_reason": "Why the arm stopped, for example `answered`, `budget_seconds`, `cancelled`.",
        "error": "What failed, without secrets; null if nothing did.",
        "ErrorReply.error": "What is wrong, and what to do.",
        "steps": "Rounds of search and generation.",
        "cost": "What the answer used.",
        "KeptReward.cost": "The priced sum of the cost terms.",
        "state": "Where the decision is: see the glossary.",
        "ArmReply.state": "State of the circuit breaker.",
        "offered": "Whether the next question may be offered the arm.",
        "failures": "Failures in a row.",
        "since": "When the first of them was stored, seconds since 1970; null without failures.",
        "items": "One entry per item, in order.",
        "cancelled": "Whether the decision ended by being cancelled; null while it has not ended.",
        "retriever_calls": "Searches.",
        "passages": "Distinct passages shown to the model.",
        "llm_calls": "Calls of the language model.",
        "prompt_tokens": "Tokens read by the model.",
        "completion_tokens": "Tokens written by the model.",
        "seconds_retrieve": "Seconds of searching.",
        "seconds_generate": "Seconds of the model's calls.",
        "seconds_total": "Seconds from the start of the arm to its end.",
        "dollars": "Price of the tokens, where the generator has prices.",
        "decided": "All decisions.",
        "learned": "Learned from feedback.",
        "defaulted": "Learned with the default reward.",
        "waiting": "Not closed yet.",
        "closed": "Closed with nothing to learn.",
        "quarantined": "Cannot be learned; `ragbandit quarantine` names the reason.",
        "feedback": "All feedback of the decision.",
        "Counters.feedback": "All feedback that is stored.",
        "late_feedback": "Feedback that came after its decision was closed, and was not learned.",
        "unseen": "Made before the label, or while it was retired: the learner gives them a place in its ledger.",
        "code": "Stable name of the kind of error.",
        "message": "What is wrong.",
        "field": "The input that is wrong; null if it is none.",
        "remedy": "What to do; null if nothing can be said.",
        "id": "Id of the feedback.",
        "kind": "Kind of feedback.",
        "value": "The gold answers, the rating on [0, 1], or the reward.",
        "KeptReward.value": "The reward that was learned.",
        "source": "Who judged.",
        "KeptReward.source": "From feedback, or the default reward.",
        "received_at": "When it was stored, seconds since 1970.",
        "late": "Whether it came after the decision was closed; it is then not learned.",
        "trace": "Calls of the arm in order.",
        "run_by": "Who runs the arm: our workers, or your own stack.",
        "made_by": "Arm, params, generator, retriever and budget that made the outcome.",
        "made_at": "When it was stored, seconds since 1970.",
        "quality": "Quality on [0, 1]; null for a raw reward.",
        "weight": "Weight of cost (lambda).",
        "minimum": "Least reward; below it is clipped.",
        "maximum": "Largest reward; above it is clipped.",
        "terms": "Price per unit of each cost term.",
        "preset": "How a label became quality.",
        "clipped": "Whether the reward was outside its bounds.",
        "p50": "Median, milliseconds.",
        "p99": "99th percentile, milliseconds.",
        "n": "Number of feedbacks measured.",
        "duplicate": "Whether the same was stored before.",
        "parts": 'For each part "ok", or what is wrong with it.',
        "feedback_id": "Id of the feedback; yours if you sent one.",
        "waiting_for": "What has to be reported before the feedback can be learned; null if nothing.",
        "question": "The question.",
        "context": "Facts of yours, as sent.",
        "tenant": "Whose question it is.",
        "budget": "Caps that the question asked for.",
        "seed": "Seed of the draw, made from the decision's id.",
        "floor": "Exploration floor in force, per arm.",
        "encoder_hash": "Fingerprint of the encoder that made the features.",
        "facts": "What the policy noted about this decision.",
        "reason": "Why it is in this state; null if there is nothing to say.",
        "outcome": "What came of it; null while there is none.",
        "reward": "The reward that was learned; null while none was.",
        "learned_seq": "Place in the ledger; null while it is not learned.",
        "counters": "Where all decisions are.",
        "balanced": "Whether the counters add up.",
        "last_seq": "Newest place in the ledger.",
        "snapshot": "Newest snapshot; null if there is none.",
        "snapshot_last_seq": "Place in the ledger up to which that snapshot has learned.",
        "behind": "Updates that are in the ledger and not in that snapshot.",
        "lag_s": "Age of the oldest decision that is ready to be learned, seconds.",
        "unanswered": "Decisions for our workers without an outcome.",
        "missing_outcome": "Decisions with feedback that cannot be learned before the caller reports their outcome.",
        "rebuilding": "Whether the policy is being learned again from the ledger; another one decides meanwhile.",
        "arms": "Health of each arm.",
        "serving": "Snapshot that this router uses.",
        "algorithm": "Name of the policy (setting `policy.name`).",
        "faults": "Decisions by the fallback arm since the start.",
        "forced": "Questions since the start for which no arm was healthy, so that all were offered.",
        "feedback_to_policy_ms": "From feedback to this router's policy.",
    }
)


def describe(api: dict[str, Any]) -> dict[str, Any]:
    """Add the descriptions to the fields of an OpenAPI document that have none; the same document."""
    for name, schema in api["components"]["schemas"].items():
        for field, shape in schema.get("properties", {}).items():
            said = REPLY_FIELDS.get(f"{name}.{field}", REPLY_FIELDS.get(field))
            if said is None or "description" in shape:
                continue
            if "$ref" in shape:  # OpenAPI 3.0 ignores what stands beside a reference
                shape["allOf"] = [{"$ref": shape.pop("$ref")}]
            shape["description"] = said
    return api
