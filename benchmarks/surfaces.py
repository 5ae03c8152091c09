"""Is it the same verdict on every surface, and a true one? Made services of known truth, asked the way a user asks.

The arms of a world are right on a kind of question with a known chance, and the code that serves learns them. Then
every surface compares what was served, the policy after learning, and a version in shadow, with always using one arm.

    python -m benchmarks.surfaces           # 100 worlds
    python -m benchmarks.surfaces 3 17      # these two
"""

import argparse
import html
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from sqlalchemy import select
from starlette.testclient import TestClient
from typer.testing import CliRunner

from ragbandit.router.api.app import create_app
from ragbandit.router.comparison import MARGIN, NOT_KNOWN
from ragbandit.router.policies.algorithms.conservative import learner_of
from ragbandit.router.policies.draw import outputs_of, with_floor
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.texts.formats import decimal
from ragbandit.shared.types import ArmName, Matrix, Query
from ragbandit.workers.cli import app

#: how a world is served; "applied" is a warm start by `advise --apply`, with incumbent and holdback
SETUPS: Final = ("cold", "warm", "applied", "holdback", "incumbent", "budget", "shadow")
#: kinds of faults; "missed" (an interval without the truth) may happen as often as its confidence allows
FAULTS: Final = ("false", "contradiction", "fix", "missed")
#: the newcomer's world: `fast` is right on short questions, `full` on all, at four times the steps
NEWCOMER: Final = {"chance": ((0.87, 0.8), (0.87, 0.8), (0.2, 0.8), (0.2, 0.8)), "steps": (1.0, 4.0), "weight": 0.05}
#: difference between the policy after learning and the cross-fitted ones that advise and replay judge
_SLACK: Final = 0.015
_TOPICS: Final = ("law", "trade"), ("music", "river")
_FORMS: Final = "Who wrote about {0} {2}?", "Compare {0} and {1} of case {2}, and explain which came first and why"
_SENTENCE: Final = re.compile(r"(whether )?routing is (better|worse|as good)(?: than| as) (always \w+)")


@dataclass(frozen=True, kw_only=True)
class World:
    """A made service. The policy learns after each of 20 parts of the questions."""

    setup: str
    seed: int = 0
    #: chance of each arm to be right on each of four kinds of questions, shape (4, K)
    chance: Sequence[Sequence[float]]
    steps: Sequence[float]
    weight: float  #: reward that a step costs
    questions: int = 400
    rated: float = 0.7  #: share of the questions
    policy: str = "mba"
    labelled: int = 300  #: questions with the outcomes of all arms, if it starts warm


def made(seed: int) -> World:
    """The world of this seed. The arms differ by kind, one is the best for all kinds, or all are equal."""
    random, setup, form = np.random.default_rng(seed), SETUPS[seed % 7], seed // 7 % 7
    steps = np.sort(random.choice([0.5, 1.0, 2.0, 3.0, 5.0, 8.0], int(random.integers(2, 5)), replace=False))
    weight, chance = float(random.choice([0.02, 0.05, 0.1])), random.uniform(0.3, 0.95, (4, len(steps)))
    if form in (1, 4):
        chance = random.permutation(0.85 - 0.15 * np.arange(len(steps))) + random.uniform(-0.1, 0.1, (4, 1))
    elif form == 2:
        chance = np.tile(0.15 + weight * steps, (4, 1))
    given: dict[str, Any] = {"chance": chance.tolist(), "steps": tuple(steps.tolist()), "weight": weight}
    given = NEWCOMER if form == 5 else given
    questions = int(np.exp(random.uniform(np.log(300), np.log(3_000))))
    rated = float(np.clip(random.uniform(0.1, 1.2), min(150 / questions, 1.0), 1.0))
    policy = "uniform" if form in (3, 4) and setup != "budget" else str(random.choice(["linucb", "mba"]))
    return World(setup=setup, seed=seed, questions=questions, rated=rated, policy=policy, **given)


class Claim(NamedTuple):
    """What a surface claims: a verdict on the first way of answering against the second, and the interval behind it."""

    surface: str
    first: str
    second: str
    verdict: str
    low: float | None = None
    high: float | None = None

    def fault(self, truth: float) -> str | None:
        slack = _SLACK if "policy" in self.first + self.second else 1e-6
        least = {"better": -slack, "as good": -MARGIN - slack}.get(self.verdict, -np.inf)
        if truth < least or (self.verdict == "worse" and truth > slack):
            return "false"
        missed = self.low is not None and self.high is not None and not self.low - slack <= truth <= self.high + slack
        return "missed" if missed else None

    def contradicts(self, other: "Claim") -> bool:
        """Whether both cannot be true of the same two ways. "as good" may also be better, but not worse."""
        theirs = other.verdict
        if self.first == other.second:
            theirs = {"better": "worse", "worse": "better"}.get(theirs, NOT_KNOWN)
        same = {self.first, self.second} == {other.first, other.second}
        return same and "worse" in (self.verdict, theirs) and len({self.verdict, theirs, NOT_KNOWN}) == 3


class Life:
    """A world that was served: what is true of it, and what every surface claimed."""

    def __init__(self, world: World) -> None:
        self.world, self.truth, self.claims = world, dict[tuple[str, str], float](), list[Claim]()
        self.fixes = list[str]()  #: "SURFACE: fix: always ARM"
        self.state: str | None = None  #: as the report has it
        self.arms = tuple(map(ArmName, ("fast", "full", "slow", "wide")[: len(world.steps)]))
        means = np.array(world.chance) - world.weight * np.array(world.steps)
        ranked = np.argsort(-means.mean(axis=0), kind="stable")
        self.best, self.worst = self.arms[ranked[0]], self.arms[ranked[-1]]
        random, count = np.random.default_rng([world.seed, 1]), world.questions
        kinds = random.integers(4, size=count + world.labelled)  # after the served questions those of a warm start
        self.right = random.random((len(kinds), len(self.arms))) < np.array(world.chance)[kinds]
        self.rated, self.means = random.random(count) < world.rated, means[kinds[:count]]
        topics = [(_FORMS[kind // 2], _TOPICS[kind % 2]) for kind in kinds.tolist()]
        self.texts = [form.format(*pair, f"{world.seed}-{at}") for at, (form, pair) in enumerate(topics)]
        with tempfile.TemporaryDirectory() as folder:
            self._run(Path(folder))

    def _run(self, folder: Path) -> None:
        world, count, self.config = self.world, self.world.questions, folder / "config.yaml"
        part = {"holdback": f"holdback: {{arm: {self.best}, share: 0.05}}", "incumbent": f"incumbent: {self.best}"}
        budget = 0.001 * count * min(world.steps) if world.setup == "budget" else 1e6
        self.config.write_text(f"""
            data_dir: {folder}/data
            encoder: {{model: hashing, dimension: 32}}
            reward: {{weight: {world.weight}}}
            arms: {{{", ".join(f"{arm}: {{run_by: caller}}" for arm in self.arms)}}}
            policy: {{name: {world.policy}, {part.get(world.setup, "")}}}
            rollout: {{time_limit_s: 5.0}}
            server: {{max_wait_s: 60.0}}
            tenants: {{default: {{dollars_per_day: {budget}}}}}
        """)
        if world.setup in ("warm", "applied"):
            table, how = folder / "table.jsonl", {"warm": "--warm", "applied": "--apply"}[world.setup]
            rows = [dict(zip(self.arms, row, strict=True)) for row in (*self.right[count:].tolist(), world.steps)]
            asked = zip(self.texts[count:], rows[:-1], strict=True)
            lines = [json.dumps({"question": text, "correct": row, "steps": rows[-1]}) for text, row in asked]
            table.write_text("\n".join(lines))
            self._ask("advise --table", "advise", "--table", str(table), how)
        self._live(range(count // 5))
        self.version = (self.best, self.worst, None)[world.seed // 7 % 3]  #: an arm, or the same policy
        if world.setup == "shadow":
            fixed = ["--set=policy.name=fixed", f"--set=policy.params.arm={self.version}"]
            self._cli("policy", "add", "v1", *(fixed if self.version else [f"--set=policy.name={world.policy}"]))
            self._cli("policy", "shadow", "v1")
        self._live(range(count // 5, count))  # after a restart it knows how much is spent

    def _live(self, rows: range) -> None:
        """Route, report and rate these questions, and ask every surface after the last."""
        service = create_app(lambda: Router.open(self.config, jobs=MemoryJobs()))
        with TestClient(service, base_url="http://127.0.0.1") as client:
            router: Router = service.state.router
            router.service.secret = bytes(32)  # the same draws each time
            if rows.start == 0:
                self.warm = self._learned(router)
            size = max(50, self.world.questions // 20)
            for begin in range(0, len(rows), size):
                self._serve(rows[begin : begin + size], client=client, router=router)
            if rows.stop == self.world.questions:
                self._find_truth(router)
                self._walk(client)

    def _serve(self, rows: range, *, client: TestClient, router: Router) -> None:
        items = [{"question": self.texts[at], "decision_id": f"new-{at}"} for at in rows]
        replies = client.post("/v1/route/batch", json={"items": items}).raise_for_status().json()["items"]
        waiting, ratings = list[Any](), list[Any]()
        for at, reply in zip(rows, replies, strict=True):
            place, key = self.arms.index(reply["arm"]), dict[str, Any](decision_id=f"new-{at}", now=time.time())
            spent = {"dollars": self.world.steps[place] / 100}
            done = make_outcome(status="answered", answer="x", steps=self.world.steps[place], cost=spent, **key)
            waiting.append(router.submit_outcome(done))
            if self.rated[at]:
                ratings.append(make_feedback(settings=router.settings, rating=bool(self.right[at, place]), **key))
        for one in (*waiting, *router.submit_feedback_batch(ratings)):
            one.result(60)
        router.learn()

    def _learned(self, router: Router) -> Matrix:
        """Expected reward of the policy as it is now, for each served question."""
        count, policy = self.world.questions, learner_of(router.service.serving.policy)
        features, floor = router.encoder.encode(self.texts[:count]), router.settings.policy.floor_of(len(self.arms))
        outputs = outputs_of(policy, [Query(text="?")] * count, features=features, arms=[self.arms] * count)
        pmf = np.array([with_floor(one.pmf, floor=floor) for one in outputs if not isinstance(one, Exception)])
        return np.asarray((pmf * self.means).sum(axis=1))

    def _find_truth(self, router: Router) -> None:
        with router.database.read() as connection:
            columns = decisions.c.id, decisions.c.arm, decisions.c.pmf
            found = {row.id: row for row in connection.execute(select(*columns))}
        rows = [found[f"new-{at}"] for at in range(self.world.questions)]
        pmf = np.array([json.loads(row.pmf) for row in rows])
        served = np.array([self.means[at, self.arms.index(row.arm)] for at, row in enumerate(rows)])
        fixed = {f"always {arm}": self.means[:, place] for place, arm in enumerate(self.arms)}
        ways = {"policy": self._learned(router), "warm policy": self.warm, **fixed}
        for arm, could in zip(fixed, pmf.T > 0.0, strict=True):
            self.truth["served", arm] = float((served - fixed[arm])[could].mean())
            self.truth |= {(way, arm): float((value - fixed[arm]).mean()) for way, value in ways.items()}
        expected = (pmf * self.means).sum(axis=1)
        version = fixed.get(f"always {self.version}", expected) - expected
        self.truth["v1", "served"] = float(version[len(version) // 5 :].mean())
        self.truth |= {(second, first): -value for (first, second), value in self.truth.items()}

    def _walk(self, client: TestClient) -> None:
        report, best = self._ask("report", "report"), f"fixed:{self.best}"
        self.state = report["state"]
        self._note("/v1/report", client.get("/v1/report").raise_for_status().text)
        screens = {"status": self._cli("status"), "overview": client.get("/ui").raise_for_status().text}
        for surface, text in {"report": report["advice"] or "", **screens}.items():
            words = re.sub(r"\s+", " ", html.unescape(text))
            self.fixes += [f"{surface}: {fix}" for fix in re.findall(r"fix: always \w+", words)[:1]]
            for is_open, verdict, way in _SENTENCE.findall(words):
                self.claims.append(Claim(surface, "served", way, NOT_KNOWN if is_open else verdict))
        self._ask("replay", "replay")
        if self.world.policy != "uniform":
            self._ask("replay --policy", "replay", "--policy", f"{self.world.policy},{best}", "--baseline", best)
            self._ask("advise", "advise")
        if self.world.setup == "shadow":
            self._ask("policy show", "policy", "show", "v1")

    def _cli(self, *words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.output, done.exception)
        return done.stdout

    def _ask(self, surface: str, *words: str) -> Any:
        """Ask a command for JSON, and note its comparisons and advice."""
        reply = self._note(surface, self._cli(*words, "--json"))
        if words[0] == "advise" and reply["verdict"] == "fix":
            self.fixes.append(f"{surface}: fix: always {reply['best']}")
        return reply

    def _note(self, surface: str, text: str) -> Any:
        """Note all comparisons of a JSON reply."""

        def way(name: str) -> str:
            if name in ("routing", "what was served", "the logged policy", "champion", "main"):
                return "served"
            policy = "warm policy" if "table" in surface else "policy"
            return policy if name.startswith((self.world.policy, "learned")) else name.replace("fixed:", "always ")

        def keep(part: dict[str, Any]) -> dict[str, Any]:
            if {"first", "second", "verdict", "design"} <= part.keys():
                ends = part["reward"]["low"], part["reward"]["high"]
                self.claims.append(Claim(surface, way(part["first"]), way(part["second"]), part["verdict"], *ends))
            return part

        return json.loads(text, object_hook=keep)

    def faults(self) -> list[str]:
        """What is wrong, each beginning with its kind in `FAULTS`."""
        once, now = list(dict.fromkeys(self.claims)), [fix for fix in self.fixes if "--table" not in fix]
        known = [(one, self.truth[one[1:3]]) for one in once if one[1:3] in self.truth]
        faults = [
            f"{one.fault(truth)}: {tuple(one)}, truth {decimal(truth, sign='+')}"
            for one, truth in known
            if one.fault(truth)
        ]
        pairs = combinations(once, 2)
        faults += [f"contradiction: {tuple(one)}, {tuple(other)}" for one, other in pairs if one.contradicts(other)]
        better = [one for one in once if one.verdict == "better" and one.first in ("served", "policy")]
        faults += [f"fix: {fix}, {tuple(one)}" for fix in now for one in better if fix.endswith(one.second)]
        early = [fix for fix in now if self.state and not fix.startswith("advise")]
        return faults + [f"fix: {fix}, beside the state {self.state}" for fix in early]


def main(arguments: Sequence[str]) -> None:
    """Print the faults of every world, how many worlds have each kind, and in how many a verdict is known."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.surfaces", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", nargs="*", type=int, default=range(100), metavar="SEED", help="default: 0 to 99")
    counts = Counter[str]()
    for seed in parser.parse_args(list(arguments)).seeds:
        life = Life(made(seed))
        print(f"{seed}: {life.world.setup}, {life.world.policy}, {life.world.questions} questions; {life.state}")
        for fault in life.faults():
            print(f"    {fault}", flush=True)
        counts.update({"worlds", *(fault.split(":")[0] for fault in life.faults())})
        known = {one.first for one in life.claims if one.verdict != NOT_KNOWN}
        counts["with a verdict"] += bool(known)
        counts["with a verdict on what was served"] += "served" in known
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
