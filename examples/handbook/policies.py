"""Params of each policy in the demo, and what has to be prepared before a policy can run.

Most need nothing. `adaptive_rag` and `multi_label` are trained first, on labels that follow from the questions' kinds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from ragbandit.router.config.loading import load
from ragbandit.shared.types import Json

Row = dict[str, Any]


#: the policies that `ragbandit policy train` makes
TRAINED: Final = ("adaptive_rag", "multi_label")
#: few epochs and small batches, since there are few questions: 3 epochs of 120 questions in batches of 8 are 45 steps
FITTING: Final[dict[str, Json]] = {"epochs": 3, "batch": 8, "learning_rate": 5e-5}
#: each snapshot of this policy is about 800 MB, and its threads are fixed for the sake of `verify`
SETTINGS: Final[dict[str, dict[str, str]]] = {"mba_paper": {"RAGBANDIT_LEARNING__SNAPSHOTS_KEPT": "2"}}


#: registry name -> its params other than the defaults, without folders and files that are made first. Nets use one
#: thread, since another number of threads rounds sums differently, and `verify` reports that
PARAMS: Final[dict[str, dict[str, Json]]] = {
    "adaptive_rag": {"threads": 1},
    "conservative": {"incumbent": "single_step", "policy": "mba"},
    "fixed": {"arm": "single_step"},
    "mba_paper": {"threads": 1, "device": "cpu", "total": 120},
    "mixture": {"first": "single_step", "second": "multi_step", "share": 0.5},
    "multi_label": {"threads": 1},
    "popularity": {"threshold": 3.0},
}


def prepared(
    name: str | None,
    *,
    environment: Mapping[str, str],
    questions: Sequence[Row],
    ragbandit: Callable[[list[str]], str],
    console: Console,
) -> dict[str, str]:
    """The environment in which all processes run the policy `name`, or the configured policy if `name` is None.

    Prepares and trains the policy first, if it needs that.

    ragbandit: runs a verb of the command and returns its output.
    """
    if name is None:
        return dict(environment)
    data = Path(load(environ=environment).settings.data_dir).absolute()
    params = PARAMS.get(name, {})
    if name in TRAINED:
        params = params | {"trained": str(data / "trained")}
        _train(name, data=data, questions=questions, ragbandit=ragbandit, console=console)
    elif name == "popularity":
        params = params | {"counts": str(data / "counts.json")}
        data.mkdir(parents=True, exist_ok=True)
        corpus = Path(__file__).with_name("corpus.jsonl")
        ragbandit(["index", "counts", "--corpus", str(corpus), "--out", str(data / "counts.json")])
    elif name == "mba_paper":
        console.print(
            "mba_paper: a snapshot is 800 MB, so it learns in bursts, and to verify it takes minutes; "
            f"the newest two stay under {data}"
        )
    policy = {
        "RAGBANDIT_POLICY__NAME": name,
        "RAGBANDIT_POLICY__PARAMS": yaml.safe_dump(params, default_flow_style=True, width=10_000).strip(),
        "RAGBANDIT_POLICY__INCUMBENT": "null",  # an incumbent would hold the policy back
    }
    return {**environment, **SETTINGS.get(name, {}), **policy}


def _train(
    name: str, *, data: Path, questions: Sequence[Row], ragbandit: Callable[[list[str]], str], console: Console
) -> None:
    """Run `ragbandit policy train` on a table of these questions, and print its result."""
    data.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(table_row(question)) + "\n" for question in questions]
    table = data / "table.jsonl"
    table.write_text("".join(lines), encoding="utf-8")
    verb = ["policy", "train", "--policy", name, "--table", str(table), "--out", str(data / "trained")]
    values = {key: yaml.safe_dump(value).split()[0] for key, value in FITTING.items()}
    params = [word for key, value in values.items() for word in ("--param", f"{name}.{key}={value}")]
    report = json.loads(ragbandit([*verb, *params, "--json"]))
    best = report["epochs"][report["best_epoch"] - 1]
    console.print(
        f"{name}: trained on the very questions that it will be asked, with labels by their making; epoch "
        f"{report['best_epoch']} of {len(report['epochs'])} was best, with {best['accuracy']:.0%} right of the labels "
        f"of {report['validation_rows']} questions held out"
    )


def table_row(question: Row) -> Row:
    """A row of the table, with results that the question's kind suggests: no arm is run.

    Every arm knows common knowledge. Arms that search also answer questions about one passage, and multi_step questions
    about two passages. The steps only order the arms by cost.
    """
    right = {"none": (1, 1, 1), "one": (0, 1, 1), "two": (0, 0, 1)}[question["kind"]]
    arms = ("no_retrieval", "single_step", "multi_step")
    return {
        "id": question["id"],
        "question": question["question"],
        "correct": dict(zip(arms, right, strict=True)),
        "steps": dict(zip(arms, (0, 1, 3), strict=True)),
    }
