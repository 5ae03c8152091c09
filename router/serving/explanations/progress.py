"""Progress: where a decision is on its way to the ledger, and why it waits."""

from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.sql.closing import ClosingRule
from ragbandit.shared.formats import moment


def progress_of(record: DecisionRecord, *, rule: ClosingRule, held: frozenset[str]) -> str:
    """One sentence. held: ids of its feedback that is held back."""
    if record.state == "learned":
        return f"Learned from feedback, as update {record.learned_seq} of its ledger."
    if record.state == "defaulted":
        return f"Nobody judged it in time: the default reward was learned, as update {record.learned_seq}."
    if record.state in ("closed", "quarantined"):
        what = "Closed, and nothing was learned of it" if record.state == "closed" else "Quarantined: not learned"
        return f"{what}: {record.reason}."
    return _waiting(record, rule=rule, held=held)


def _waiting(record: DecisionRecord, *, rule: ClosingRule, held: frozenset[str]) -> str:
    decision, ends = record.decision, moment(record.decision.made_at + rule.wait_s + rule.expire_s)
    judgements = [item for item in record.feedback if item.value is not None]
    if judgements and held.issuperset(item.id for item in judgements):
        return f"Waits: all its feedback is held back (`ragbandit feedback held`); it is closed at {ends}."
    if record.reason is not None:
        return f"Waits: {record.reason.removeprefix('waiting for ')}; without one it is closed at {ends}."
    if decision.run_by == "worker" and record.outcome is None:
        return f"Waits for a worker's answer; without one it is closed at {ends}."
    if not judgements:
        awaited = "the outcome and feedback" if record.outcome is None else "feedback"
        return f"Waits for {awaited}; else it is closed at {ends}."
    window = decision.made_at + rule.wait_s
    if rule.wait_s > 0:
        return f"Has feedback, and collects more until {moment(window)}; then the learner takes it."
    return "Has all it needs: the learner takes it next."
