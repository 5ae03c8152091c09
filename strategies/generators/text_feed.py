"""Text feed: the text of one call, given to the request's sink while it is written."""

import time

from ragbandit.shared.errors import ArmFailed, RagBanditError
from ragbandit.strategies.base import Request


class TextFeed:
    """Gives a growing text to the sink of its request; all pieces together are the whole text, and nothing else.

    Held back until more is known: an end that may be the beginning of a stop string, and one that is half a character
    (U+FFFD, half of a surrogate pair). A text that is written a second time, since the first attempt broke off, is
    given from where the first one ended.
    """

    def __init__(self, request: Request) -> None:
        self._sink = request.sink
        self._stops = tuple(filter(None, request.stop))
        self._began = time.monotonic()
        #: seconds until the first piece of a growing text was given; None: none was
        self.first_s: float | None = None
        #: all that was given so far; a piece counts once the sink was called with it, whether or not it returned
        self.given = ""

    @property
    def wanted(self) -> bool:
        """True if somebody reads along."""
        return self._sink is not None

    async def grow(self, text: str) -> None:
        """Give what is new and settled in `text`, which is all that was written so far. Raises what `end` raises."""
        if self._sink is not None:
            await self._give(_settled(text, stops=self._stops))
            if self.given and self.first_s is None:
                self.first_s = time.monotonic() - self._began

    async def end(self, text: str) -> None:
        """Give the rest of the whole text.

        Raises ArmFailed if it does not begin with what was given: a second attempt wrote something else. Raises
        ArmFailed if the sink fails, or the sink's own error where that is one of ours.
        """
        if self._sink is not None:
            await self._give(text)
            if not text.startswith(self.given):
                raise _contradiction()

    async def _give(self, text: str) -> None:
        given = self.given
        if not text.startswith(given):
            if given.startswith(text):
                return  # a second attempt, not yet as far as the first one was
            raise _contradiction()
        piece = text[len(given) :]
        if not piece or self._sink is None:
            return
        self.given = text
        try:
            await self._sink(piece)
        except RagBanditError:
            raise
        except Exception as error:
            raise ArmFailed(f"whoever reads the text along failed: {type(error).__name__}: {error}") from error


def _contradiction() -> ArmFailed:
    return ArmFailed(
        "the answer broke off when a part of it had been given out, and was not written again in the same words",
        remedy="ask again; what was given out cannot be taken back",
    )


def _settled(text: str, *, stops: tuple[str, ...]) -> str:
    """The beginning of the text that stays whatever is written next."""
    if (end := min((at for at in map(text.find, stops) if at >= 0), default=None)) is not None:
        return text[:end]
    text = text.rstrip("\ufffd")
    if text and "\ud800" <= text[-1] <= "\udbff":
        text = text[:-1]
    held = max((_overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string without being all of it."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
