"""Calibration check: the calibrated scores of a ledger, made again from its pairs and the scores as they were."""

from collections import deque

from ragbandit.router.learning.ratings.pairs import calibrator_at
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.calibration_rows import read_pairs
from ragbandit.shared.types import Update


class CalibrationCheck:
    """The calibrator as it was at every update."""

    def __init__(self, ledger: Ledger) -> None:
        self._calibrator = calibrator_at(ledger, before_seq=1)
        self._coming = deque(read_pairs(ledger.database, label=ledger.label, after=self._calibrator.count))

    def fault(self, update: Update) -> str | None:
        """What is wrong with a calibrated update; None if it is right, or was not calibrated. In the ledger's order."""
        while self._coming and self._coming[0].after_seq < update.seq:
            self._calibrator.extend([self._coming.popleft()])
        reward = update.reward
        if reward.raw_quality is None or update.imported:
            return None
        fit = self._calibrator.fit
        if fit is None:
            return f"its score is calibrated, by {self._calibrator.count} pairs: too few"
        quality, rows = fit.quality(reward.raw_quality, arm=update.arm), fit.rows(update.arm)
        if reward.quality != quality or reward.sample_weight not in (rows, 0.0):
            return f"the score {reward.raw_quality} is worth {quality} and counts as {rows} by the pairs before it"
        return None
