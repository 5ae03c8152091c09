"""What context is worth, and what it costs where it is worth nothing: two made worlds, and the papers' routing table.

    python -m benchmarks.learning.context

- alone: four kinds of customers, each with an arm of its own; the questions tell nothing.
- product: two kinds of customers and two topics; for one kind the topics' arms are exchanged. The question alone tells
  nothing, the context alone neither.
- useless: the routing table with 20 keys drawn at random, which make 54 columns, beside the same table without.

A row of a made world is right by chance, 90 % with its best arm and 50 % with the others. After 1,000 of them 500 more
are asked for, and not learned: the expected reward of the best arm by the policy's scores (greedy), and of a draw from
its pmf with the floor (served), both as shares of what the oracle has.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.table import Table

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.simulation import Simulated, simulate
from ragbandit.router.offline.simulation.run import Learning, SimulationData, SimulationRun, split_of
from ragbandit.router.policies import make_policy, with_settings
from ragbandit.router.policies.draw import with_floor
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, TableRow
from ragbandit.testing.policy_examples import ARMS as EXAMPLE_ARMS
from ragbandit.testing.policy_examples import made_features, made_query, made_updates

ARMS: Final = tuple(ArmName(name) for name in ("no_retrieval", "single_step", "multi_step", "iter_retgen"))
TIERS: Final = ("free", "team", "pro", "internal")
POLICIES: Final = ("mba", "linucb", "vw")
#: params beside the defaults that are measured with the context: what mba begins with beside an incumbent
MORE: Final[Mapping[str, Mapping[str, Json]]] = {"mba": {"explore": 0.2}}
#: rows learned, and asked for after them
LEARNED, ASKED = 1000, 500
#: probability that the best arm is right, and any other
RIGHT, WRONG = 0.9, 0.5
SIZE: Final = 256

TABLE: Final = Path(__file__).parents[3] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: questions that the routing table was made from
TOTAL: Final = 3000
#: mean steps at which EM above the line is read
STEPS: Final = "1.85"


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeRow:
    """A policy in a made world: means over seeds, as shares of the oracle's reward."""

    world: str
    policy: str
    #: what it reads: "question + context", "question", "context" or "nothing"
    reads: str
    greedy: float
    served: float
    #: reward of the pass itself
    first_pass: float


@dataclass(frozen=True, kw_only=True, slots=True)
class UselessRow:
    """A policy on the routing table, with useless context and without."""

    policy: str
    #: mean steps at which it is read: STEPS, or the policy's own where it keeps no cost apart
    at: str
    #: EM above the line there, and its standard error over seeds
    without: float
    without_error: float
    useless: float
    useless_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeWorld:
    """Rows of a made world; the first LEARNED are learned."""

    name: str
    #: expected quality of each arm, shape (n, arms)
    means: Matrix
    features: FeatureRows
    contexts: Sequence[Mapping[str, Json]]
    schema: Mapping[str, Json]

    def data(self, *, seed: int, schema: Mapping[str, Json], features: FeatureRows) -> SimulationData:
        """As a simulation reads it: outcomes by chance where they are learned, expected ones where they are judged."""
        drawn = (np.random.default_rng([seed, 7]).random(self.means.shape) < self.means).astype(np.float64)
        return SimulationData(
            table=self._table(drawn, first=0, last=LEARNED),
            test=self._table(self.means, first=LEARNED, last=LEARNED + ASKED),
            folds=1,
            settings=Settings.model_validate({"context": schema}),
            features=features[:LEARNED],
            test_features=features[LEARNED:],
        )

    def _table(self, quality: Matrix, *, first: int, last: int) -> LabelledTable:
        arms = ARMS[: quality.shape[1]]
        rows = tuple(
            TableRow(
                id=f"made-{place}",
                question=f"question {place}",
                correct=dict(zip(arms, map(float, quality[place]), strict=True)),
                steps=dict.fromkeys(arms, 0.0),
                context=self.contexts[place],
            )
            for place in range(first, last)
        )
        return LabelledTable(rows=rows, arms=arms)


def made_world(name: str, *, seed: int) -> MadeWorld:
    """The world "alone" or "product" of a seed."""
    random = np.random.default_rng([seed, 3])
    count = LEARNED + ASKED
    topic = random.integers(2, size=count)
    centres = np.random.default_rng(11).standard_normal((2, SIZE)) * 0.7
    features = centres[topic] + random.standard_normal((count, SIZE))
    features /= np.sqrt(np.mean(features**2, axis=1, keepdims=True))
    kinds = TIERS if name == "alone" else TIERS[:2]
    tier = random.integers(len(kinds), size=count)
    best = tier if name == "alone" else topic ^ tier
    means = np.full((count, 4 if name == "alone" else 3), WRONG)
    means[np.arange(count), best] = RIGHT
    contexts: list[dict[str, Json]] = [{"tier": kinds[one], "age_days": int(random.integers(400))} for one in tier]
    schema: dict[str, Json] = {
        "tier": {"type": "category", "values": list(kinds)},
        "age_days": {"type": "number"},
    }
    return MadeWorld(name=name, means=means, features=features.astype(np.float32), contexts=contexts, schema=schema)


def made_rows(*, seeds: int = 5) -> Iterator[MadeRow]:
    """The made worlds: every policy with context, without, and with the context alone; baselines."""
    for name in ("alone", "product"):
        worlds = [made_world(name, seed=seed) for seed in range(seeds)]
        for policy in POLICIES:
            for reads in ("question + context", "question", "context"):
                found = [shares(world, policy=policy, reads=reads, seed=seed) for seed, world in enumerate(worlds)]
                greedy, served, first_pass = map(float, np.mean(found, axis=0))
                yield MadeRow(
                    world=name, policy=policy, reads=reads, greedy=greedy, served=served, first_pass=first_pass
                )
        for policy, more in MORE.items():
            reads = "question + context"
            found = [
                shares(world, policy=policy, reads=reads, seed=seed, more=more) for seed, world in enumerate(worlds)
            ]
            greedy, served, first_pass = map(float, np.mean(found, axis=0))
            named = f"{policy}, {', '.join(f'{key} {value}' for key, value in more.items())}"
            yield MadeRow(world=name, policy=named, reads=reads, greedy=greedy, served=served, first_pass=first_pass)
        always = float(np.mean([world.means.mean(axis=0).max() / RIGHT for world in worlds]))
        even = float(np.mean([world.means.mean() / RIGHT for world in worlds]))
        for policy, share in (("best fixed arm", always), ("uniform", even)):
            yield MadeRow(world=name, policy=policy, reads="nothing", greedy=share, served=share, first_pass=share)


def shares(
    world: MadeWorld, *, policy: str, reads: str, seed: int, more: Mapping[str, Json] = MappingProxyType({})
) -> tuple[float, float, float]:
    """(greedy, served, first pass) of one run.

    reads: "question + context", "question" or "context". more: params beside the defaults.
    """
    features = np.zeros_like(world.features) if reads == "context" else world.features
    data = world.data(seed=seed, schema={} if reads == "question" else world.schema, features=features)
    params = with_settings(policy, params=more, schema=data.settings.context)
    learning = Learning(SimulationRun(policy=policy, params=params, weight=0.05, seed=seed, fold=0), world=data)
    train, test = split_of(data, seed=seed, fold=0)
    for place in train:
        learning.step(int(place))
    if learning.refused or learning.faults:
        raise RuntimeError(f"{policy}: {learning.reason}")
    means, floor = world.means[LEARNED:], data.settings.policy.floor_of(len(world.means[0]))
    drawn = learning.predicted(test)
    greedy = served = 0.0
    for one, mean in zip(drawn, means, strict=True):
        assert one.scores is not None
        greedy += float(mean[int(np.argmax(one.scores))])
        served += float(np.dot(with_floor(one.pmf, floor=floor), mean))
    best = RIGHT * len(means)
    return greedy / best, served / best, float(np.mean(learning.earned)) / RIGHT


def _useless(table: LabelledTable) -> tuple[LabelledTable, dict[str, Json]]:
    """The table with 20 keys that tell nothing, and their schema."""
    random = np.random.default_rng(17)
    schema: dict[str, Json] = {f"number_{n}": {"type": "number"} for n in range(10)}
    schema |= {f"flag_{n}": {"type": "boolean"} for n in range(7)}
    schema |= {f"kind_{n}": {"type": "category", "values": ["a", "b", "c"]} for n in range(2)}
    schema["customer"] = {"type": "category", "hashed": 9}
    rows = []
    for row in table.rows:
        context: dict[str, Json] = {f"number_{n}": float(random.normal()) for n in range(10)}
        context |= {f"flag_{n}": bool(random.random() < 0.5) for n in range(7)}
        context |= {f"kind_{n}": "abc"[int(random.integers(3))] for n in range(2)}
        context["customer"] = f"c{int(random.integers(50))}"
        rows.append(replace(row, context=context))
    return replace(table, rows=tuple(rows)), schema


def useless_rows(
    *, seeds: int = 10, policies: Sequence[str] = ("mba", "linucb", "vw"), jobs: int = 1
) -> Iterator[UselessRow]:
    """The routing table in 5 folds, with useless context and without; nothing where the table is not there."""
    if not TABLE.exists():
        return
    table, schema = _useless(read_table(TABLE))
    with tempfile.TemporaryDirectory() as folder:
        found: dict[bool, dict[str, Simulated]] = {}
        for useless in (False, True):
            settings = Settings.model_validate({"data_dir": folder, "context": schema if useless else {}})
            rows = simulate(
                table,
                policies={name: {} for name in policies},
                total=TOTAL,
                seeds=seeds,
                settings=settings,
                encoder=lambda: make_encoder(Settings().encoder),
                jobs=jobs,
            )
            found[useless] = {row.policy: row for row in rows}
    for name in policies:
        read = [_above(found[useless][name]) for useless in (False, True)]
        at = STEPS if found[False][name].above_line_at[STEPS] is not None else "its own"
        yield UselessRow(
            policy=name,
            at=at,
            without=read[0][0],
            without_error=read[0][1],
            useless=read[1][0],
            useless_error=read[1][1],
        )


def _above(row: Simulated) -> tuple[float, float]:
    """EM above the line, and its standard error over seeds."""
    said = row.as_json()
    if said["above_line_at"][STEPS] is None:
        return said["above_line"], said["above_line_se"]
    return said["above_line_at"][STEPS], said["above_line_at_se"][STEPS]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRow:
    """What mba costs on 256 features: processor time of a row and of a decision, and bytes of its state."""

    reads: str
    learn_ms: float
    decide_ms: float
    state_mb: float


def work_rows(*, count: int = 3000, asked: int = 500) -> Iterator[WorkRow]:
    """Mba without a schema, and with one of 40 columns."""
    schema: dict[str, Json] = {
        "hop": {"type": "number"},
        "premium": {"type": "boolean"},
        "user": {"type": "category", "hashed": 35},
    }
    updates = made_updates(count, size=SIZE)
    queries = [made_query(n) for n in range(asked)]
    features = np.stack([made_features(n, size=SIZE) for n in range(asked)])
    cases: dict[str, dict[str, Json]] = {"question": {}, "question + context": {"context": schema}}
    for reads, params in cases.items():
        policy = make_policy("mba", params=params)
        began = time.process_time()
        for update in updates:
            policy.learn(update)
        learned = time.process_time()
        arrays, _ = policy.state()
        policy.pmf(queries[:1], features=features[:1], arms=[EXAMPLE_ARMS])
        asking = time.process_time()
        policy.pmf(queries, features=features, arms=[EXAMPLE_ARMS] * asked)
        yield WorkRow(
            reads=reads,
            learn_ms=1000 * (learned - began) / count,
            decide_ms=1000 * (time.process_time() - asking) / asked,
            state_mb=sum(array.nbytes for array in arrays.values()) / 1e6,
        )


def main() -> None:
    """Print the three tables."""
    console = Console(width=120)
    made = Table(
        "world", "policy", "reads", "greedy", "served", "first pass", title="% of the oracle's reward, 5 seeds"
    )
    for row in made_rows():
        numbers = (f"{100 * share:.1f}" for share in (row.greedy, row.served, row.first_pass))
        made.add_row(row.world, row.policy, row.reads, *numbers)
    console.print(made)
    useless = Table(
        "policy", "at steps", "without", "20 useless keys", "difference", title="EM above the line, 10 seeds"
    )
    for one in useless_rows():
        useless.add_row(
            one.policy,
            one.at,
            f"{one.without:+.2f} ± {one.without_error:.2f}",
            f"{one.useless:+.2f} ± {one.useless_error:.2f}",
            f"{one.useless - one.without:+.2f}",
        )
    work = Table("mba reads", "ms a row", "ms a decision", "MB of state", title=f"work, {SIZE} features")
    for each in work_rows():
        work.add_row(each.reads, f"{each.learn_ms:.3f}", f"{each.decide_ms:.3f}", f"{each.state_mb:.1f}")
    console.print(work)
    console.print(useless if TABLE.exists() else f"no routing table at {TABLE}: useless context is not measured")


if __name__ == "__main__":
    main()
