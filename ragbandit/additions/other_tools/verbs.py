"""The verbs `ragbandit data questions` and `ragbandit feedback import`."""

import contextlib
import json
import shlex
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from ragbandit.additions.other_tools.facts import Fact, fact_of, model_facts, sentences
from ragbandit.additions.other_tools.feedback_rows import FeedbackImporter
from ragbandit.additions.other_tools.questions import QuestionLog
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ConfigOption, JsonOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import open_store
from ragbandit.router.cli.tables import show
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import JUDGE_LINE, Settings
from ragbandit.router.offline.logs.records import records
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.setup.bootstrap import make_jobs
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import new_lines, rereadable

#: lines that are stored in one transaction
_PAGE: Final = 500


def questions(
    file: Annotated[Path, typer.Argument(help="a log of another tool, or a table with the column question")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write")] = Path("questions.jsonl"),
    question: Annotated[str, typer.Option(metavar="COLUMN", help="column with the question of a table")] = "",
    answer: Annotated[str, typer.Option(metavar="COLUMN", help="column with the answer that was given")] = "",
    rating: Annotated[str, typer.Option(metavar="COLUMN", help="column with a rating of the answer")] = "",
    keep_personal: Annotated[bool, typer.Option("--keep-personal", help="also write users and metadata")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the questions of another tool's log as `advise` reads them, and print facts about the log's models.

    Reads logs of Langfuse, LangSmith, Phoenix, OpenTelemetry, LiteLLM, OpenAI and Open WebUI, and tables. The content
    decides which tool's log it is. docs/logs.md lists how each tool exports.
    """
    settings = configuration.load(config).settings
    prices = {
        model: price for each in settings.named_generators.values() for model, price in each.prices_by_model.items()
    }
    if out.exists() and out.samefile(file):
        raise InvalidInput("this is the log itself", field="out", remedy="name another file")
    columns = {"question": question, "answer": answer, "scores": rating}
    columns = {name: column for name, column in columns.items() if column}
    facts, labelled = defaultdict[str, list[Fact]](list), 0
    with rereadable(file) as readable, contextlib.ExitStack() as stack:
        log = QuestionLog(path=readable, personal=keep_personal, columns=columns)
        for row in log.rows():
            if not facts:
                stream = stack.enter_context(new_lines(out))  # without a question, no file is written
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            facts[row.get("model", "")].append(fact_of(row))
            labelled += "answers" in row
        left_out = [f"{len(at)}: {reason} (first: record {at[0]})" for reason, at in log.left_out.items()]
        if not facts and not log.without_texts:
            raise InvalidInput(f"no question: {'; '.join(left_out)}", field=str(file), remedy="see docs/logs.md")
    count = sum(map(len, facts.values()))
    guess = ", ".join(f"{_COLUMNS[name]} {column!r}" for name, column in log.columns.items())
    result = {"questions": count, "of": log.form["name"], "columns": guess, "with right answers": labelled}
    if log.unread:
        result["texts not read"] = f"{', '.join(map(repr, log.unread))} (--answer COLUMN reads one as the answer)"
    told = facts or log.without_texts
    given = "" if config is None else f" --config {shlex.quote(str(config))}"
    functions = "" if len(settings.worker_arms) > 1 else " --module MODULE:NAME"
    then = f"`ragbandit advise {shlex.quote(str(out))} --budget 5{functions}{given}`"
    steps = _next_steps(then, unlabelled=labelled < count, settings=settings) if facts else [_NO_TEXTS]
    result |= {"file": str(out) if facts else None, "left out": left_out, "models": [*model_facts(told)]}
    show(result | {"what this log shows": [*sentences(told, prices=prices), *steps]}, as_json=as_json)


_COLUMNS: Final = {"question": "--question", "answer": "--answer", "scores": "--rating"}
_NO_TEXTS: Final = "this log has no texts, so there is no question to ask: see what was left out"


def _next_steps(command: str, *, unlabelled: bool, settings: Settings) -> Iterator[str]:
    if unlabelled and settings.judge.generator is None:
        yield f"questions without right answers need a judge: add this line to the configuration: {JUDGE_LINE}"
        yield f"then: {command}"
    else:
        yield f"next{' (judge.generator scores the answers)' if unlabelled else ''}: {command}"


def import_(
    file: Annotated[Path, typer.Argument(help="JSON Lines, a JSON list, CSV or Parquet: one judgement a row")],
    *,
    id_field: Annotated[
        str, typer.Option(help="the decision's id; a dot reads a part: user.id, scores.0.id")
    ] = "decision_id",
    rating_field: Annotated[str, typer.Option(help="true, false, or a number on the scale")] = "rating",
    label_field: Annotated[str, typer.Option(help="a gold answer, or a list of them")] = "label",
    reward_field: Annotated[str, typer.Option(help="the final reward, with the cost already subtracted")] = "reward",
    event_field: Annotated[str, typer.Option(help="a name of the setting feedback_events")] = "event",
    source_field: Annotated[str, typer.Option(help="who judged: human, label, judge or code")] = "source",
    rater_field: Annotated[str, typer.Option(help="id of the rater: a person, or a judge")] = "rater",
    key_field: Annotated[str, typer.Option(help="the judgement's id (default: a hash of the line)")] = ("feedback_id"),
    source: Annotated[str | None, typer.Option(help="source of every line; replaces the lines' own")] = None,
    scale: Annotated[str, typer.Option(help="WORST-BEST of numbers; default 0-1, or -1-1 if all are -1 or 1")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import feedback from a file of another tool or of your own logs.

    Each row judges one decision by a rating, label, reward or event. A file with a rating off the scale, or a reward
    out of its bounds, is refused before anything is stored. Unusable lines are counted and listed, the other lines are
    stored, and the exit code is then 1. A line that is imported twice is stored once. To correct a file, import it
    again: a later judgement of the same rater replaces the earlier one.
    """
    fields = {"decision_id": id_field, "rating": rating_field, "label": label_field, "reward": reward_field}
    fields |= {"event": event_field, "source": source_field, "rater": rater_field, "feedback_id": key_field}
    with rereadable(file) as readable, open_store(config, must_exist=False) as (settings, ledger):
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        importer = FeedbackImporter(store, settings=settings, fields=fields, source=source, scale=scale)
        importer.check(readable, file=file)
        try:
            with show_progress(errors) as progress:
                rows = records(readable, keys=importer.keys)
                for page in iter(lambda: list(islice(rows, _PAGE)), []):
                    importer.store_lines(page)
                    progress("lines", importer.read, 0)
        finally:
            if importer.counts["imported"]:
                Notifier(make_jobs(settings)).notify_learner()
    result = {**importer.counts, "bad": importer.bad}
    show(result | {"faults": importer.faults} if as_json else result, as_json=as_json)
    if not as_json:
        for fault in importer.faults:
            errors.say(f"{file}:{fault}")
        if importer.bad > len(importer.faults):
            errors.print(f"and {importer.bad - len(importer.faults)} more")
    if importer.bad:
        raise typer.Exit(1)
