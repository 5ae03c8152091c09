"""Replay of a policy on its own log, and of better ones: how often it says the same, cannot tell, better or worse.

Each world is a service that learned while it served, by the code that serves: 400 questions, of which a part came again
and again, with the arms that answer each of them right drawn once. So the true difference of any two policies on the
questions that are judged is known, and with it how often the interval holds it.

    python -m benchmarks.same_policy --worlds 100 --publish
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.figures import machine
from benchmarks.publish import WORLDS_PAGE, fenced, put
from ragbandit.router.comparison import Difference
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import made_update, policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.offline.estimation import Flags
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay import (
    OpenLog,
    Plan,
    memory_log,
    parse_candidates,
    prepare,
    replay,
    without_certain_start,
)
from ragbandit.router.offline.replay.opening import Recorded
from ragbandit.router.offline.replay.plan import CandidateResult, current_candidate, served_name
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.policies.draw import Offer, made_decisions, outputs_of
from ragbandit.shared.types import IMPORTED, ArmName, Decision, DecisionId, Matrix, PolicyLabel, Query, Reward

ARMS = (ArmName("no_retrieval"), ArmName("single_step"), ArmName("multi_step"))
#: features of a question; what one more step costs
WIDTH, PRICE = 16, 0.1
VERDICTS = ("same policy", "not known yet", "as good", "better", "worse")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a service was used."""

    questions: int = 100
    #: how often each comes
    passes: int = 4
    #: labelled questions, of all arms, that the ledger began with
    warm: int = 0
    #: decisions that wait for their feedback at any time
    late: int = 3


@dataclass(frozen=True, kw_only=True)
class World:
    """A service's log, and what is true of its questions."""

    settings: Settings
    log: OpenLog
    #: which arms answer a question right, shape (questions, K), and the question of each decision
    right: Flags
    asked: Mapping[DecisionId, int]
    #: the snapshot that had learned three quarters of the log, where it was kept
    version: str

    def value(self, log: Log, pmf: Matrix) -> float:
        """What a policy with these probabilities truly earns a question on these rows; pmf (n, K)."""
        ids = log.batch.column("id").to_pylist()
        worth = self.right[[self.asked[key] for key in ids]] - PRICE * np.arange(len(ARMS))
        return float((worth * pmf).sum(axis=1).mean())


def lived(settings: Settings, *, seed: int = 0, shape: Shape | None = None, keep: bool = False) -> World:
    """A world. Each question comes once in every pass, in another order. keep: settings.data_dir gets the snapshot."""
    shape, random = shape or Shape(), np.random.default_rng(seed)
    count = shape.questions + shape.warm
    features = random.normal(size=(count, WIDTH)).astype(np.float32)
    slopes = 1.5 * random.normal(size=(WIDTH, len(ARMS))) / np.sqrt(WIDTH)
    chances = 1.0 / (1.0 + np.exp(-(np.array([-0.9, -0.3, 0.3]) + features @ slopes)))
    right = random.random((count, len(ARMS))) < chances
    policy, rows, waiting, asked = policy_of(settings), list[Logged](), list[Decision](), dict[DecisionId, int]()
    for decision, place in _labelled(settings, seed=seed, shape=shape, features=features):
        asked[decision.id] = place
        rows.append(learned(policy, decision, right=right[place], seq=len(rows) + 1))
    rounds = [random.permutation(shape.questions) for _ in range(shape.passes)]
    total, version = len(rows) + shape.questions * shape.passes, ""
    for number, place in enumerate(np.concatenate(rounds).tolist()):
        [decision] = _decided(
            policy, place, number=number, settings=settings, features=features, seen=len(rows), seed=seed
        )
        asked[decision.id] = place
        waiting.append(decision)
        while len(waiting) > (shape.late if number + 1 < len(rounds) * shape.questions else 0):
            first = waiting.pop(0)
            rows.append(learned(policy, first, right=right[asked[first.id]], seq=len(rows) + 1))
            if keep and len(rows) == 3 * total // 4:
                version = _kept(policy, settings=settings, seq=len(rows))
    made = served_name(policy.algorithm, params=policy.params)
    log = memory_log(rows, recorded_elsewhere=Recorded(policies={"main": frozenset({made})}))
    return World(settings=settings, log=log, right=right, asked=asked, version=version)


def _labelled(settings: Settings, *, seed: int, shape: Shape, features: Any) -> Iterator[tuple[Decision, int]]:
    """The rows of a warm start, a row for each question and arm, with the place of the question."""
    for place in range(shape.questions, shape.questions + shape.warm):
        for arm in ARMS:
            key = DecisionId(f"warm-{seed}-{place}-{arm}")
            [decision] = made_decisions(
                [Offer(query=Query(id=key, text=f"question {place}"), run_by="caller", arms=ARMS)],
                outputs=[ValueError("a table")],
                features=[features[place]],
                settings=settings,
                seen={},
                version="",
                encoder_hash="e" * 64,
                now=1.6e9 + place,
            )
            share = 1.0 / len(ARMS)
            drawn: dict[str, Any] = {"arm": arm, "pmf": (share,) * len(ARMS), "propensity": share}
            drawn |= {"facts": {IMPORTED: "table"}}
            yield replace(decision, fault=None, floor=0.0, **drawn), place


def _decided(
    policy: Policy, place: int, *, number: int, settings: Settings, features: Any, seen: int, seed: int
) -> list[Decision]:
    """The decision on one question, by the code that serves; seen: updates that the policy has learned."""
    query = Query(id=DecisionId(f"served-{seed}-{number:05}"), text=f"question {place}")
    return made_decisions(
        [Offer(query=query, run_by="caller", arms=ARMS)],
        outputs=outputs_of(policy, [query], features=features[place][None], arms=[ARMS]),
        features=[features[place]],
        settings=settings,
        seen=policy.seen,
        version=f"main-{seen}-x",
        encoder_hash="e" * 64,
        now=1.7e9 + number,
    )


def learned(policy: Policy, decision: Decision, *, right: Flags, seq: int) -> Logged:
    """The row of the ledger, after the policy has learned it; right: which arms answer its question, (K,)."""
    place = ARMS.index(decision.arm)
    quality, cost = float(right[place]), float(place)
    reward = Reward(
        value=quality - PRICE * cost,
        quality=quality,
        cost=cost,
        weight=PRICE,
        minimum=-1.0,
        maximum=1.0,
        terms={"steps": 1.0},
        preset="rating",
        source="explicit",
    )
    assert apply(policy, made_update(decision, reward, label=PolicyLabel("main"), seq=seq, now=decision.made_at))
    return Logged(decision=decision, reward=reward, seq=seq)


def _kept(policy: Policy, *, settings: Settings, seq: int) -> str:
    """The version of a snapshot of the policy as it is, in the folder of these settings."""
    info, tensors, facts = pack(policy, label=PolicyLabel("main"), last_seq=seq, encoder_hash="e" * 64, now=1.7e9)
    SnapshotFiles(settings.snapshot_root).write(info, tensors, facts)
    return info.version


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to ask, of one kind of service."""

    name: str
    #: policy settings of the service
    policy: Mapping[str, Any]
    #: candidate; None: the service's policy by name; "snapshot": its snapshot after three quarters
    candidate: str | None = None
    shape: Shape = field(default_factory=Shape)
    plan: Plan = field(default_factory=Plan)


_MBA: Mapping[str, Any] = {"name": "mba"}
_HELD: Mapping[str, Any] = {"name": "mba", "incumbent": "single_step", "harm": 0.3}
_COLD: Mapping[str, Any] = {"name": "linucb", "floor": 0.05, "cold_start_floor": 0.1, "cold_start_outcomes": 60}
FIXED: Mapping[str, Any] = {"name": "fixed", "params": {"arm": "multi_step"}, "floor": 0.05}
_ONCE, _LOGGED = Shape(questions=400, passes=1), Plan(baseline="logged")
_WARM = Shape(warm=40)

#: a policy on its own log
SAME = (
    Way(name="mba by name", policy=_MBA),
    Way(name="mba by name, warm", policy=_MBA, shape=_WARM),
    Way(name="mba by name, incumbent", policy=_HELD),
    Way(name="linucb by name, cold-start floor", policy=_COLD),
    Way(name="mba by name, as it served", policy=_MBA, plan=_LOGGED),
    Way(name="mba by name, warm, as it served", policy=_MBA, shape=_WARM, plan=_LOGGED),
    Way(name="mba by snapshot", policy=_MBA, candidate="snapshot", shape=_ONCE),
    Way(
        name="mba by snapshot, warm",
        policy=_MBA,
        candidate="snapshot",
        shape=Shape(questions=400, passes=1, warm=40),
    ),
    Way(name="mba by snapshot, as it served", policy=_MBA, candidate="snapshot", shape=_ONCE, plan=_LOGGED),
)
#: others
OTHERS = (
    Way(name="linucb on a log of mba", policy=_MBA, candidate="linucb"),
    Way(
        name="fixed:multi_step on a log of mba",
        policy=_MBA,
        candidate="fixed:multi_step",
        plan=Plan(baseline="current"),
    ),
    Way(name="mba on a log of fixed", policy=FIXED, candidate="mba"),
    Way(name="mba on a log of fixed, 1,200 rows", policy=FIXED, candidate="mba", shape=Shape(questions=300)),
    Way(name="mba on a log of fixed, 3,600 rows", policy=FIXED, candidate="mba", shape=Shape(questions=900)),
    Way(
        name="mba on a log of linucb, 3,600 rows",
        policy={"name": "linucb"},
        candidate="mba",
        shape=Shape(questions=900),
    ),
)


def judged(way: Way, *, seed: int, folder: Path) -> tuple[CandidateResult, float]:
    """Replay's result for the candidate in one world, and the true difference on the rated rows."""
    settings = Settings.model_validate({"policy": way.policy, "data_dir": str(folder)})
    world = lived(settings, seed=seed, shape=way.shape, keep=way.candidate == "snapshot")
    name = settings.policy.name if way.candidate is None else way.candidate
    name = world.version if name == "snapshot" else name
    params = {name: settings.policy.params} if way.candidate is None else {}
    specs = parse_candidates([name], params=params)
    result = replay(world.log, candidates=specs, plan=way.plan, settings=settings)
    candidate = result.candidates[0]
    reward = candidate.comparison.reward if candidate.comparison is not None else Difference()
    if candidate.same_policy and (reward.low, reward.high) == (0.0, 0.0):
        return candidate, 0.0
    specs += [current_candidate(settings)] if way.plan.baseline != "logged" else []
    ready = prepare(world.log.read(), candidates=specs, plan=way.plan, settings=settings)
    [part] = without_certain_start([ready.part()])
    log = ready.log.log.part(np.isin(ready.log.log.keys, np.concatenate([rows.keys for rows in part.batches()])))
    mine, *theirs = [np.concatenate(pmfs) for pmfs in zip(*(rows.candidates for rows in part.batches()), strict=True)]
    truth = world.value(log, mine) - world.value(log, theirs[0] if theirs else log.pmf)
    return candidate, truth


def tallied(way: Way, *, worlds: int, progress: Progress | None = None) -> tuple[Counter[str], list[float], int]:
    """Verdicts, true differences, and in how many worlds the interval held the truth."""
    verdicts, truths, held = Counter[str](), list[float](), 0
    seeds: Any = range(worlds) if progress is None else progress.track(range(worlds), description=way.name)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            candidate, truth = judged(way, seed=seed, folder=Path(folder))
        assert candidate.comparison is not None
        gap = candidate.comparison.reward
        verdicts["same policy" if candidate.same_policy else candidate.comparison.verdict] += 1
        truths.append(truth)
        held += gap.low is not None and gap.high is not None and gap.low - 1e-9 <= truth <= gap.high + 1e-9
    return verdicts, truths, held


def main(words: Sequence[str]) -> None:
    """Print the table, and publish it with --publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_policy", description=__doc__)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--publish", action="store_true", help=f"put the table into {WORLDS_PAGE.name}")
    asked = parser.parse_args(words)
    console = Console(width=150, record=asked.publish)
    names = (
        "the same",
        *VERDICTS[1:],
        "interval holds the truth",
        "true difference",
    )
    table = Table("what is asked", *names, title=f"replay, verdicts in {asked.worlds} worlds")
    with Progress(console=Console(stderr=True)) as progress:
        for group in (SAME, OTHERS):
            for way in group:
                verdicts, truths, held = tallied(way, worlds=asked.worlds, progress=progress)
                shares = [str(verdicts[verdict]) for verdict in VERDICTS]
                table.add_row(way.name, *shares, str(held), f"{np.mean(truths):+.3f}", end_section=way is group[-1])
                progress.console.print(way.name, *shares, held)
    console.print(table)
    console.print(machine())
    if asked.publish:
        put("same-policy", fenced(console.export_text()), file=WORLDS_PAGE)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
