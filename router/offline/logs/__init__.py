"""Logged traffic as files: `jsonl`, one JSON object a line, and `parquet`, the same columns, typed.

Everything in a row comes back from both formats. docs/replay.md lists their keys.
"""

import glob
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.storage.rows.conversion import price_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import remote_system
from ragbandit.shared.formats import known_choices
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import ArmName, Budget, Decision, FeedbackId, Json, Reward

#: keys as in OURS; `features` is a float32 array, shape (d,), or None
Record = dict[str, Any]

#: the keys of a record, in the order of a line; whatever else a row has is `extra`
OURS = (
    "id",
    "seq",
    "made_at",
    "text",
    "context",
    "tenant",
    "allowed",
    "budget",
    "price",
    "aim",
    "arms",
    "pmf",
    "scores",
    "arm",
    "propensity",
    "policy",
    "version",
    "encoder_hash",
    "seed",
    "floor",
    "explored",
    "fault",
    "facts",
    "run_by",
    "cost_weight",
    "reward",
    "feedback_ids",
    "feedback_at",
    "learned_at",
    "late",
    "features",
)
_CAPS = tuple(cap.name for cap in fields(Budget))


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A decision and the reward that was learned for it: a row of a log."""

    decision: Decision
    reward: Reward
    #: place in the ledger, from 1; of a file that has none, the row's number
    seq: int
    feedback_ids: tuple[FeedbackId, ...] = ()
    #: when the last feedback that made the reward came in; None: not known
    feedback_at: float | None = None
    #: when it was learned; None: not known
    learned_at: float | None = None
    #: more feedback came after it was learned
    late: bool = False
    #: keys of the file that we do not know; a candidate's pmf may be one of them
    extra: Mapping[str, Json] = field(default_factory=dict)
    #: where it stands in its file, for messages; 0 where it comes from a store
    line: int = 0
    #: as in `Update`, where it comes from a store; files do not have them
    decided: int | None = None
    restarts: tuple[ArmName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that cannot be used: where, which field, why, and what to do."""

    line: int
    field: str
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Reward bounds and weight for rows that do not name them."""

    #: the bounds of the reward
    minimum: float = -1.0
    maximum: float = 1.0
    #: weight of the cost in rewards that are logged as quality and cost
    weight: float = 0.0


_OF_ROW = frozenset(part.name for part in fields(Logged))
_OF_DECISION = frozenset(part.name for part in fields(Decision))
_REWARD_DEFAULTS = {part.name: part.default for part in fields(Reward)} | {"surrogates": {}}


def _path(key: str) -> str:
    """Where a row has what a key of its record says."""
    owner = "" if key in _OF_ROW else "decision." if key in _OF_DECISION else "decision.query."
    return owner + {"allowed": "arms", "price": "cost_weight"}.get(key, key)


def _caps(budget: Budget) -> Record:
    return {name: cap for name in _CAPS if (cap := getattr(budget, name)) is not None}


def _parts(reward: Reward) -> Record:
    """The parts of a reward, without those that have their default values."""
    parts = {name: value for name, default in _REWARD_DEFAULTS.items() if (value := getattr(reward, name)) != default}
    return parts | {"terms": dict(reward.terms)}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


_VALUES = attrgetter(*map(_path, OURS))
#: key of a record -> conversion of the row's value; the seed as text: many readers round whole numbers of 64 bits
_SAID: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(OURS, _listed),
    **dict.fromkeys(("context", "aim", "facts"), dict),
    "budget": _caps,
    "price": price_text,
    "seed": str,
    "reward": _parts,
}


def record_of(row: Logged) -> Record:
    """The row's record: every key of OURS in that order, then `extra`. Arrays and mappings are the row's own."""
    said = zip(_SAID.items(), _VALUES(row), strict=True)
    return {**{key: say(value) for (key, say), value in said}, **row.extra}


def column_values(rows: Iterable[Logged], key: str) -> list[Any]:
    """What the records of these rows say under a key of OURS."""
    value, say = attrgetter(_path(key)), _SAID[key]
    return [say(value(row)) for row in rows]


_STRICT: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


def sayable(value: Record) -> Record:
    """An object that JSON can hold: no NaN, no half characters."""
    try:
        if value:
            _STRICT.encode(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise PydanticCustomError("json", "Give what JSON can say ({error})", {"error": str(error)}) from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(sayable)]
Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], record: Mapping[str, Any]) -> Model:
    """The values of a record, checked each for itself. Raises InvalidInput for the first that is wrong."""
    try:
        return model.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    field = ".".join(part for part in fault["loc"] if isinstance(part, str))
    if fault["type"] == "missing":
        needed = [name for name, part in model.model_fields.items() if part.is_required()]
        raise InvalidInput("is missing", field=field, remedy=f"a row needs {', '.join(needed)}")
    remedy = fault["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("dictionary", "object")
    if fault["type"] == "string_unicode" or "\x00" in str(fault["input"]):
        remedy = "Remove the NUL or half character"
    raise InvalidInput(f"{fault['input']!r:.40} cannot be used", field=field, remedy=remedy)


def reward_defaults(
    settings: RewardSettings, *, minimum: float | None = None, maximum: float | None = None
) -> Defaults:
    """Bounds and weight of rewards that do not name them: the configured ones, or the bounds given here.

    Raises InvalidInput for bounds that are not finite, or not in order.
    """
    defaults = Defaults(
        minimum=settings.minimum if minimum is None else minimum,
        maximum=settings.maximum if maximum is None else maximum,
        weight=settings.weight,
    )
    if not -math.inf < defaults.minimum < defaults.maximum < math.inf:
        raise InvalidInput("must be below maximum", field="minimum", remedy="give the bounds that the rewards have")
    return defaults


#: a Path; or a str, which is a URL
Place = Path | str
Row = TypeVar("Row")

#: bad rows that an error names
MOST_NAMED = 5
#: format -> how its files' names end
FORMATS = {"jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"), "parquet": (".parquet",)}


def read_rows(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the word that people know
    defaults: Defaults | None = None,
) -> Iterator[Logged | BadRow]:
    """The rows of a log in the order of the file, what cannot be used as BadRow.

    format: one of FORMATS; None goes by the file's name. Raises InvalidInput for a file that cannot be read at all,
    ConfigError for a format whose package is not installed.
    """
    format_name = format_of(path, format=format)
    module = import_module(f"ragbandit.router.offline.logs.{format_name}")
    return cast("Iterator[Logged | BadRow]", module.read(path, defaults=defaults or Defaults()))


def usable_rows(rows: Iterable[Logged | BadRow], *, path: Place, skip: bool, bad: list[BadRow]) -> Iterator[Logged]:
    """The rows of a log that can be used; the others are put into `bad`.

    skip: bad rows are left out. Raises InvalidInput at the end if rows are bad and not skipped, or if all rows are bad.
    """
    good, bad[:] = 0, []
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            good += 1
            yield row
    if bad and not (skip and good):
        named = "; ".join(f"line {row.line} {row.field} {row.reason} ({row.remedy})" for row in bad[:MOST_NAMED])
        more = f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        remedy = "correct them, or give --skip-bad to continue without them" if good else "correct them: no row is left"
        message = f"{len(bad)} of {len(bad) + good} rows cannot be used: {named}{more}"
        raise InvalidInput(message, field=shown(path), remedy=remedy)


def with_progress(rows: Iterable[Row], progress: Progress, *, total: int = 0) -> Iterator[Row]:
    """The same rows; calls `progress` after every 1000 rows."""
    for done, row in enumerate(rows, start=1):
        yield row
        if done % 1000 == 0:
            progress("rows read", done, total)


def write_rows(
    path: str | Path,
    rows: Iterable[Logged],
    *,
    format: str | None = None,  # noqa: A002 - as above
) -> int:
    """Write a log; the number of rows. It appears when all of it is written: an error leaves nothing behind.

    Raises InvalidInput, or ConfigError for a format whose package is not installed.
    """
    module = import_module(f"ragbandit.router.offline.logs.{format_of(path, format=format)}")
    return cast("int", module.write(path, rows))


def format_of(path: str | Path, *, format: str | None = None) -> str:  # noqa: A002 - as above
    """The format that is named, or that the file's name ends in. Raises InvalidInput."""
    if format is None:
        matching = [name for name, ends in FORMATS.items() if str(path).lower().endswith(ends)]
        if not matching:
            known = ", ".join(end for ends in FORMATS.values() for end in ends)
            raise InvalidInput(
                "its name does not say the format", field=str(path), remedy=f"name the format, or end it in {known}"
            )
        return matching[0]
    if format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}", field="format", remedy=known_choices(FORMATS, given=format))
    return format


def log_format(path: Place, *, format: str | None) -> str:  # noqa: A002 - as above
    """The format of a log to replay; several files, and files at a URL, are Parquet. Raises InvalidInput."""
    if not is_several(path):
        named = format_of(path, format=format)
        if isinstance(path, str) and named != "parquet":
            raise InvalidInput(
                f"a log at a URL must be Parquet, not {named}",
                field="log",
                remedy="copy the file to this machine, or export it with --format parquet",
            )
        return named
    if format not in (None, "parquet"):
        raise InvalidInput("several files can be read as Parquet only", field="format", remedy="name one file")
    return "parquet"


_SUFFIX: Final = ".parquet"


def place_of(text: str | Path) -> Place:
    """A URL as it is, anything else as a Path."""
    return text if isinstance(text, str) and "://" in text else Path(text)


def shown(place: Place) -> str:
    """The place for messages and reports, without secrets."""
    return without_secrets(place) if isinstance(place, str) else str(place)


def is_several(place: Place) -> bool:
    """Whether it is a folder, or a pattern with *. Raises InvalidInput if the place cannot be listed."""
    if "*" in str(place):
        return True
    if isinstance(place, Path):
        return place.is_dir()
    system, path = remote_system(place, field="log")
    with _listing(place):
        return bool(system.isdir(path))


def files_of(place: Place) -> list[Place]:
    """The Parquet files below a folder, or the files of a pattern, by name. Raises InvalidInput as `is_several`."""
    if isinstance(place, Path):
        folder = place.is_dir()
        return sorted(place.rglob(f"*{_SUFFIX}") if folder else map(Path, glob.glob(str(place), recursive=True)))
    system, path = remote_system(place, field="log")
    with _listing(place):
        names = system.glob(path) if "*" in place else [name for name in system.find(path) if name.endswith(_SUFFIX)]
    return [system.unstrip_protocol(name) for name in sorted(names)]


@contextmanager
def _listing(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system raises errors of its own
        message = without_secrets(f"{type(error).__name__}: {error}")
        raise InvalidInput(
            f"cannot be listed: {message}", field=shown(place), remedy="check the URL and this user's rights"
        ) from error
