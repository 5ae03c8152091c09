"""Pairs: the learner's calibrator, and where it finds decisions that a model and a person have judged."""

from collections.abc import Sequence
from dataclasses import replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import Example
from ragbandit.router.learning.ratings.calibration import KEPT, Calibrator, calibrated
from ragbandit.router.learning.ratings.raters import scored_and_judged, standing
from ragbandit.router.learning.sources.screening import Screening
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.calibration_rows import due_pairs, last_pair, paired, read_pairs
from ragbandit.shared.types import ArmName, CalibrationPair, ClosedDecision, Decision, JoinedDecision


def calibrator_at(ledger: Ledger, *, before_seq: int | None = None) -> Calibrator:
    """The calibrator at the ledger's end, or as update `before_seq` was calibrated."""
    last = last_pair(ledger.database, label=ledger.label, before_seq=before_seq)
    first = max(0, last - 2 * KEPT)
    calibrator = Calibrator(count=first)
    calibrator.extend(read_pairs(ledger.database, label=ledger.label, after=first, upto=last))
    return calibrator


class Pairs:
    """The calibrator of one learner, at the end of its ledger."""

    def __init__(self, ledger: Ledger, *, settings: Settings, screening: Screening) -> None:
        self.ledger, self.settings, self.screening = ledger, settings, screening
        self._calibrator = Calibrator()

    def catch_up(self) -> None:
        """Start from the stored pairs."""
        self._calibrator = calibrator_at(self.ledger)

    def follow(self) -> None:
        """Take what another learner has stored meanwhile."""
        after = self._calibrator.count
        self._calibrator.extend(read_pairs(self.ledger.database, label=self.ledger.label, after=after))

    def known(self, batch: Sequence[JoinedDecision | ClosedDecision]) -> set[str]:
        """Those of these decisions that have their pair already."""
        open_ones = [one for one in batch if isinstance(one, JoinedDecision)]
        scored = [one.decision.id for one in open_ones if any(item.source == "judge" for item in one.feedback)]
        return paired(self.ledger.database, scored, label=self.ledger.label)

    def calibrated(self, example: Example, *, arm: ArmName) -> Example:
        """The example, a model's score in it worth what people said of such scores, where enough of them did."""
        fit = self._calibrator.fit if example.is_score and self.settings.learning.calibrate else None
        return example if fit is None else replace(example, reward=calibrated(example.reward, arm=arm, fit=fit))

    def add(self, decision: Decision, pair: tuple[float, float], *, after_seq: int) -> CalibrationPair:
        """The next pair, to be stored with update `after_seq`. pair: (a model's score, the quality by people)."""
        score, quality = pair
        stored = CalibrationPair(
            number=self._calibrator.count + 1,
            decision_id=decision.id,
            arm=decision.arm,
            score=score,
            quality=quality,
            after_seq=after_seq,
        )
        self._calibrator.extend([stored])
        return stored

    def take_late(self, *, holder: str) -> int:
        """Store pairs of decisions that late feedback has reached: a score or a person's word came after closing.

        The number of decisions that were looked at. Raises Conflict if the lease is lost.
        """
        database, label, learning = self.ledger.database, self.ledger.label, self.settings.learning
        due = due_pairs(database, label=label, limit=learning.batch)
        if not due:
            return 0
        done = paired(database, due, label=label)
        measure, pairs = self.settings.reward.quality, []
        open_ones = self.ledger.joined([key for key in due if key not in done])
        self.screening.look_up(open_ones)
        for joined in (self.screening.screened(one).joined for one in open_ones):
            pair = scored_and_judged(
                standing(joined.feedback), outcome=joined.outcome, measure=measure, how=learning.aggregate
            )
            if pair is not None:
                pairs.append(self.add(joined.decision, pair, after_seq=0))
        self.ledger.add_pairs(pairs, due=due, holder=holder)
        return len(due)
