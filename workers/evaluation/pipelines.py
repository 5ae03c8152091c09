"""Pipelines of the user's own code: Python functions that `advise` runs as arms.

A pipeline takes the question and returns its answer: a text; (text, cost); or a mapping or an object with `answer` and,
as far as it knows them, `steps` and `cost`. A cost is a number in the unit that `reward.cost` charges, or a mapping of
`steps` and fields of `shared.types.Cost`. Without `steps` an answer is one step.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Final, SupportsFloat

from ragbandit.router.config.named_sections import NAME
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.types import ArmName, Cost
from ragbandit.strategies.arms.external import CallableArm, accounted, asked_by, checked_reply, text_of
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.reranking import NoRetriever
from ragbandit.strategies.run import Answer, Run
from ragbandit.workers.evaluation.command import write_records
from ragbandit.workers.wiring.loading import LoadedArm

#: name -> a function of the question, or an object that the class `callable` can call
Pipelines = Mapping[str, Any]
#: a JSONL file, question -> right answers, or rows: a mapping with `question` and `answers`, or the question
Questions = str | PathLike[str] | Mapping[str, Any] | Iterable[Any]

_COSTS: Final = frozenset(asdict(Cost())) - {"seconds_total"}  # which is measured
_FORM: Final = 'return a text, (text, {"dollars": 0.004}), or {"answer": text, "steps": 2, "cost": {"dollars": 0.004}}'
_EXAMPLE: Final = 'for example arms = {"cheap": ask_cheap, "large": ask_large}'


def question_file(questions: Questions, *, folder: Path) -> Path:
    """The file of these questions; what is not a file yet is written to advise.jsonl in the folder."""
    if isinstance(questions, str | PathLike):
        return Path(questions)
    rows = [[question, gold] for question, gold in questions.items()] if isinstance(questions, Mapping) else questions
    file = folder / "advise.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_records(file, map(_record, rows))
    return file


def _record(row: object) -> dict[str, Any]:
    """A line of the file of questions, from a mapping, a question, or (question, right answer or answers)."""
    if isinstance(row, Mapping):
        question, gold, more = row.get("question"), row.get("answers"), row
    else:
        question, gold = row if isinstance(row, tuple | list) and len(row) == 2 else (row, None)
        more = {}
    answers = [gold] if isinstance(gold, str) else None if gold is None else [*gold]
    return {**more, "question": question} | ({} if answers is None else {"answers": answers})


def named_pipelines(path: str, *, folder: str) -> Pipelines:
    """The pipelines that "package.module:name" names: a mapping, or a function that makes it.

    folder: modules are looked for here too. Raises ConfigError.
    """
    sys.path.append(folder)
    given = import_class(path, where="--module")
    given = given() if inspect.isfunction(given) and not inspect.signature(given).parameters else given
    if not isinstance(given, Mapping):
        message = f"{path!r} is {type(given).__name__}; expected a mapping of names to functions"
        raise ConfigError(message, field="--module", remedy=_EXAMPLE)
    return given


def load_pipelines(pipelines: Pipelines, *, prices: Mapping[str, float]) -> dict[ArmName, LoadedArm]:
    """The pipelines as arms. prices: `reward.cost`. Raises ConfigError for a name or an object that cannot be one."""
    wrong = next((name for name in pipelines if not (isinstance(name, str) and NAME.fullmatch(name))), None)
    if wrong is not None:
        remedy = "use 1 to 64 letters, digits, dots, dashes, underscores"
        raise ConfigError(f"{wrong!r:.80} is no name of a pipeline", field="pipelines", remedy=remedy)
    charged = [term for term, price in prices.items() if price > 0.0]
    unit = charged[0] if len(charged) == 1 and charged[0] in {"steps", *_COSTS} else ""
    return {
        ArmName(name): LoadedArm(
            strategy=FunctionArm(function, name=name, unit=unit),
            generator=ScriptedGenerator({}, name="none"),
            retriever=NoRetriever(),
            most_runs=1,
        )
        for name, function in pipelines.items()
    }


class FunctionArm(CallableArm):
    """Answers by a Python object of this process, and takes the cost that the object reports."""

    def __init__(self, function: object, *, name: str, unit: str) -> None:
        """unit: "steps" or a field of Cost that a bare number counts; "" if a bare number is ambiguous."""
        self._function, self._unit = function, unit
        super().__init__(name=name, object=_identity(function))

    def _callable(self, *, where: str) -> tuple[Callable[[Any], Any], str]:
        return asked_by(self._function, shown=f"{self.name}", where=where.replace("arms", "pipelines", 1))

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The object's answer. Raises ArmFailed for an output without text or with a cost that cannot be read."""
        fields = self._fields(await self._output(question, run=run))
        return accounted(checked_reply(fields, arm=self.name, remedy=_FORM), run=run)

    def _fields(self, output: object) -> dict[str, object]:
        """The fields of the reply in an output. Fields of a mapping that no reply has are ignored."""
        took: object = None
        if isinstance(output, tuple) and len(output) == 2:
            output, took = output
        elif reported := _attributes(output):
            took = {name: value for name, value in reported.items() if name in {"steps", "cost", *_COSTS}}
            output = reported["answer"]
        cost = self._amounts(took)
        if "cost" in cost:
            cost |= self._amounts(cost.pop("cost"))
        return {"answer": text_of(output), "steps": cost.pop("steps", 1), "cost": cost}

    def _amounts(self, took: object) -> dict[str, object]:
        """A reported cost by the names of its fields, without None and the seconds, which are measured."""
        took = asdict(took) if isinstance(took, Cost) else took
        amounts = took if isinstance(took, Mapping) else {self._unit or "cost in a unit": took}
        known = {name: value for name, value in amounts.items() if value is not None and name != "seconds_total"}
        # Numbers of other packages (numpy, Decimal) are numbers.
        foreign = {name: value for name, value in known.items() if not isinstance(value, bool | int)}
        return known | {name: float(value) for name, value in foreign.items() if isinstance(value, SupportsFloat)}


def _attributes(output: object) -> Mapping[str, object]:
    """The fields of an output that has `answer`, a mapping or an object; else {}."""
    if isinstance(output, Mapping):
        return output if output.get("answer") is not None else {}
    names = {"answer", "steps", "cost", *_COSTS}
    return {name: getattr(output, name) for name in names if hasattr(output, name)} if hasattr(output, "answer") else {}


def _identity(function: object) -> str:
    """Name and, if it can be read, a digest of the source: stored answers of a changed function are asked again."""
    kind: Any = function if hasattr(function, "__qualname__") else type(function)
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # built in, or made at run time
        return name
    return f"{name} {sha256(source.encode()).hexdigest()[:12]}"
