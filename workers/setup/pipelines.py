"""Pipelines: Python functions of the user that a command runs as arms. docs/advise.md describes what they return."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, SupportsFloat

from ragbandit.router.config.grids import NAME
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import function_identity, import_class
from ragbandit.shared.types import REPORTED_COSTS, ArmName, Cost
from ragbandit.strategies.arms.callable import CallableArm, asking_function, output_text
from ragbandit.strategies.arms.http import add_reply, checked_reply
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.without_index import NoRetriever
from ragbandit.strategies.run import Answer, Run
from ragbandit.workers.setup.loading import LoadedArm

#: name -> a function that takes a question, or an object that an arm of the class `callable` can call
Pipelines = Mapping[str, Any]

#: fields of a cost that a pipeline cannot report: they are measured, counted by the store, or assumed
_MEASURED: Final = frozenset({"seconds_total", "turns", "assumed_dollars"})
#: cost terms that a pipeline can report
_COSTS: Final = frozenset(REPORTED_COSTS) - _MEASURED
_FORM: Final = 'return a text, (text, {"dollars": 0.004}), or {"answer": text, "steps": 2, "cost": {"dollars": 0.004}}'


def named_pipelines(path: str, *, folder: str) -> Pipelines:
    """Import the mapping, or call the function that returns it. The module is installed, or in `folder`."""
    sys.path.append(folder)
    pipelines = import_class(path, where="--module")
    if inspect.isfunction(pipelines) and not inspect.signature(pipelines).parameters:
        pipelines = pipelines()
    if not isinstance(pipelines, Mapping):
        message = f"{path!r} is {type(pipelines).__name__}; expected a mapping of names to functions"
        remedy = 'for example arms = {"cheap": ask_cheap, "large": ask_large}'
        raise ConfigError(message, field="--module", remedy=remedy)
    return pipelines


def load_pipelines(pipelines: Pipelines, *, prices: Mapping[str, float]) -> dict[ArmName, LoadedArm]:
    """The pipelines as arms. prices: `reward.cost`. Raises ConfigError for an invalid name or object."""
    for name in pipelines:
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            remedy = "use 1 to 64 letters, digits, dots, dashes, underscores"
            raise ConfigError(f"{name!r:.80} is not a valid name of a pipeline", field="pipelines", remedy=remedy)
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
    #: stored answers are found by this name
    stored_name: ClassVar[str] = "ragbandit.workers.evaluation.pipelines:FunctionArm"

    def __init__(self, function: object, *, name: str, unit: str) -> None:
        """unit: "steps" or the field of Cost that a bare number means; "" if such a number is ambiguous."""
        self._function, self._unit = function, unit
        super().__init__(name=name, object=function_identity(function))

    def _callable(self, *, where: str) -> tuple[Callable[[Any], Any], str]:
        return asking_function(self._function, path=self.name, where=where.replace("arms", "pipelines", 1))

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The function's answer. Raises ArmFailed if its output has no text, or a cost that cannot be read."""
        fields = self._fields(await self._output(question, run=run))
        return add_reply(checked_reply(fields, arm=self.name, remedy=_FORM), run=run)

    def _fields(self, output: object) -> dict[str, object]:
        reported_cost: object = None
        attributes = _attributes(output)
        if isinstance(output, tuple) and len(output) == 2:
            output, reported_cost = output
        elif attributes:
            names = {"steps", "cost", *_COSTS}
            reported_cost = {name: value for name, value in attributes.items() if name in names}
            output = attributes["answer"]
        cost = self._amounts(reported_cost)
        if "cost" in cost:
            cost |= self._amounts(cost.pop("cost"))
        return {"answer": output_text(output), "steps": cost.pop("steps", 1), "cost": cost}

    def _amounts(self, cost: object) -> dict[str, object]:
        """A reported cost as a mapping, without None and without measured terms."""
        cost = {name: getattr(cost, name) for name in _COSTS} if isinstance(cost, Cost) else cost
        fields = cost if isinstance(cost, Mapping) else {self._unit or "cost in a unit": cost}
        amounts = {name: value for name, value in fields.items() if value is not None and name not in _MEASURED}
        for name, value in amounts.items():
            if isinstance(value, SupportsFloat) and not isinstance(value, bool | int):
                amounts[name] = float(value)  # the value is a number of numpy, or a Decimal
        return amounts


def _attributes(output: object) -> Mapping[str, object]:
    if isinstance(output, Mapping):
        return output if output.get("answer") is not None else {}
    names = {"answer", "steps", "cost", *_COSTS}
    return {name: getattr(output, name) for name in names if hasattr(output, name)} if hasattr(output, "answer") else {}
