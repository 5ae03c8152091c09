"""Wide tables whose columns have other names than `correct.ARM`: which column has which value of which arm.

gpt-4, gpt-4|total_cost      a column for each model with its score, as RouterBench writes them
gpt-4_score, cost_gpt-4      the value's name behind or before the model, with any sign between them
{"gpt-4": {"score": 1}}      an object for each model, also inside of another object or as a list of them
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name
from ragbandit.router.offline.logs.table_values import (
    BY_ARM,
    COSTS,
    SIGNS,
    USUAL,
    arm_name,
    as_amount,
    as_quality,
    column_value,
    is_in_milliseconds,
)
from ragbandit.shared.errors import InvalidInput

#: keys that lead from the record to a value; a path of one key is the name of a column
Path = tuple[str, ...]
#: our key -> names of its columns, in addition to USUAL, that only wide tables of benchmarks have
_MORE: Final[Mapping[str, Sequence[str]]] = {
    "correct": ("correctness", "acc", "eval_score", "result"),
    "dollars": ("price", "dollar", "cost_dollars", "total_cost_dollars"),
    "prompt_tokens": ("input_tokens", "num_input_tokens"),
    "completion_tokens": ("output_tokens", "num_output_tokens"),
}
#: plain name of a value -> our keys that it may have, the outcome first
_HEADS: Final = defaultdict[str, list[str]](list)
for _ours in BY_ARM:
    for _name in (_ours, *USUAL.get(_ours, ()), *_MORE.get(_ours, ())):
        _HEADS[plain_name(_name)].append(_ours)
#: plain names of values that are texts; columns with these names serve only to find arms
_TEXTS: Final = frozenset({"modelresponse", "response", "output", "answer", "completion", "prediction", "generation"})
_NAMED: Final = (*map(plain_name, ("arm", *USUAL["arm"], "name")),)
_SIGN: Final = re.compile(rf"[{re.escape(SIGNS)}\s-]+")
#: maximum depth of objects, and maximum number of columns, that are searched for arms
_DEPTH: Final = 3
_MOST_COLUMNS: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmColumns:
    #: our key -> arm of the file -> path of its value
    paths: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidInput if two arms have one name."""
        known: dict[str, str] = {}
        for arm in self.paths.get("correct", ()):
            if known.setdefault(arm_name(arm), arm) != arm:
                reason = f"{arm!r:.80} and {known[arm_name(arm)]!r:.80} are both called {arm_name(arm)}"
                raise InvalidInput(reason, field="columns", remedy="rename one of them")

    @property
    def remarks(self) -> list[str]:
        read = [f"{ours} from {_path_words(of_arms.values())}" for ours, of_arms in self.paths.items()]
        renamed = [
            f"{arm_name(arm)} is {arm} of the file" for arm in self.paths.get("correct", ()) if arm_name(arm) != arm
        ]
        return read + renamed

    def values(self, entry: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Our key -> arm -> value of a record, without missing ones. Raises a group of InvalidInput."""
        values, faults = dict[str, dict[str, float]](), list[InvalidInput]()
        for ours, arm, path in self._paths_by_arm():
            cell, column = _at(entry, path), ".".join(path)
            if cells.is_empty(cell):
                continue
            try:
                number = cells.convert_value(as_amount if ours in COSTS else as_quality, cell, field=column)
            except InvalidInput as error:
                faults.append(error)
                continue
            number = number / 1000.0 if is_in_milliseconds(ours, column=column) else number
            values.setdefault(ours, {})[arm_name(arm)] = number
        if faults:
            raise ExceptionGroup("columns of arms", faults)
        return values

    def _paths_by_arm(self) -> Iterator[tuple[str, str, Path]]:
        return ((ours, arm, path) for ours, of_arms in self.paths.items() for arm, path in of_arms.items())


def arm_columns(
    sample: Sequence[Mapping[str, Any]], *, outcomes: Mapping[str, Path], named: Mapping[str, str]
) -> ArmColumns:
    """The columns of arms in these records; without paths if the records have none of the module's forms.

    outcomes: arm -> path of its outcome, if that is known; then only costs and measures are searched.
    named: our key -> name of the value in the file, such as "total_cost" of MODEL|total_cost.
    """
    cells_of = _first_values(sample)
    heads = {**_HEADS, **{plain_name(name): [ours] for ours, name in named.items()}}
    families = _families(cells_of, heads=heads)
    usual = ("correct", *USUAL["correct"], *_MORE["correct"]) if "correct" not in named else (named["correct"],)
    outcomes = outcomes or _outcome_paths(cells_of, families=families, names=usual)
    if len(outcomes) < 2:
        return ArmColumns()
    return ArmColumns(paths={"correct": outcomes, **_cost_paths(families, arms=list(outcomes), heads=heads)})


def value_names(sample: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The plain names that may be values of arms: all parts before or behind a sign in names of columns."""
    return frozenset(plain_name(head) for path in _first_values(sample) for _, _, head in _splits(path))


def _cost_paths(
    families: Mapping[tuple[str, str], Mapping[str, Path]],
    *,
    arms: Sequence[str],
    heads: Mapping[str, Sequence[str]],
) -> dict[str, Mapping[str, Path]]:
    """Our key of a cost or measure -> arm -> path, for values that all these arms have."""
    found: dict[str, Mapping[str, Path]] = {}
    for (_, head), of_arms in families.items():
        if all(arm in of_arms for arm in arms):
            for ours in heads.get(head, ()):
                if ours != "correct":
                    found.setdefault(ours, {arm: of_arms[arm] for arm in arms})
    if "dollars" in found or "steps" in found:
        found.pop("cost", None)  # its unit is unknown, and the other cost has a unit
    return found


def _first_values(sample: Sequence[Mapping[str, Any]]) -> dict[Path, Any]:
    """Path -> first value of it that is not empty."""
    found: dict[Path, Any] = {}
    for entry in sample:
        for path, value in _leaves(entry, path=()):
            if len(found) < _MOST_COLUMNS:
                found.setdefault(path, value)
    return found


def _leaves(value: Any, *, path: Path) -> Iterator[tuple[Path, Any]]:
    members = _members(value) if len(path) < _DEPTH else None
    if members is None:
        if not cells.is_empty(value):
            yield path, value
        return
    for key, member in members.items():
        yield from _leaves(member, path=(*path, str(key)))


def _members(value: Any) -> Mapping[str, Any] | None:
    """The members of an object, of its JSON, or of a list of objects that name their arm; None for other values."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = cells.from_text(value)
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        arms = [next((one[key] for key in one if plain_name(str(key)) in _NAMED), None) for one in value]
        if all(isinstance(arm, str) for arm in arms) and len({*arms}) == len(arms):
            return dict(zip(map(str, arms), value, strict=True))
    return value if isinstance(value, dict) else None


def _families(
    cells_of: Mapping[Path, Any], *, heads: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], dict[str, Path]]:
    """(how the arm is joined to the name, plain name of the value) -> arm -> path."""
    families = defaultdict[tuple[str, str], dict[str, Path]](dict)
    for path, value in cells_of.items():
        for how, arm, head in _splits(path):
            if plain_name(head) in _TEXTS or (plain_name(head) in heads and _is_number(value)):
                families[how, plain_name(head)].setdefault(arm, path)
    return families


def _splits(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (how arm and name are joined, arm, name of the value) for each way to read a path."""
    *around, last = path
    if around:
        before = ".".join(around[:-1])
        yield f"{before}.ARM.", around[-1], last
        yield f"{before}.{around[-1]}", last, around[-1]
        return
    for sign in _SIGN.finditer(last):
        left, right = last[: sign.start()], last[sign.end() :]
        if left and right:
            yield f"ARM{sign[0]}", left, right
            yield f"{sign[0]}ARM", right, left


def _outcome_paths(
    cells_of: Mapping[Path, Any],
    *,
    families: Mapping[tuple[str, str], Mapping[str, Path]],
    names: Sequence[str],
) -> Mapping[str, Path]:
    """Arm -> path of its outcome: by the first of these names that two arms have, else a column named as the arm."""
    for wanted in map(plain_name, names):
        for (_, name), of_arms in families.items():
            if name == wanted and len(of_arms) > 1:
                return of_arms
    best: dict[str, Path] = {}
    for of_arms in families.values():
        bare: dict[str, Path] = {arm: (arm,) for arm in of_arms if _is_number(cells_of.get((arm,)))}
        best = bare if len(bare) > max(len(best), 1) else best
    return best


def _is_number(value: Any) -> bool:
    if cells.is_empty(value):
        return False
    try:
        cells.outcome(value)
    except (ValueError, TypeError):
        return False
    return True


def _at(entry: Mapping[str, Any], path: Path) -> Any:
    if len(path) == 1:
        return column_value(entry, path[0])
    value: Any = entry
    for key in path:
        value = (_members(value) or {}).get(key)
    return value


def _path_words(paths: Iterable[Path]) -> str:
    names = [*map(".".join, paths)]
    return ", ".join(names[:2]) + ", ..." * (len(names) > 2)
