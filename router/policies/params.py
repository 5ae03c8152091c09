"""What the policies ask of their params: every check returns the param, or raises a ConfigError that names it."""

from collections.abc import Sequence
from typing import Final, TypeGuard

from ragbandit.router.errors import ConfigError
from ragbandit.router.types import ArmName

__all__ = [
    "check_arm",
    "check_number",
    "check_positive",
    "check_text",
    "check_whole",
    "check_word",
    "is_number",
    "refused",
]

# Beyond these no param makes sense, and what is made of it might be 0 or no float any more.
_LEAST: Final = 1e-12
_MOST: Final = 1e12
# Of whole numbers, which torch and others take as 32 bits
_MOST_WHOLE: Final = 10**9
_LEAVE: Final = "leave it out for the default"


def refused(name: str, value: object, *, wanted: str, remedy: str = _LEAVE) -> ConfigError:
    """The error that says of a param what it must be; for the caller to raise."""
    return ConfigError(f"must be {wanted}, not {value!r:.40}", field=f"policy.params.{name}", remedy=remedy)


def check_number(name: str, value: object, *, least: float = 0.0, most: float = _MOST, remedy: str = _LEAVE) -> float:
    """The param as a float, if it is a number in [least, most]."""
    if not is_number(value) or not least <= value <= most:
        raise refused(name, value, wanted=f"a number from {least:g} to {most:g}", remedy=remedy)
    return float(value)


def check_positive(name: str, value: object, *, remedy: str = _LEAVE) -> float:
    """The param as a float, if it is a number above 0: from 1e-12 to 1e12, so that its inverse is one too."""
    return check_number(name, value, least=_LEAST, remedy=remedy)


def check_whole(name: str, value: object, *, least: int = 0, most: int = _MOST_WHOLE) -> int:
    """The param, if it is an integer in [least, most]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refused(name, value, wanted=f"a whole number from {least} to {most}")
    return value


def check_word(name: str, value: object, *, known: Sequence[str]) -> str:
    """The param, if it is one of these words."""
    if not isinstance(value, str) or value not in known:
        raise refused(name, value, wanted=f"one of {', '.join(known)}")
    return value


def check_text(name: str, value: object, *, wanted: str, remedy: str = _LEAVE) -> str:
    """The param, if it is text and not empty; wanted: of what, for the message."""
    if not isinstance(value, str) or not value:
        raise refused(name, value, wanted=wanted, remedy=remedy)
    return value


def check_arm(name: str, value: object) -> ArmName:
    """The param, if it can be the name of an arm."""
    return ArmName(check_text(name, value, wanted="the name of an arm", remedy="for example single_step"))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is an int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
