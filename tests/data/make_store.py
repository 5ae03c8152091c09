"""Makes small stores with a decision of every guard, as the present code writes them.

    python -m tests.data.make_store

writes `store_native.tar.xz`, learned with the kernels of BLAS of this processor, and `store_nehalem.tar.xz`, with those
of an old one. If `test_released_store.py` fails because a ledger is of another revision of its policy, run it on a
processor with AVX2 and commit both files. In the commit of a release, copy `store_native.tar.xz` to
`store_VERSION.tar.xz`, which stays as it is. Ids, clock and the secret of the draws are fixed.
"""

import itertools
import os
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from ragbandit.router.config.loading import load
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.rollouts import verbs
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.shared_secrets import DRAWS
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import migrate
from ragbandit.router.storage.sql.tables import service_secrets
from ragbandit.shared.types import Decision, DecisionId, FeedbackId, PolicyLabel, Query
from tests.support.other_processor import KERNELS, old_processor, shared_processor

EPOCH: Final = 1_790_000_000.0
ACTOR: Final = {"actor": "cli:ann@host", "reason": "for the store of this release"}

_COMMON: Final[dict[str, Any]] = {
    "data_dir": "store",
    "encoder": {"model": "hashing", "dimension": 8},
    "arms": {name: {"class": "ragbandit.strategies.arms.basic:SingleStep"} for name in ("cheap", "usual", "dear")},
    "generator": {"name": "scripted", "token_prices": {"input": 2.0, "output": 2.0, "cached_input": 0.5}},
    "reward": {"cost": {"steps": 1.0, "dollars": 1.0}},
    "learning": {"snapshot_interval_s": 0.0, "labels_per_day": 200},
}
#: ledger -> settings: one with an incumbent, a holdback and prices; one with conversations and versions
CONFIGURATIONS: Final[dict[str, dict[str, Any]]] = {
    "main": {
        **_COMMON,
        "policy": {"label": "main", "incumbent": "usual", "harm": 0.5, "holdback": {"arm": "usual", "share": 0.1}},
        "cost_weights": {"economy": 0.2, "quality": 0.0},
    },
    "free": {
        **_COMMON,
        "policy": {"label": "free"},
        "health": {"failures": 3, "cool_down_s": 3600.0},
    },
}


class Service:
    """A Router with a clock of its own, and the words of its callers."""

    def __init__(self, settings: Settings, *, now: float) -> None:
        self.settings = settings
        self.router = Router.open(settings, jobs=MemoryJobs())
        self._times = itertools.count(now, 10.0)
        self.router.service.clock = lambda: next(self._times)

    def ask(self, text: str, **more: Any) -> Decision:
        key = DecisionId(f"{self.settings.policy.label}-{text.replace(' ', '-')}")
        return self.router.submit(Query(id=key, text=text, **more)).result(60)

    def end(self, decision: Decision, **more: Any) -> None:
        """The outcome of this decision; without a status it is answered."""
        values = {"status": "answered", "answer": "Paris", "steps": 1.0} | more
        outcome = make_outcome(decision_id=decision.id, now=next(self._times), **values)
        self.router.store.add_outcome(outcome)

    def judge(self, decision: Decision, **value: Any) -> None:
        now, key = next(self._times), FeedbackId(f"of-{decision.id}")
        feedback = make_feedback(decision_id=decision.id, settings=self.settings, now=now, **value)
        self.router.submit_feedback(replace(feedback, id=key)).result(60)

    def learn(self) -> None:
        self.router.learn()
        self.router.refresh()

    def teach(self, what: str, count: int, **more: Any) -> None:
        """Answered and judged questions, which the policy learns."""
        for number in range(count):
            decision = self.ask(f"{what} {number}", **more)
            self.end(decision)
            if number % 3 == 0:
                self.judge(decision, label=["Paris"])
            elif number % 3 == 1:
                self.judge(decision, rating=4, scale="1-5")
            else:
                self.judge(decision, reward=0.25)
        self.learn()


def _guarded(service: Service) -> None:
    """Incumbent, holdback, label queue, named and plain prices, an aim, and decisions that still wait."""
    service.teach("plain", 16)
    service.teach("cheaply", 6, cost_weight="economy")
    service.teach("at a price", 6, cost_weight=0.3)
    service.teach("aimed", 4, aim={"quality": 0.9})
    service.ask("waits")


def _free(service: Service) -> None:
    """A task, a breaker, a version in shadow and the kill switch."""
    service.teach("plain", 12)
    service.teach("turn", 3, session="talk", unit="task")
    for number in range(3):
        service.end(service.ask(f"fails {number}", arms=("dear",)), status="failed", answer=None, stop_reason="error")
    service.router.service.refresh_steps()
    service.teach("without dear", 3)
    database, base = service.router.database, PolicyLabel("free")
    verbs.add(database, base=base, name="v1", changes={"policy": {"name": "linucb"}}, now=EPOCH, **ACTOR)
    act = verbs.Act(verb="shadow", name="v1", base=base, now=EPOCH, **ACTOR)
    verbs.perform(database, act, settings=RolloutSettings())
    service.router.refresh()
    service.teach("shadow", 3)
    verbs.kill(database, base=base, arm="cheap", offered=("cheap", "usual", "dear"), now=EPOCH, **ACTOR)
    service.router.refresh()
    service.teach("pinned", 2)


def make(folder: Path) -> dict[str, str]:
    """Write the configurations and the data folder `store` into this folder. Returns ledger -> its newest snapshot."""
    (folder / "store").mkdir(parents=True)
    database = Database(f"sqlite:///{folder / 'store' / 'ragbandit.db'}")
    migrate(database)
    with database.write() as connection:
        row = {"name": DRAWS, "value": "5eed" * 16, "made_at": EPOCH}
        insert_new(connection, service_secrets, [row], key="name")
    database.close()
    newest = {}
    for number, (label, story) in enumerate({"main": _guarded, "free": _free}.items()):
        file = folder / f"{label}.yaml"
        file.write_text(yaml.safe_dump(CONFIGURATIONS[label]))
        settings = load(file).settings.model_copy(update={"data_dir": str(folder / "store")})
        service = Service(settings, now=EPOCH + 100_000.0 * number)
        with service.router as router:
            story(service)
            newest[label] = router.status().snapshot
    return newest


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(EPOCH)
    return member


def _pack(folder: Path, *, kernels: str) -> None:
    with tarfile.open(Path(__file__).with_name(f"store_{kernels}.tar.xz"), "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name, filter=_without_owner)


def main() -> None:
    """Make a store here and one on an old processor, and pack both."""
    held_back = sorted(old_processor().keys() & os.environ.keys())
    if held_back:
        raise SystemExit(f"this process is to use the processor as it is: unset {', '.join(held_back)}")
    with tempfile.TemporaryDirectory() as name:
        native, old = Path(name, "native"), Path(name, "old")
        with shared_processor(Path(name, "processor.json"), kernels=KERNELS[:1]) as other:
            here, there = make(native), other.call(make, old)
        if same := here.items() & there.items():
            raise SystemExit(f"both processors learned the same bits: {dict(same)}")
        _pack(native, kernels="native")
        _pack(old, kernels=KERNELS[0].lower())


if __name__ == "__main__":
    from tests.data import make_store  # under this name the other process imports its functions, too

    make_store.main()
