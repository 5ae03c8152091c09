"""What the command line asks for, as values."""

from collections.abc import Mapping, Sequence

import yaml

from router.config import Settings
from router.errors import InvalidInput
from router.types import Json

__all__ = ["asked_line", "asked_policies", "asked_weights"]


def asked_policies(names: Sequence[str], *, params: Sequence[str], settings: Settings) -> dict[str, Mapping[str, Json]]:
    """Registry name -> params: the configured ones where that policy is configured, and NAME.KEY=VALUE over them.

    names: each may hold several, with commas between. VALUE is a YAML scalar.
    """
    found: dict[str, dict[str, Json]] = {}
    for name in _parts(names):
        found[name] = dict(settings.policy.params) if name == settings.policy.name else {}
    for given in params:
        path, equals, text = given.partition("=")
        name, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise InvalidInput(f"{given!r} is no NAME.KEY=VALUE", field="param", remedy="for example mba.ridge=3.0")
        if name not in found:
            remedy = f"use one of {', '.join(found)}" if found else "ask for that policy too"
            raise InvalidInput(f"{name!r} is not among the policies", field="param", remedy=remedy)
        try:
            found[name][key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidInput(f"{text!r} is no YAML value", field=f"param {path}", remedy="quote it") from error
    return dict(found)


def asked_weights(text: str) -> tuple[float, ...]:
    """The weights of X[,X...]."""
    try:
        return tuple(float(part) for part in _parts([text]))
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} has no number somewhere", field="lambda", remedy="for example 0.03,0.05"
        ) from error


def asked_line(text: str) -> tuple[str, str]:
    """The two arms of A,B."""
    parts = _parts([text])
    if len(parts) != 2 or parts[0] == parts[1]:
        raise InvalidInput(
            f"{text!r} does not name two arms", field="line", remedy="for example single_step,multi_step"
        )
    return parts[0], parts[1]


def _parts(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
