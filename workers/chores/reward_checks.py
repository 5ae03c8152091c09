"""Scores answers by `reward.check`."""

from collections.abc import Iterable

from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.judge.reward_check import check_reward_check
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.jobs import check_answers
from ragbandit.workers.scoring.scorers import Checking


class RewardChecks(Chore):
    title = "check answers"
    every_s = 1.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        check_reward_check(context.settings.reward)
        self._checking = Checking(context.settings.reward, store=context.store)
        context.scorers.append(self._checking)

    @classmethod
    def of(cls, context: Context) -> "Iterable[RewardChecks]":
        return [] if context.settings.reward.check is None else [cls(context)]

    def do(self) -> None:
        check_answers(self.context, self._checking)

    def end(self) -> None:
        self._checking.process.end()
