"""Params of each policy in the demo, and what has to be prepared before a policy can run.

Most need nothing. `adaptive_rag` and `multi_label` are trained first, on labels that the making of the questions gives;
`llm` asks a scripted stand-in for a chat model, so that the demo needs neither a key nor a server.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from ragbandit.router.config.loading import load
from ragbandit.shared.types import Json
from ragbandit.testing.openai_server import ScriptedServer

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Folders and addresses that params name."""

    #: the folder for all that the demo writes
    data: Path
    #: base_url of the stand-in for a chat model; nobody listens at this one
    llm: str = "http://127.0.0.1:9/v1"

    @property
    def table(self) -> Path:
        """Table that the trained policies learn from."""
        return self.data / "table.jsonl"

    @property
    def trained(self) -> Path:
        """Folder that `ragbandit policy train` writes."""
        return self.data / "trained"


#: the policies that `ragbandit policy train` makes
TRAINED: Final = ("adaptive_rag", "multi_label")
#: the questions asked are few: three passes over 120 in batches of 8 are 45 steps
FITTING: Final[dict[str, Json]] = {"epochs": 3, "batch": 8, "learning_rate": 5e-5}
#: the variable with the stand-in's dummy key, so that a real key in OPENAI_API_KEY is not sent
KEY: Final = "HANDBOOK_DEMO_KEY"
#: each snapshot of this policy is about 800 MB, and its threads are fixed for the sake of `verify`
SETTINGS: Final[dict[str, dict[str, str]]] = {"mba_paper": {"RAGBANDIT_LEARNING__SNAPSHOTS_KEPT": "2"}}


def _none(_place: Place) -> dict[str, Json]:
    return {}


def _trained(place: Place) -> dict[str, Json]:
    return {"trained": str(place.trained), "threads": 1}


#: registry name -> its params. Nets work on one thread: with another count sums round otherwise, which `verify` sees
PARAMS: Final[dict[str, Callable[[Place], dict[str, Json]]]] = {
    "adaptive_rag": _trained,
    "conservative": lambda _: {"incumbent": "single_step", "policy": "mba"},
    "fixed": lambda _: {"arm": "single_step"},
    "linucb": _none,
    "llm": lambda place: {"model": "stand-in", "base_url": place.llm, "api_key_env": KEY},
    "mba": _none,
    "mba_paper": lambda _: {"threads": 1, "device": "cpu", "total": 120},
    "mixture": lambda _: {"first": "single_step", "second": "multi_step", "share": 0.5},
    "multi_label": _trained,
    "uniform": _none,
    "vw": _none,
}


@contextlib.contextmanager
def prepared(
    name: str | None,
    *,
    environment: Mapping[str, str],
    questions: Sequence[Row],
    ragbandit: Callable[[list[str]], str],
    console: Console,
) -> Iterator[dict[str, str]]:
    """Environment in which everything runs this policy; None keeps the configured one.

    Trains the policy or starts its server, and prints that; the server ends with the block.
    ragbandit: runs a verb of the command and returns its output.
    """
    if name is None:
        yield dict(environment)
        return
    settings = load(environ=environment).settings
    data = Path(settings.data_dir).absolute()
    place, more = Place(data=data), dict(SETTINGS.get(name, {}))
    with contextlib.ExitStack() as stack:
        if name in TRAINED:
            _train(name, place=place, questions=questions, ragbandit=ragbandit, console=console)
        elif name == "llm":
            server = stack.enter_context(ScriptedServer(stand_in))
            place, more = Place(data=data, llm=server.url), more | {KEY: "none"}
            console.print("llm: no model is asked; a scripted stand-in picks the arm by the wording of the question")
        elif name == "mba_paper":
            console.print(
                "mba_paper: a snapshot is 800 MB, so it learns in bursts, and to verify it takes minutes; "
                f"the newest two stay under {data}"
            )
        params = yaml.safe_dump(PARAMS[name](place), default_flow_style=True, width=10_000).strip()
        alone = {"RAGBANDIT_POLICY__INCUMBENT": "null"}  # what is named is shown as it is
        yield {**environment, **more, **alone, "RAGBANDIT_POLICY__NAME": name, "RAGBANDIT_POLICY__PARAMS": params}


def _train(
    name: str, *, place: Place, questions: Sequence[Row], ragbandit: Callable[[list[str]], str], console: Console
) -> None:
    """Run `ragbandit policy train` on a table of these questions, and say what came of it."""
    place.data.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(table_row(question)) + "\n" for question in questions]
    place.table.write_text("".join(lines), encoding="utf-8")
    verb = ["policy", "train", "--policy", name, "--table", str(place.table), "--out", str(place.trained)]
    values = {key: yaml.safe_dump(value).split()[0] for key, value in FITTING.items()}
    params = [word for key, value in values.items() for word in ("--param", f"{name}.{key}={value}")]
    with console.status(f"training {name} on the handbook's {len(lines)} questions"):
        report = json.loads(ragbandit([*verb, *params, "--json"]))
    best = report["epochs"][report["best_epoch"] - 1]
    console.print(
        f"{name}: trained on the very questions that it will be asked, with labels by their making; epoch "
        f"{report['best_epoch']} of {len(report['epochs'])} was best, with {best['accuracy']:.0%} right of the labels "
        f"of {report['validation_rows']} questions held out"
    )


def table_row(question: Row) -> Row:
    """A line of the table: what the arms should make of a question by its kind. No arm has been asked.

    Common knowledge is known to all, what stands in one passage to the arms that search, and what takes two
    passages to multi_step alone, whose steps are about what it takes here.
    """
    right = {"none": (1, 1, 1), "one": (0, 1, 1), "two": (0, 0, 1)}[question["kind"]]
    arms = ("no_retrieval", "single_step", "multi_step")
    return {
        "id": question["id"],
        "question": question["question"],
        "correct": dict(zip(arms, right, strict=True)),
        "steps": dict(zip(arms, (0, 1, 3), strict=True)),
    }


def method(question: str) -> str:
    """The arm that the wording suggests: multi_step for a described person, no_retrieval for a short question."""
    if re.search(r"\b(who|that) \w+s\b.* |\b(captain|engineer|director|leader|seller|maker) of\b", question):
        return "multi_step"
    return "no_retrieval" if len(question.split()) <= 6 else "single_step"


def stand_in(body: Mapping[str, Any]) -> str:
    """The reply to a request of the policy `llm`: {"choice": N}, N being the number of `method` in its list."""
    methods, _, asked = str(body["messages"][-1]["content"]).partition("<question>\n")
    arm = method(asked.removesuffix("\n</question>"))
    found = re.search(rf"^(\d+)\. {arm}\b", methods, flags=re.MULTILINE)
    return json.dumps({"choice": int(found[1]) if found else 0})
