"""Candidates for the made-up traffic: two in shadow, one that is a draft. The clock is set."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import Json, PolicyLabel

#: part of the time that is over when it happens -> what differs, the verbs, and why
_STEPS: Final[tuple[tuple[float, Mapping[str, Json], tuple[verbs.Verb, ...], str], ...]] = (
    (0.2, {"reward": {"weight": 0.07}}, ("shadow",), "steps may cost less"),
    (0.4, {"policy": {"name": "fixed", "params": {"arm": "no_retrieval"}}}, ("shadow",), "a faster answer"),
    (1.0, {"policy": {"name": "linucb"}}, (), "textbook optimism"),
)


class Learners:
    """Learners of the configuration and of every version that learns."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._learners: dict[str, Learner] = {}

    def learn(self, *, now: float) -> None:
        """Learn what is ready at this time, and let the router take it over."""
        router = self._router
        of_versions = [settings_of(router.settings, version) for version in router.process.versions.learning]
        for settings in (router.settings, *of_versions):
            label = settings.policy.label
            if label not in self._learners:
                ledger = Ledger(router.database, label=PolicyLabel(label))
                self._learners[label] = make_learner(settings, ledger, jobs=router.process.jobs)
            self._learners[label].clock = lambda: now
            self._learners[label].drain()
        router.refresh()


class Rollout:
    """People's steps with candidates."""

    def __init__(self, router: Router) -> None:
        self._router, self._left = router, list(_STEPS)

    def go_on(self, share: float, *, now: float) -> None:
        """Do the steps that are due after this share of the time."""
        while self._left and self._left[0][0] <= share:
            _, changes, wanted, reason = self._left.pop(0)
            told: dict[str, Any] = {"base": self._router.ledger.label, "actor": "cli:ann@office", "reason": reason}
            made = verbs.add(self._router.database, changes=changes, now=now, **told)
            for verb in wanted:
                act = verbs.Act(verb=verb, name=made.name, now=now, **told)
                verbs.perform(self._router.database, act, settings=self._router.settings.rollout)
            self._router.refresh()
