"""Is it the same verdict on every surface, and a true one? Made services of known truth, asked the way a user asks.

The arms of a world are right on a kind of question with a known chance, and the code that serves learns them. Then
`report`, `status`, the overview, /v1/report, `replay`, `advise` and `policy show` compare what was served, the policy
after learning, and a version in shadow, with always using one arm.

    python -m benchmarks.surfaces --worlds 100
"""

import argparse
import html
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from rich.console import Console
from rich.table import Table
from sqlalchemy import select
from starlette.testclient import TestClient
from typer.testing import CliRunner

from ragbandit.router.api.app import create_app
from ragbandit.router.comparison import MARGIN, NOT_KNOWN
from ragbandit.router.offline.warm import learner_of
from ragbandit.router.policies.draw import outputs_of, with_floor
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.rollouts.overview import candidate_in
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import ArmName, Matrix, Query
from ragbandit.workers.cli import app

SETUPS: Final = (
    *("cold", "holdback", "incumbent", "warm", "applied", "budget"),
    *("same in shadow", "best arm in shadow", "worst arm in shadow"),
)
KINDS: Final = ("false", "contradiction", "differs", "fix beside better", "fix in a state", "no state", "misses")
NAMES: Final = ("fast", "deep", "wide", "full")
#: the newcomer's world: `fast` is right on short questions, `deep` on all, at four times the steps
NEWCOMER: Final = np.array([[0.87, 0.80], [0.87, 0.80], [0.35, 0.80], [0.35, 0.80]])
#: difference between the policy after learning and the policies that advise and replay judge, which learned less
_SLACK: Final = 0.015
_TOPICS: Final = ("law", "trade"), ("music", "river")
_FORMS: Final = (
    "Who wrote about {0} {2}?",
    "Compare the {0} and the {1} of case {2}, and explain which came first and why",
)
_SENTENCE: Final = re.compile(r"(whether )?routing is (better|worse|as good)(?: than| as) (always \w+)")
_FIX: Final = re.compile(r"fix: always \w+")
#: names of what was served; and words of surfaces that do not yet have comparisons
_SERVED: Final = ("routing", "logged", "the logged policy", "what was served", "champion", "main")
_OLD: Final = {"route": "better", "promote": "better", "better": "better", "rollback": "worse", "worse": "worse"}


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    setup: str
    seed: int = 0
    #: chance of each arm to be right on each of four kinds of questions, shape (4, K), and steps of its answers
    chance: Matrix = field(default_factory=lambda: NEWCOMER)
    steps: Sequence[float] = (1.0, 4.0)
    weight: float = 0.05
    questions: int = 1000
    rated: float = 0.7
    policy: str = "mba"
    labelled: int = 300  #: questions with the outcomes of all arms, if it starts warm

    @property
    def arms(self) -> tuple[ArmName, ...]:
        return tuple(map(ArmName, NAMES[: len(self.steps)]))

    @property
    def means(self) -> Matrix:
        """Expected reward of each kind and arm."""
        return np.asarray(self.chance - self.weight * np.array(self.steps))

    def arm(self, place: int) -> str:
        """The arm at this place by its mean reward; 0 for the best arm, -1 for the worst."""
        return self.arms[np.argsort(-self.means.mean(axis=0), kind="stable")[place]]


def made(seed: int) -> World:
    """The world of this seed. The arms differ by kind, one is the best for all kinds, or all are equal."""
    random, form = np.random.default_rng(seed), seed % 7
    steps = np.sort(random.choice([0.5, 1.0, 2.0, 3.0, 5.0, 8.0], int(random.integers(2, 5)), replace=False))
    weight = float(random.choice([0.02, 0.05, 0.1]))
    chance = random.uniform(0.3, 0.95, (4, len(steps)))
    if form in (1, 4):
        chance = random.permutation(0.85 - 0.15 * np.arange(len(steps))) + random.uniform(-0.1, 0.1, (4, 1))
    elif form == 2:
        chance = np.tile(0.15 + weight * steps, (4, 1))
    questions = int(np.exp(random.uniform(np.log(300), np.log(4_000))))
    given: dict[str, Any] = {"questions": questions, "labelled": int(random.integers(60, 400))}
    given["rated"] = float(np.clip(random.uniform(0.1, 1.2), min(150 / questions, 1.0), 1.0))
    given["policy"] = "uniform" if form in (3, 4) else str(random.choice(["linucb", "mba"]))
    if form != 5:  # the newcomer's
        given |= {"chance": chance, "steps": tuple(steps.tolist()), "weight": weight}
    return World(setup=SETUPS[seed % len(SETUPS)], seed=seed, **given)


class Said(NamedTuple):
    """What a surface says: a verdict on the first way of answering against the second, and the interval behind it."""

    surface: str
    first: str
    second: str
    verdict: str
    low: float | None = None
    high: float | None = None

    def is_false(self, truth: float) -> bool:
        slack = _SLACK if "policy" in self else 0.0
        holds = {"better": truth > -slack, "worse": truth < slack, "as good": truth >= -MARGIN - slack}
        return not holds.get(self.verdict, True)

    def misses(self, truth: float) -> bool:
        slack = max(_SLACK if "policy" in self else 0.0, 1e-6)
        return self.low is not None and self.high is not None and not self.low - slack <= truth <= self.high + slack

    def sign(self, first: str) -> int:
        """1 if `first` is better than the other, -1 if it is worse, 0 if it is as good."""
        return {"better": 1, "worse": -1}.get(self.verdict, 0) * (1 if first == self.first else -1)

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" ({self.low:+.3f} to {self.high:+.3f})"
        return f"{self.surface}: {self.first} against {self.second} {self.verdict}{interval}"


def comparisons_in(reply: Any) -> Iterator[Mapping[str, Any]]:
    """Every Comparison in a JSON reply."""
    if isinstance(reply, Mapping):
        if {"first", "second", "verdict", "design"} <= reply.keys():
            yield reply
        reply = list(reply.values())
    for value in reply if isinstance(reply, list) else ():
        yield from comparisons_in(value)


def texts_of(kinds: npt.NDArray[np.intp], *, name: str) -> list[str]:
    """A question of each kind: 0 and 1 are short, 2 and 3 long; two topics."""
    return [_FORMS[kind // 2].format(*_TOPICS[kind % 2], f"{name}-{at}") for at, kind in enumerate(kinds.tolist())]


@dataclass(kw_only=True)
class Life:
    """A world that was served: what is true of it, what every surface said, and what is wrong with that."""

    world: World
    folder: Path
    #: (first, second) -> reward of the first way minus the second, mean per question
    truth: dict[tuple[str, str], float] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    fixes: list[str] = field(default_factory=list)  #: "SURFACE: fix: always ARM"
    state: str | None = None
    #: share of the newest 100 draws that something else than the policy decided, by their stored facts
    decided: float = 0.0

    def live(self) -> "Life":
        """Serve the world, ask every surface, and compare with the truth."""
        world, random = self.world, np.random.default_rng([self.world.seed, 1])
        self.kinds = random.integers(4, size=world.questions)
        self.right = random.random((world.questions, len(world.arms))) < world.chance[self.kinds]
        self.rated = random.random(world.questions) < world.rated
        if world.setup in ("warm", "applied"):
            self._warm("--apply" if world.setup == "applied" else "--warm", random=random)
        halves = (world.questions // 5, world.questions) if world.setup == "budget" else (world.questions,)
        for begin, end in zip((0, *halves), halves, strict=False):  # after a restart it knows how much is spent
            service = create_app(lambda: Router.open(self.config, jobs=MemoryJobs()))
            with TestClient(service, base_url="http://127.0.0.1") as client:
                router: Router = service.state.router
                if "shadow" in world.setup:
                    self._shadow()
                    router.refresh()
                self._serve(client, router=router, rows=range(begin, end))
                if end == world.questions:
                    self._find_truth(router)
                    self._walk(client, router=router)
        return self

    @cached_property
    def config(self) -> Path:
        world, best = self.world, self.world.arm(0)
        policy: dict[str, dict[str, Any]] = {"holdback": {"holdback": {"arm": best, "share": 0.05}}}
        policy["incumbent"] = {"incumbent": best}
        soon_spent = {"default": {"dollars_per_day": 0.001 * world.questions * min(world.steps)}}
        settings = {
            "data_dir": str(self.folder / "data"),
            "encoder": {"model": "hashing", "dimension": 32},
            "reward": {"weight": world.weight},
            "arms": {str(arm): {"run_by": "caller"} for arm in world.arms},
            "policy": {"name": world.policy, **policy.get(world.setup, {})},
            "rollout": {"seconds_per_step": 0.0, "time_limit_s": 5.0},
            "server": {"max_wait_s": 60.0},
            "tenants": soon_spent if world.setup == "budget" else {},
        }
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(settings))
        return file

    def _warm(self, option: str, *, random: np.random.Generator) -> None:
        world, kinds = self.world, random.integers(4, size=self.world.labelled)
        right = random.random((len(kinds), len(world.arms))) < world.chance[kinds]
        steps, file = dict(zip(world.arms, world.steps, strict=True)), self.folder / "table.jsonl"
        with file.open("w") as table:
            for text, row in zip(texts_of(kinds, name="old"), right.tolist(), strict=True):
                correct = dict(zip(world.arms, row, strict=True))
                table.write(json.dumps({"question": text, "correct": correct, "steps": steps}) + "\n")
        self._advise("advise on labelled questions", "--table", str(file), option)

    def _shadow(self) -> None:
        place = {"best": 0, "worst": -1}.get(self.world.setup.split()[0])
        change = ["--set", f"policy.name={self.world.policy if place is None else 'fixed'}"]
        change += [] if place is None else ["--set", f"policy.params.arm={self.world.arm(place)}"]
        self._cli("policy", "add", "v1", *change)
        self._cli("policy", "shadow", "v1")

    def _serve(self, client: TestClient, *, router: Router, rows: range) -> None:
        """Route, report and rate questions in batches, and learn after each."""
        world, texts = self.world, texts_of(self.kinds, name="new")
        for begin in rows[:: max(50, world.questions // 25)]:
            part = range(begin, min(begin + max(50, world.questions // 25), rows.stop))
            asked = [{"question": texts[at], "decision_id": f"new-{at}"} for at in part]
            made = client.post("/v1/route/batch", json={"items": asked}).raise_for_status().json()["items"]
            done, ratings, now = list[Any](), list[Any](), time.time()
            for at, item in zip(part, made, strict=True):
                key, place = item["decision_id"], world.arms.index(item["arm"])
                common = {"steps": world.steps[place], "cost": {"dollars": world.steps[place] / 100}, "now": now}
                outcome = made_outcome(decision_id=key, status="answered", answer="x", **common)
                done.append(router.submit_outcome(outcome))
                if self.rated[at]:
                    right = bool(self.right[at, place])
                    ratings.append(made_feedback(decision_id=key, settings=router.settings, now=now, rating=right))
            for waiting in (*done, *router.submit_feedback_batch(ratings)):
                waiting.result(60)
            router.learn()

    def _find_truth(self, router: Router) -> None:
        world, means, floor = self.world, self.world.means[self.kinds], router.settings.policy.floor_of
        with router.database.read() as connection:
            found = connection.execute(select(decisions.c["id", "arm", "arms", "pmf", "facts", "request"])).mappings()
            by_id = {row["id"]: row for row in found}
        rows = [by_id[f"new-{at}"] for at in range(world.questions)]
        served = np.array([means[at, world.arms.index(row["arm"])] for at, row in enumerate(rows)])
        order = [world.arms.index(arm) for arm in json.loads(rows[0]["arms"])]
        pmf = np.array([json.loads(row["pmf"]) for row in rows])[:, np.argsort(order)]
        features, queries = router.encoder.encode(texts_of(self.kinds, name="new")), [Query(text="?")] * len(rows)
        policy = learner_of(router.service.serving.policy)
        outputs = outputs_of(policy, queries, features=features, arms=[world.arms] * len(rows))
        learned = np.array([with_floor(output.pmf, floor=floor(len(world.arms))) for output in outputs])  # type: ignore[union-attr]
        ways = {
            "policy": (learned * means).sum(axis=1),
            **{f"always {arm}": means[:, place] for place, arm in enumerate(world.arms)},
        }
        for place, arm in enumerate(world.arms):
            could = pmf[:, place] > 0.0
            self.truth["served", f"always {arm}"] = float((served - means[:, place])[could].mean())
            self.truth |= {
                (way, f"always {arm}"): float((value - means[:, place]).mean()) for way, value in ways.items()
            }
        notes = {
            at: candidate_in(json.loads(row["facts"]), "v1") for at, row in enumerate(rows) if "v1" in row["facts"]
        }
        asked = {at: note["pmf"] for at, note in notes.items() if note and note.get("pmf")}
        if asked:
            version = np.array(list(asked.values()))[:, np.argsort(order)] - pmf[list(asked)]
            self.truth["v1", "served"] = float((version * means[list(asked)]).sum(axis=1).mean())
        shares = [1.0 - (json.loads(row["facts"]).get("incumbent") or {}).get("share", 1.0) for row in rows[-100:]]
        self.decided = max(
            float(np.mean(shares)), float(np.mean(["budget_factor" in row["request"] for row in rows[-100:]]))
        )

    def _walk(self, client: TestClient, *, router: Router) -> None:
        report = self._ask("report", "report")
        self.state = report["state"]
        screens = {"status": self._cli("status"), "overview": client.get("/ui").raise_for_status().text}
        for surface, text in {"report": report["advice"] or "", **screens}.items():
            words = re.sub(r"\s+", " ", html.unescape(text))
            self.fixes += [f"{surface}: {fix}" for fix in _FIX.findall(words)[:1]]
            self.said += [
                Said(surface, "served", way, NOT_KNOWN if open_ else verdict)
                for open_, verdict, way in _SENTENCE.findall(words)
            ]
        self._note("/v1/report", comparisons_in(client.get("/v1/report").raise_for_status().json()))
        self._replay("replay")
        best = f"fixed:{self.world.arm(0)}"
        if self.world.policy != "uniform":
            self._replay("replay the policy", "--policy", f"{self.world.policy},{best}", "--baseline", best)
            self._advise("advise")
        if "shadow" in self.world.setup:
            Evaluator(router.database, settings=router.settings).evaluate(now=time.time() + 10.0)
            newest = self._ask("policy show", "policy", "show", "v1")["verdicts"][0]
            verdict = newest["kind"] if newest["kind"] == "promote" or "reward is worse" in newest["reason"] else ""
            old = [{"first": "v1", "second": "champion", "verdict": verdict}]
            self._note("policy show", [] if self._has("policy show") else old)

    def _cli(self, *words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.output, done.exception)
        return done.stdout

    def _ask(self, surface: str, *words: str) -> Any:
        """Ask a command for JSON, and note all its comparisons."""
        reply = json.loads(self._cli(*words, "--json"))
        self._note(surface, comparisons_in(reply))
        return reply

    def _has(self, surface: str) -> bool:
        return any(one.surface == surface for one in self.said)

    def _note(self, surface: str, comparisons: Any) -> None:
        for one in comparisons:
            ways = [
                "served" if way in _SERVED else way.replace("fixed:", "always ")
                for way in (one["first"], one["second"])
            ]
            learned = surface.startswith("advise")  # there "routing" is the policy after learning
            ways = [
                "policy" if way.startswith((self.world.policy, "learned")) or (learned and way == "served") else way
                for way in ways
            ]
            verdict = one["verdict"] if "design" in one else _OLD.get(one["verdict"], NOT_KNOWN)
            reward = one.get("reward") or {}
            self.said.append(Said(surface, *ways, verdict, reward.get("low"), reward.get("high")))

    def _advise(self, surface: str, *words: str) -> None:
        reply = self._ask(surface, "advise", *words)
        self.fixes += [f"{surface}: fix: always {reply['best']}"] if reply["verdict"] == "fix" else []
        if not self._has(surface):
            second = f"always {reply['best']}"
            [gain] = [one["gain"] for one in reply["standings"] if one["name"] == second] or [None]
            self._note(surface, [{"first": "policy", "second": second, "verdict": reply["verdict"], "reward": gain}])

    def _replay(self, surface: str, *words: str) -> None:
        reply = self._ask(surface, "replay", *words)
        second = reply["baseline"]
        for one in [] if self._has(surface) else reply["candidates"]:
            if one["name"] not in ("uniform", second):
                self._note(
                    surface,
                    [{"first": one["name"], "second": second, "verdict": one["verdict"], "reward": one["difference"]}],
                )

    def true(self, one: Said) -> float | None:
        back = self.truth.get((one.second, one.first))
        return self.truth.get((one.first, one.second), None if back is None else -back)

    def faults(self) -> list[str]:
        """What is wrong: false verdicts, contradictions, advice that contradicts a verdict or the state."""
        faults = []
        for one in self.said:
            truth = self.true(one)
            if truth is not None and one.is_false(truth):
                faults.append(f"false: {one}, truth {truth:+.3f}")
            elif truth is not None and one.misses(truth):
                faults.append(f"misses: {one}, truth {truth:+.3f}")
        known = [one for one in self.said if one.verdict != NOT_KNOWN]
        for one, other in combinations(known, 2):
            if {*one[1:3]} == {*other[1:3]}:
                faults += [f"contradiction: {one} / {other}"] if one.sign(one.first) * other.sign(one.first) < 0 else []
                differs = {one.verdict, other.sign(one.first)} == {"as good", -1} or {
                    other.verdict,
                    one.sign(other.first),
                } == {"as good", -1}
                faults += [f"differs: {one} / {other}"] if differs else []
        for fix in self.fixes:
            better = [
                one
                for one in known
                if one.sign(one.first) > 0 and one.first in ("served", "policy") and one.second in fix
            ]
            faults += [f"fix beside better: {fix} / {better[0]}"] if better else []
            faults += [f"fix in a state: {fix}"] if self.state and not fix.startswith("advise") else []
        return faults + ["no state"] * (self.decided > 0.6 and self.state is None)


def lived(world: World) -> Life:
    with tempfile.TemporaryDirectory() as folder:
        return Life(world=world, folder=Path(folder)).live()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every world with a fault, and a table by setup."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--all", action="store_true", help="print what every surface said of every world")
    given, console = parser.parse_args(arguments), Console(width=200, soft_wrap=True, markup=False, highlight=False)
    lives = defaultdict[str, list[Life]](list)
    for seed in range(given.first, given.first + given.worlds):
        begin, world = time.process_time(), made(seed)
        life = lived(world)
        lives[world.setup].append(life)
        console.print(
            f"seed {seed}: {world.setup}, {world.policy}, {world.questions} questions, {world.rated:.0%} rated"
        )
        console.print(f"    {len(world.arms)} arms; {time.process_time() - begin:.1f} s; {life.state}; {life.fixes}")
        for one in life.said if given.all or life.faults() else ():
            console.print(f"        {one}, truth {life.true(one)}")
        for fault in life.faults():
            console.print(f"    {fault}")
    table = Table("setup", "worlds", "with a verdict", *KINDS, title="worlds with a fault, by what every surface said")
    for setup, group in {**lives, "all": [life for some in lives.values() for life in some]}.items():
        known = sum(any(one.verdict != NOT_KNOWN for one in life.said) for life in group)
        counts = [sum(any(fault.startswith(kind) for fault in life.faults()) for life in group) for kind in KINDS]
        table.add_row(setup, *map(str, (len(group), known, *counts)))
    console.print(table)


if __name__ == "__main__":
    main()
