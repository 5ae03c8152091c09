"""Every arm that the configured model supports, on the handbook's questions and on the shipped QA questions.

    python -m benchmarks.strategies --handbook 10 --qa 10 [--publish]

The numbers are questions per kind: in the handbook, a kind is the number of passages needed; the QA questions (if they
are next to the checkout) have a kind per data set. The sample is fixed, and a larger one contains the smaller ones.
`ragbandit evaluate` runs the arms and stores every answer, so the same command continues after an interruption. The
baseline is `single_step`: Time is in units of its time. `--publish` writes the output to docs/benchmarks.md.
"""

import argparse
import io
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from benchmarks.figures import machine
from benchmarks.publish import PAGE, fenced, put
from ragbandit.examples.handbook.command import HERE, Row, environment_of, ragbandit, read_questions
from ragbandit.examples.handbook.side_by_side import LEGEND, ended, main_table, print_wide, sampled
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.workers.evaluation.runs import parse_arms

ROOT: Final = Path(__file__).parents[1]
SHARED: Final = ROOT.parent / "shared" / "data" / "qa"
DATA: Final = ROOT / ".ragbandit" / "strategies"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Questions and what they are asked of."""

    name: str
    #: holds questions.jsonl and corpus.jsonl
    folder: Path
    #: key of a question's kind
    by: str


SETS: Final = (Asked(name="handbook", folder=HERE, by="kind"), Asked(name="qa", folder=SHARED, by="source"))


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--handbook", type=int, default=10, help="questions of each kind; 0 skips the handbook")
    parser.add_argument("--qa", type=int, default=10, help="questions of each data set; 0 skips the data sets")
    parser.add_argument("--strategy", default="all", metavar="NAME[,NAME...]")
    parser.add_argument("--concurrency", type=int, default=1, help="answers at a time; above 1 Time is that of a crowd")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of indexes and answers")
    parser.add_argument("--config", type=Path, default=ROOT / "config.yaml")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    chosen = parser.parse_args()
    data: Path = chosen.data.absolute()
    environment = environment_of(chosen.config.absolute(), data=data)
    settings = load(environ=environment).settings
    _, left_out = parse_arms([chosen.strategy], settings=settings)
    said = io.StringIO()
    console = Console(file=said, width=120, emoji=False)
    count = 0
    for asked in SETS:
        each: int = getattr(chosen, asked.name)
        if each > 0 and (asked.folder / "questions.jsonl").exists():
            verb = ["--strategy", chosen.strategy, "--concurrency", str(chosen.concurrency)]
            count += _run(asked, each=each, verb=verb, data=data, environment=environment, console=console)
        else:
            print(f"{asked.name}: not asked" + ("" if each < 1 else f", {asked.folder} is not there"))
    if not count:
        raise SystemExit("no question was asked")
    for line in [LEGEND, *(f"left out: {name}: {reason}" for name, reason in left_out.items())]:
        console.print(escape(line), soft_wrap=True, highlight=False)
    console.print(_made_on(settings.generator, concurrency=chosen.concurrency), soft_wrap=True, highlight=False)
    print(said.getvalue())
    if chosen.publish:
        put("strategies", fenced(said.getvalue()), file=PAGE)


def _run(asked: Asked, *, each: int, verb: list[str], data: Path, environment: dict[str, str], console: Console) -> int:
    """Run `ragbandit evaluate` on the sample and print its output. Returns the number of questions."""
    questions = sampled(read_questions(asked.folder / "questions.jsonl"), each=each, by=asked.by)
    data.mkdir(parents=True, exist_ok=True)
    file = data / f"{asked.name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8")
    places = ["--questions", str(file), "--corpus", str(asked.folder / "corpus.jsonl")]
    kept = ["--answers", str(data / f"{asked.name}-answers.jsonl"), "--resume", "--json"]
    rows: list[Row] = json.loads(
        ragbandit(["evaluate", *places, *verb, *kept], environment=environment, seen=True, timeout_s=None)
    )
    counts = ", ".join(f"{kind} {count}" for kind, count in Counter(row[asked.by] for row in questions).items())
    print_wide(main_table(rows, title=f"{asked.name}: {len(questions)} questions ({counts})"), console=console)
    for line in ended(rows):
        console.print(line, soft_wrap=True, highlight=False)
    return len(questions)


def _made_on(generator: GeneratorSettings, *, concurrency: int) -> str:
    """The model, how it was asked, and the machine."""
    if generator.name != "local":
        return f"{generator.model} by the generator {generator.name}, answers at a time: {concurrency}; {machine()}"
    import torch

    gpu = generator.device != "cpu" and torch.cuda.is_available()
    place = f"{torch.cuda.get_device_name()}, " if gpu else "no GPU, "
    return f"{generator.model}, answers at a time: {concurrency}; {place}{machine()}"


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
