"""Poisoned feedback: what an attacker with a fifth of all feedback costs, without caps and with them.

A policy answers questions of a routing table and learns from ratings, decision by decision, by the learner's own code:
join, window of influence, row of the ledger, policy. The attacker's ratings are all inverted. Its decisions are a fifth
of all; without attack they bring no feedback. What is held is not learned. Reward: expected, of the policy as it is
after every 250 decisions of the second half, on questions that nobody judged. Then honest traffic, which the caps must
not harm.

    python -m benchmarks.poisoning
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from ragbandit.router.config.settings import InfluenceSettings, Settings
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.learning.examples import Example, join, made_update
from ragbandit.router.learning.sources.influence import Influence, InfluenceShare
from ragbandit.router.learning.sources.origin import Origin
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply, pmf_of_one
from ragbandit.router.policies.draw import choose, seed_of, with_floor
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.shared.types import ArmName, Decision, DecisionId, JoinedDecision, PolicyLabel, Query, TableRow

TABLE: Final = Path(__file__).parents[2] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
DECISIONS, SEEDS, DIMENSION, ATTACKED = 3000, 4, 64, 0.2
#: decisions from one measurement to the next
EVERY: Final = 250

#: who sends feedback: (tenant, API key, rater), of the nth decision, by chance u in [0, 1)
Sender = Callable[[int, float], tuple[str, str, str | None]]


def _zipf(count: int) -> Callable[[float], int]:
    """Number of the source that a chance falls on: the nth is met 1/n times as often as the first."""
    ends = np.cumsum(1.0 / np.arange(1, count + 1))
    return lambda chance: int(np.searchsorted(ends, chance * ends[-1], side="right"))


#: honest traffic that the caps must not harm
HONEST: Final[Mapping[str, Sender]] = {
    "one key, no raters": lambda _at, _u: ("default", "app", None),
    "one key, 500 raters alike": lambda _at, u: ("default", "app", f"user-{int(u * 500)}"),
    "one key, 500 raters, Zipf": lambda _at, u: ("default", "app", f"user-{_zipf(500)(u)}"),
    "two keys, 70 to 30": lambda _at, u: ("default", "a" if u < 0.7 else "b", None),
    "40 tenants alike": lambda _at, u: (f"t{int(u * 40)}", f"k{int(u * 40)}", None),
    "40 tenants, Zipf": lambda _at, u: (f"t{_zipf(40)(u)}", f"k{_zipf(40)(u)}", None),
}
#: who the others are, and who the attacker is
ATTACKS: Final[Mapping[str, tuple[Sender, Sender]]] = {
    "40 tenants; one key": (HONEST["40 tenants alike"], lambda _at, _u: ("bad", "bad", None)),
    "40 tenants; ten keys of one tenant": (HONEST["40 tenants alike"], lambda at, _u: ("bad", f"bad{at % 10}", None)),
    "10 tenants; one key": (
        lambda _at, u: (f"t{int(u * 10)}", f"k{int(u * 10)}", None),
        lambda _at, _u: ("bad", "bad", None),
    ),
    "one key, 500 raters; one rater": (HONEST["one key, 500 raters alike"], lambda _at, _u: ("default", "app", "bad")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One run."""

    #: mean expected reward on held-out questions
    reward: float
    #: feedback of the attacker, or of everybody where there is none, that was learned and that was held
    learned: int
    held: int


def table(path: Path | None) -> LabelledTable:
    """The routing table, or a made one where there is no file: two kinds of question, one of them needs three steps."""
    if path is not None and path.exists():
        return read_table(path)
    rng, arms = np.random.default_rng(15), tuple(map(ArmName, ("no_retrieval", "single_step", "multi_step")))
    right = {"easy": (0.7, 0.8, 0.8), "hard": (0.1, 0.3, 0.7)}
    words = {"easy": ("who", "when", "where", "name"), "hard": ("both", "before", "compare", "and")}
    rows = []
    for number in range(1200):
        kind = ("easy", "hard")[number % 2]
        question = " ".join([*rng.choice(words[kind], 3), *(f"w{word}" for word in rng.integers(200, size=5))])
        correct = {arm: float(rng.random() < share) for arm, share in zip(arms, right[kind], strict=True)}
        rows.append(
            TableRow(id=f"q{number}", question=question, correct=correct, steps=dict(zip(arms, (0, 1, 3), strict=True)))
        )
    return LabelledTable(rows=tuple(rows), arms=arms)


class _World:
    """The questions of one seed, the same for every run."""

    def __init__(self, known: LabelledTable, *, seed: int, decisions: int) -> None:
        rng = np.random.default_rng([seed, 15])
        self.arms, self.seed = known.arms, seed
        order = rng.permutation(len(known.rows))
        cut = len(order) * 2 // 3
        self.features = HashingEncoder(DIMENSION).encode([row.question for row in known.rows])
        self.correct, self.steps = known.correct, known.steps
        self.texts = [row.question for row in known.rows]
        self.asked = rng.choice(order[:cut], size=decisions)
        self.held_out = order[cut:]
        self.attacked = rng.random(decisions) < ATTACKED
        self.chances = rng.random(decisions)

    def pmf(self, policy: Policy, row: int) -> tuple[float, ...]:
        query = Query(text=self.texts[row])
        return tuple(with_floor(pmf_of_one(policy, query, features=self.features[row], arms=self.arms).pmf, floor=0.01))

    def reward(self, policy: Policy, *, price: float) -> float:
        values = self.correct[self.held_out] - price * self.steps[self.held_out]
        return float(
            np.mean([np.dot(self.pmf(policy, row), value) for row, value in zip(self.held_out, values, strict=True)])
        )

    def decided(self, policy: Policy, at: int) -> tuple[Decision, float, float]:
        """The decision on the question asked then, its answer's quality, and its steps."""
        row, key = int(self.asked[at]), DecisionId(f"poisoning-{self.seed}-{at}")
        pmf = self.pmf(policy, row)
        drawn = choose(pmf, seed=seed_of(key))
        decision = Decision(
            id=key,
            query=Query(text=self.texts[row]),
            arm=self.arms[drawn],
            arms=self.arms,
            pmf=pmf,
            propensity=pmf[drawn],
            scores=None,
            policy=PolicyLabel("world"),
            version="world",
            encoder_hash="",
            seed=seed_of(key),
            floor=0.01,
            explored=False,
            fault=None,
            facts={},
            run_by="caller",
            features=self.features[row],
            made_at=float(at),
        )
        return decision, float(self.correct[row, drawn]), float(self.steps[row, drawn])


def measured(
    known: LabelledTable,
    *,
    seed: int,
    honest: Sender,
    attacker: Sender | None = None,
    capped: bool,
    silent: bool = False,
    decisions: int = DECISIONS,
) -> Measured:
    """Let a policy decide and learn. attacker: who inverts the ratings of a fifth; silent: these bring no feedback."""
    world = _World(known, seed=seed, decisions=decisions)
    settings = Settings.model_validate({"arms": {arm: {} for arm in world.arms}})
    policy = make_policy("mba", params={})
    influence = Influence(InfluenceSettings(enabled=capped))
    seq, learned, held, rewards = 0, 0, 0, []
    for at in range(decisions):
        decision, quality, steps = world.decided(policy, at)
        attacked = bool(world.attacked[at]) and (attacker is not None or silent)
        if not (attacked and silent):
            tenant, key, rater = (attacker if attacked and attacker else honest)(at, float(world.chances[at]))
            example = _judged(decision, 1.0 - quality if attacked else quality, steps=steps, settings=settings)
            origin = Origin(tenant=tenant, key=key, key_names=(key,), role="app", rater=rater)
            part = InfluenceShare(origin=origin, weight=example.reward.sample_weight)
            counted = attacked or attacker is None
            if capped and influence.over(part, at=float(at)) is not None:
                held += counted
            else:
                influence.add([part], at=float(at))
                learned += counted
                seq += 1
                apply(policy, made_update(decision, example, label=PolicyLabel("world"), seq=seq, now=float(at)))
        if at >= decisions // 2 and at % EVERY == EVERY - 1:
            rewards.append(world.reward(policy, price=settings.reward.weight))
    return Measured(reward=float(np.mean(rewards)), learned=learned, held=held)


def _judged(decision: Decision, rating: float, *, steps: float, settings: Settings) -> Example:
    now = decision.made_at
    rated = made_feedback(decision_id=decision.id, settings=settings, now=now, feedback_id=decision.id, rating=rating)
    outcome = made_outcome(decision_id=decision.id, now=now, status="answered", answer="an answer", steps=steps)
    joined = JoinedDecision(decision=decision, outcome=outcome, feedback=(rated,))
    found = join(joined, settings=settings, needs_features=True, encoder_hash="", now=now)
    assert isinstance(found, Example)
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args(list(arguments))
    known, began = table(asked.table), time.monotonic()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    console = Console(width=118)
    about = f"{len(known.rows)} questions, {asked.decisions} decisions, {asked.seeds} seeds; means (worst seed)"
    console.print(f"{asked.table.name if asked.table.exists() else 'a made table'}: {about}")
    printed = Printed(title="an attacker with 20 % of all feedback, inverted")
    for name in (
        "others; attacker",
        "no attack",
        "attack, no caps",
        "lost",
        "attack, caps",
        "lost",
        "its learned",
        "held",
    ):
        printed.add_column(name, justify="left" if name.startswith("others") else "right")
    runs: dict[str, list[Measured]] = {}
    some = HONEST["one key, no raters"]  # without caps it does not matter who sends what
    for way, (attacker, silent) in {"none": (None, True), "bare": (some, False), "free": (None, False)}.items():
        runs[way] = [
            measured(
                known, seed=seed, honest=some, attacker=attacker, capped=False, silent=silent, decisions=asked.decisions
            )
            for seed in seeds
        ]
    for name, (honest, attacker) in ATTACKS.items():
        caps = [
            measured(known, seed=seed, honest=honest, attacker=attacker, capped=True, decisions=asked.decisions)
            for seed in seeds
        ]
        none, bare = runs["none"], runs["bare"]
        means = [f"{np.mean([run.reward for run in each]):.4f}" for each in (none, bare, caps)]
        counts = [f"{np.mean([getattr(run, what) for run in caps]):.0f}" for what in ("learned", "held")]
        printed.add_row(name, means[0], means[1], _lost(none, bare), means[2], _lost(none, caps), *counts)
    console.print(printed)
    printed = Printed(title="honest traffic")
    for column in ("who judges", "no caps", "caps", "lost", "learned", "held"):
        printed.add_column(column, justify="left" if column == "who judges" else "right")
    for name, honest in HONEST.items():
        caps = [measured(known, seed=seed, honest=honest, capped=True, decisions=asked.decisions) for seed in seeds]
        means = [f"{np.mean([run.reward for run in each]):.4f}" for each in (runs["free"], caps)]
        counts = [f"{np.mean([getattr(run, what) for run in caps]):.0f}" for what in ("learned", "held")]
        printed.add_row(name, *means, _lost(runs["free"], caps), *counts)
    console.print(printed)
    console.print(f"{time.monotonic() - began:.0f} s")


def _lost(before: Sequence[Measured], after: Sequence[Measured]) -> str:
    """The share of the reward that is lost, of the means and of the worst seed, in percent."""
    shares = [100.0 * (1.0 - after[at].reward / one.reward) for at, one in enumerate(before)]
    whole = 100.0 * (1.0 - np.mean([run.reward for run in after]) / np.mean([run.reward for run in before]))
    return f"{whole:.1f} % ({max(shares):.1f})"


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
