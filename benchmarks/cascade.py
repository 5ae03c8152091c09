"""What cascades earn where several models answered the same questions: six models with and without three cascades.

    python -m benchmarks.cascade --jobs 2
    python -m benchmarks.cascade --tables arc_challenge_train --seeds 1

The tables are not part of the repository: RouterBench's questions (ARC Challenge and Winogrande) with every model's
answer. A cascade ships the answer of mixtral, claude-instant or gpt-3.5 if Yi gives the same, and asks GPT-4 otherwise.
The real arm class runs on the recorded answers; what it spends is its cost. GPT-4 costs 2. Each seed asks every
question once, in its own order; `mba` learns online, only from the drawn arm.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from rich.console import Console

from benchmarks.figures import machine
from ragbandit.examples.handbook.learning_curve import played, rows_of
from ragbandit.examples.handbook.side_by_side import rewards_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import embedded
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.this_process import cores
from ragbandit.shared.types import ArmName, Budget, Cost, DecisionId, Json, Outcome, Query, TableRow
from ragbandit.strategies.arms.cascade import Cascade, Part
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.reranking import NoRetriever
from ragbandit.strategies.run import Answer, Run
from ragbandit.strategies.runner import run_strategy

_ROOT: Final = Path(__file__).parents[1]
_TABLES: Final = _ROOT.parent / "shared" / "data" / "cascade"
_YI, _GPT4 = "zero-one-ai_Yi-34B-Chat", "gpt-4-1106-preview"
_CHEAP: Final = ("mistralai_mixtral-8x7b-chat", "claude-instant-v1", "gpt-3.5-turbo-1106")
_MODELS: Final = (*_CHEAP, _YI, "claude-v1", _GPT4)
_WEIGHTS: Final = (0.03, 0.08)


class Recorded:
    """An arm that says what a model has said."""

    needs: frozenset[Any] = frozenset()

    def __init__(self, model: str, *, row: dict[str, Any]) -> None:
        self.name, self._row = ArmName(model), row
        self.params: Mapping[str, Json] = {}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The recorded answer, at its recorded price."""
        del question
        run.add_cost(Cost(llm_calls=1, dollars=self._row["dollars_per_1000"][self.name] / 1000.0))
        return Answer(text=self._row["answer"][self.name], stop_reason="answered")


def cascaded(row: dict[str, Any], *, first: str) -> Outcome:
    """What a cascade of recorded answers makes of a question."""
    nobody, nothing = ScriptedGenerator({}), NoRetriever()
    arm = Cascade(name="cascade", first=first, then=_GPT4, differs_from=_YI)
    names = {"first": first, "then": _GPT4, "differs_from": _YI}
    arm.bind({param: Part(Recorded(model, row=row), nobody, nothing) for param, model in names.items()})
    query = Query(id=DecisionId(row["id"]), text=row["question"])
    return asyncio.run(run_strategy(arm, query=query, budget=Budget(), retriever=nothing, generator=nobody))


def table_of(rows: list[dict[str, Any]], *, with_cascades: bool) -> LabelledTable:
    """Quality and cost of every arm, GPT-4's mean cost 2."""
    unit = 2.0 * len(rows) / sum(row["dollars_per_1000"][_GPT4] for row in rows)
    made = []
    for row in rows:
        correct = {ArmName(model): row["correct"][model] for model in _MODELS}
        steps = {ArmName(model): unit * row["dollars_per_1000"][model] for model in _MODELS}
        for first in _CHEAP if with_cascades else ():
            outcome, arm = cascaded(row, first=first), ArmName(f"{first}+")
            shipped = outcome.answer == row["answer"][first] == row["answer"][_YI] != ""
            correct[arm] = row["correct"][first if shipped else _GPT4]
            steps[arm] = unit * 1000.0 * outcome.cost.dollars
        made.append(TableRow(id=row["id"], question=row["question"], correct=correct, steps=steps))
    return LabelledTable(arms=tuple(made[0].correct), rows=tuple(made))


def main() -> None:
    """Print the reward while learning, and that of the best fixed arm."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", default="arc_challenge_train,winograde_train")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--jobs", type=int, default=cores())
    asked, settings, console = options.parse_args(), Settings(data_dir=str(_ROOT / ".ragbandit")), Console()
    encoder, reward = make_encoder(settings.encoder), settings.reward
    for name in asked.tables.split(","):
        records = [json.loads(line) for line in (_TABLES / f"{name}.jsonl").read_text("utf-8").splitlines()]
        features = embedded([row["question"] for row in records], encoder=encoder, data_dir=settings.data_dir)
        for with_cascades in (False, True):
            table = table_of(records, with_cascades=with_cascades)
            for weight in _WEIGHTS:
                there = settings.model_copy(update={"reward": reward.model_copy(update={"weight": weight})})
                rows = rows_of(table, features=features, encoder_hash=encoder.hash, settings=there)
                passes = played(rows, settings=there, seeds=asked.seeds, jobs=asked.jobs)
                means = rewards_of(table, reward=there.reward).mean(axis=0)
                console.print(
                    f"{name}, {'with' if with_cascades else 'without'} cascades, price {weight:g}: "
                    f"{np.mean([one.earned for one in passes]):.3f} while learning, "
                    f"{table.arms[int(means.argmax())]} always {means.max():.3f}",
                    soft_wrap=True,
                )
    console.print(machine())


if __name__ == "__main__":
    main()
