"""Idempotency: what the writer of a decision, an outcome or a feedback is told, first and when it writes again.

The same body again is a duplicate, another body a Conflict, an unknown decision NotFound.
"""

from collections.abc import Mapping
from typing import Any

from ragbandit.shared.errors import Conflict, NotFound, RagBanditError, StoreError
from ragbandit.shared.types import Decision, Receipt


def settle(standing: Decision | StoreError, standing_hash: str, *, request_hash: str) -> Decision | RagBanditError:
    """The decision that stands under an id, or Conflict if another request made it."""
    if standing_hash == request_hash:
        return standing
    return Conflict(
        "this decision id was used for another request", field="decision_id", remedy="use a new id for a new question"
    )


def is_foreign(row: Mapping[str, Any], run_by: Mapping[str, str]) -> bool:
    """Whether a caller reports this outcome for a decision that our workers run. run_by: of decisions, by id."""
    return row["run_by"] == "caller" and run_by[row["decision_id"]] == "worker"


def outcome_reply(
    row: Mapping[str, Any], *, known: Mapping[str, str], new: set[str], standing: Mapping[str, str]
) -> bool | RagBanditError:
    """True for a new outcome, False for one that is kept already, or what is wrong with it.

    known: who runs each decision; new: decisions whose outcome was inserted; standing: hashes of what is stored.
    """
    key = row["decision_id"]
    if key not in known:
        return unknown_decision()
    if standing.get(key) == row["body_hash"]:
        return key in new
    if is_foreign(row, known):
        return Conflict(
            "our workers run this decision, so its outcome comes from them",
            field="decision_id",
            remedy="wait for it (GET /v1/decisions/{id}, or POST /v1/answer again), or cancel it; report outcomes of "
            "decisions that /v1/route made",
        )
    if key in new:
        return True
    if row["run_by"] == "worker":
        return False
    return Conflict(
        "this decision has another outcome already",
        field="decision_id",
        remedy="the first outcome stays; route the question again to run it again",
    )


def feedback_reply(
    row: Mapping[str, Any], *, is_new: bool, standing: tuple[str, bool] | None
) -> Receipt | RagBanditError:
    """The receipt of a feedback, or what is wrong with it.

    is_new: this very row was inserted; standing: hash and lateness of what is stored under its id; None: nothing.
    """
    if standing is None:
        return unknown_decision()
    kept_hash, late = standing
    if kept_hash != row["body_hash"]:
        return Conflict(
            "this feedback id was used with another body", field="feedback_id", remedy="use a new id for new feedback"
        )
    return Receipt(feedback_id=row["id"], duplicate=not is_new, late=late)


def unknown_decision() -> NotFound:
    """The error for an id that no decision has."""
    return NotFound(
        "no decision has this id", field="decision_id", remedy="use the decision id that route or answer gave"
    )
