"""What is measured: one cell has a door, a size, a form of the reply, and how the service is set up.

A cell is written DOOR:KILOBYTES:FORM[:NAME=VALUE...], for example `chat:100:whole` or
`messages:0.3:streamed:pieces=300:gap=2:callers=16:server=messages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

#: name of a field -> its allowed values
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "door": ("chat", "messages", "responses"),
    "form": ("whole", "streamed"),
    "last": ("question", "result"),
    "unit": ("turn", "task"),
    "encoder": ("hashing", "distilbert"),
    "server": ("chat", "messages"),
}
#: the cells that are measured if none are chosen
DEFAULT: Final = (
    *(f"chat:{size}:whole" for size in ("0.3", "20", "100", "400")),
    *(f"messages:{size}:whole:server=messages" for size in ("0.3", "20", "100", "400")),
    "messages:100:whole",
    "chat:100:whole:server=messages",
    "chat:100:whole:last=result",
    "chat:100:whole:unit=task",
    "chat:0.3:whole:callers=16",
    "chat:100:whole:callers=16",
    "chat:0.3:whole:pieces=300:gap=2",
    "chat:100:streamed",
    *(f"chat:0.3:streamed:pieces=300:gap={gap}" for gap in ("0", "2", "20")),
    "messages:0.3:streamed:pieces=300:gap=2:server=messages",
    "chat:0.3:streamed:pieces=300:gap=20:callers=16",
    "chat:0.3:whole:encoder=distilbert",
    "chat:0.3:whole:encoder=distilbert:callers=16",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Settings of the gateways: cells with the same ones are measured with the same processes."""

    unit: str = "turn"
    encoder: str = "hashing"
    #: dialect of the model server
    server: str = "chat"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell(Setup):
    """One line of the table."""

    door: str
    #: size of the first request of a conversation, 1,000 bytes
    kilobytes: float
    form: str
    #: pieces of the model server's reply, and milliseconds between them
    pieces: int = 20
    gap: float = 0.0
    #: how many callers ask at once, each in a conversation of its own
    callers: int = 1
    #: what a request ends with: a new question, or the result of the call in the reply before
    last: str = "question"

    @classmethod
    def read(cls, text: str) -> Self:
        """The cell of this text. Raises ValueError with the name of a wrong field."""
        if text.count(":") < 2:
            raise ValueError(f"{text}: a cell is DOOR:KILOBYTES:FORM[:NAME=VALUE...]")
        door, size, form, *more = text.split(":")
        given = {"door": door, "kilobytes": size, "form": form}
        known = {field.name for field in fields(cls)}
        for word in more:
            name, _, value = word.partition("=")
            if name not in known - given.keys():
                raise ValueError(f"{text}: {name!r} is no field of a cell, or is there twice")
            given[name] = value
        for name, choices in CHOICES.items():
            if name in given and given[name] not in choices:
                raise ValueError(f"{text}: {name} is one of {', '.join(choices)}, not {given[name]!r}")
        try:
            numbers = {name: _TYPES[name](given[name]) for name in _TYPES if name in given}
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from None
        if min(numbers.get("pieces", 1), numbers.get("callers", 1)) < 1 or min(numbers.values()) < 0:
            raise ValueError(f"{text}: numbers are positive")
        return cls(**(given | numbers))  # type: ignore[arg-type]

    @property
    def setup(self) -> Setup:
        """The settings of the gateways that it needs."""
        return Setup(unit=self.unit, encoder=self.encoder, server=self.server)

    @property
    def reply_ms(self) -> float:
        """How long the model server takes to reply."""
        return self.pieces * self.gap

    def __str__(self) -> str:
        words = [self.door, f"{self.kilobytes:g}", self.form]
        shown = ("pieces", "gap", "callers", "last", "unit", "encoder", "server")
        default = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in shown if getattr(self, name) != default[name]}
        return ":".join([*words, *(f"{name}={_written(value)}" for name, value in values.items())])


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_TYPES: Final[Mapping[str, type[int] | type[float]]] = {"kilobytes": float, "pieces": int, "gap": float, "callers": int}


def by_setup(cells: Sequence[Cell]) -> dict[Setup, list[Cell]]:
    """The cells of each setup, in their order."""
    found: dict[Setup, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.setup, []).append(cell)
    return found
