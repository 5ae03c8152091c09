"""`make demo STRATEGIES=all`: every arm that the configured model can run, side by side on the same questions.

`ragbandit evaluate` runs the arms on a sample of the handbook's questions, equally many of each kind, and stores every
answer, so the same command continues an interrupted run and repeats nothing. Its table shows which arm is right for
which kind, and the reward of each arm at the demo's lambda. `ragbandit advise` learns the table and reports which arms
the policy would choose. Writes .ragbandit/demo/strategies.json.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ragbandit.examples.handbook.command import DATA, HERE, Row, environment_of, ragbandit, read_questions
from ragbandit.examples.handbook.side_by_side import (
    KINDS,
    LEGEND,
    by_kind,
    ended,
    kinds_table,
    main_table,
    print_wide,
    sampled,
)
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import RagBanditError
from ragbandit.workers.setup.chosen_arms import parse_arms

#: number of parts of the table; each part is judged by a policy that has learned the other two
FOLDS = 3

console = Console(emoji=False)


def main() -> None:
    """Run the arms and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", default="all", metavar="NAME[,NAME...]", help="at least two, or all")
    parser.add_argument(
        "--each", type=int, default=3, help="number of questions of each kind (none, one, two passages)"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="answers at the same time; above 1 each is slower")
    parser.add_argument("--data", type=Path, default=DATA, help="folder for everything the demo writes")
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml", help="settings other than the demo's")
    chosen = parser.parse_args()
    if chosen.each < 1:
        parser.error("--each: at least one question of each kind is needed")
    began = time.monotonic()
    folder: Path = chosen.data.absolute() / "strategies"
    environment = environment_of(chosen.config.absolute(), data=chosen.data.absolute())
    settings = load(environ=environment).settings
    arms, left_out = parse_arms([chosen.strategies], settings=settings)
    if len(arms) < 2:
        parser.error("--strategies: name at least two, to see them side by side")
    questions = sampled(read_questions(), each=chosen.each, by="kind")
    ragbandit(["index", "build", "--corpus", str(HERE / "corpus.jsonl")], environment=environment)
    console.print(f"{len(arms)} arms on {len(questions)} questions, {chosen.each} of each kind")
    asked = ["--strategy", chosen.strategies, "--concurrency", str(chosen.concurrency)]
    rows = _evaluated(questions, asked=asked, folder=folder, environment=environment)
    report = {
        "model": "scripted" if settings.generator.name == "scripted" else settings.generator.model,
        "questions": len(questions),
        "strategies": rows,
        "left_out": left_out,
        **_learned(questions, folder=folder, settings=settings, environment=environment),
        "seconds": time.monotonic() - began,
    }
    (chosen.data / "strategies.json").write_text(json.dumps(report, indent=2))
    _show(report, file=Path(os.path.relpath(chosen.data / "strategies.json")))


def _evaluated(questions: list[Row], *, asked: list[str], folder: Path, environment: dict[str, str]) -> list[Row]:
    """Rows of `ragbandit evaluate`, one per arm. Writes its table and its answers into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8")
    kept = ["--answers", str(folder / "answers.jsonl"), "--resume", "--table", str(folder / "table.jsonl")]
    verb = ["evaluate", "--questions", str(file), *asked, *kept, "--json"]
    found: list[Row] = json.loads(ragbandit(verb, environment=environment, seen=True, timeout_s=None))
    return found


def _learned(questions: list[Row], *, folder: Path, settings: Settings, environment: dict[str, str]) -> Row:
    """Tables of the arms' right answers and rewards, and the arms that the configured policy picks after learning."""
    file, reward, name = folder / "table.jsonl", settings.reward, settings.policy.name
    table = read_table(file)
    verb = ["advise", "--table", str(file), "--folds", str(FOLDS), "--json"]
    with show_progress(console) as progress:
        progress(f"{name} learns the table", 0, 0)
        advice = json.loads(ragbandit(verb, environment=environment))
    means = {part: advice["comparisons"][0][part]["first"] for part in ("quality", "cost", "reward")}
    picked = {"strategy": f"{name}, having learned", "right": means["quality"], "steps": means["cost"]}
    return {
        "lambda": reward.weight,
        "by_kind": by_kind(table, kinds={row["id"]: row["kind"] for row in questions}, reward=reward),
        "policy": picked | {"reward": means["reward"], "arms": advice["shares"]},
    }


def _show(report: Row, *, file: Path) -> None:
    """Print the tables, and a caution about them."""
    count, model = report["questions"], report["model"]
    print_wide(main_table(report["strategies"], title=f"{count} questions of the handbook, {model}"), console=console)
    for line in [*ended(report["strategies"]), LEGEND]:
        console.print(line, soft_wrap=True, highlight=False)
    for row in report["strategies"]:
        for failure in row["failures"]:
            console.print(escape(f"failed: {row['strategy']} {failure['id']}: {failure['error']}"), soft_wrap=True)
    title = (
        f"share right by what a question needs ({count // len(KINDS)} of each), reward at lambda {report['lambda']:g}"
    )
    print_wide(kinds_table([*report["by_kind"], report["policy"]], title=title), console=console)
    shares = sorted(report["policy"]["arms"].items(), key=lambda item: -item[1])
    picks = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    console.print(
        f"{report['policy']['strategy']} two thirds of these, every arm of a question, picks: {picks}", soft_wrap=True
    )
    for name, reason in report["left_out"].items():
        console.print(escape(f"left out: {name}: {reason}"), soft_wrap=True, highlight=False)
    console.print(_caution(model, count=count), soft_wrap=True)
    console.print(
        f"report: {file}   answers: {file.parent / 'strategies'}   seconds: {report['seconds']:.0f}", soft_wrap=True
    )


def _caution(model: str, *, count: int) -> str:
    """A caution: the sample is too small to rank the arms."""
    small = "a model of 135 million parameters, which cannot do what most arms ask of it, " if "135M" in model else ""
    joined = f"{small}and so few questions" if small else "So few questions"
    said = f"{joined[0].upper()}{joined[1:]} (n = {count})"
    return f"{said} say next to nothing about which arm is better: this shows what the arms do, and what they cost."


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with contextlib.suppress(BrokenPipeError):
        try:
            main()
        except KeyboardInterrupt:
            raise SystemExit("stopped; the same command resumes from here") from None
        except RagBanditError as error:
            raise SystemExit(f"{error.code}: {error}") from error
