"""The diagnoser: stores the diagnosis of a ledger's policy, and its frontier."""

import math
import time

from ragbandit.router.config.settings import PolicySettings, RewardSettings
from ragbandit.router.learning.monitoring.diagnosis import diagnose
from ragbandit.router.learning.monitoring.frontier import EVERY_S, frontier_text
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.ledger import Ledger


class Diagnoser:
    def __init__(self, ledger: Ledger, *, settings: PolicySettings, reward: RewardSettings) -> None:
        self._ledger, self._settings, self._reward = ledger, settings, reward
        self._frontier_due = -math.inf

    def store(self, policy: Policy, *, encoder_hash: str) -> None:
        """Store the diagnosis of this policy and, at most every EVERY_S seconds, its frontier. Raises StoreError."""
        weight, cost = self._reward.weight, self._reward.cost
        diagnosis = diagnose(self._ledger, policy, settings=self._settings, weight=weight, encoder_hash=encoder_hash)
        texts = {"diagnosis": diagnosis}
        if time.monotonic() >= self._frontier_due:
            self._frontier_due = time.monotonic() + EVERY_S
            texts["frontier"] = frontier_text(
                self._ledger, policy, settings=self._settings, cost=cost, encoder_hash=encoder_hash
            )
        self._ledger.note(**texts)
