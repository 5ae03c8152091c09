"""What a report says of a log and its candidates in words: faults of the log, and notes for the reader."""

from collections.abc import Sequence
from dataclasses import replace

from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID, BY_TEXT
from ragbandit.router.offline.replay.candidates import CandidatePmf
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan
from ragbandit.router.offline.replay.sums import LogSummary
from ragbandit.shared.types import ArmName

#: a log with a smaller share of different questions says so
FRESH = 0.8


def faults_of(summary: LogSummary, *, candidates: Sequence[CandidateSpec], alpha: float) -> tuple[str, ...]:
    """Faults of the log; the checks share ALPHA."""
    faults = []
    for arm, plausible, drawn, expected in zip(
        summary.names, summary.arms.plausible(alpha=alpha), summary.arms.drawn, summary.arms.expected, strict=True
    ):
        if not plausible:
            less = "less" if drawn < expected else "more"
            faults.append(
                f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn as "
                f"logged, or its answers were judged {less} often than others"
            )
    if not summary.arms.likely(alpha=alpha):
        more = "more" if summary.arms.surplus > 0.0 else "less"
        faults.append(f"the arms that were drawn are {more} likely by the logged probabilities than chance allows")
    for spec, tally in zip(candidates, summary.weights, strict=True):
        if not tally.plausible(alpha=alpha):
            low, high = tally.mean_interval(alpha=alpha)
            faults.append(
                f"the weights of {spec.name} average {tally.total / tally.rows:.3f} ({low:.3f} to {high:.3f}), "
                f"where true probabilities give {1.0 - tally.unsupported_mass:.3f}"
            )
    return tuple(faults)


def noted(described: CandidatePmf, spec: CandidateSpec, summary: LogSummary) -> CandidatePmf:
    """With a word on rows that did not offer the arm of a fixed candidate."""
    if spec.kind != "fixed" or spec.what not in summary.names:
        return described
    missing = summary.rows - int(summary.offered[summary.names.index(ArmName(spec.what))])
    if not missing:
        return described
    note = f"{spec.what} was not offered in {missing} rows: there all offered arms alike"
    return replace(described, notes=(note, *described.notes))


def notes_on(summary: LogSummary, *, plan: Plan, undrawn: int) -> list[str]:
    """What the reader must know of the log. undrawn: rows that were left out, as nobody drew their arm."""
    notes = _notes_on_rows(summary, undrawn=undrawn) + _notes_on_questions(summary, plan=plan)
    if not summary.has_features and plan.reward_model != "mean":
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and summary.raw:
        notes.append(f"{summary.raw} rewards came whole: they keep their value whatever the weight of cost")
    if summary.defaulted:
        notes.append(f"{summary.defaulted} of {summary.rows} rewards are the default: nobody judged those answers")
    return notes


def _notes_on_rows(summary: LogSummary, *, undrawn: int) -> list[str]:
    """Rows that no candidate could have moved, questions that come again and again, rewards of a judge."""
    notes = []
    if undrawn:
        reason = "each stayed on the arm of an earlier turn of its session, or was pinned"
        notes.append(f"{undrawn:,} decisions are left out: {reason}")
    texts, different = int(summary.known_by[BY_TEXT]), summary.different_texts
    if texts and different <= FRESH * texts:
        reason = "the intervals speak of more traffic with these questions, not of new ones"
        notes.append(f"{different} different questions in {texts} rows: {reason}")
    if summary.judged and summary.rating_weight <= 1.0:  # otherwise they were completed
        notes.append(
            f"{summary.judged:,} of {summary.rows:,} rewards are a judge's, taken as they were learned: --judged "
            "corrects them by people's ratings, and its intervals count what the judge gets wrong"
        )
    return notes


def _notes_on_questions(summary: LogSummary, *, plan: Plan) -> list[str]:
    """How repeated questions are recognised, where not by their text: the folds hang on it."""
    notes = []
    if summary.known_by[BY_FEATURES]:
        reason = "those with the same features count as the same question in the folds"
        notes.append(f"{summary.known_by[BY_FEATURES]:,} rows have no text: {reason}")
    if summary.known_by[BY_ID]:
        reason = "a question that occurs several times is not recognised, and may lie in several folds"
        notes.append(f"{summary.known_by[BY_ID]:,} rows have neither text nor features: {reason}")
    if plan.folds_by == "decision":
        reason = "the folds are by decision, so a question may be judged by what was learned from it"
        notes.append(f"the log has too few different questions: {reason}")
    return notes
