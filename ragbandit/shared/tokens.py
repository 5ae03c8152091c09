"""Tokens of one call of a language model, as servers count them, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens read and written; what is known beside, of them."""

    read: int
    written: int
    #: of those read: out of the provider's cache of prompts, and written into it
    cached: int = 0
    cache_write: int = 0
    #: of those written: a reasoning model's thoughts; None: nobody tells
    reasoning: int | None = None

    @classmethod
    def of(cls, usage: Any) -> "Tokens":
        """Of the `usage` of an OpenAI-compatible reply; by Anthropic's names where a proxy passes them on."""
        read, written = int(usage.prompt_tokens), int(usage.completion_tokens or 0)
        details = getattr(usage, "prompt_tokens_details", None)
        cached = min(_first(details, "cached_tokens") or _first(usage, "cache_read_input_tokens") or 0, read)
        kept = _first(details, "cache_write_tokens", "cache_creation_tokens")
        kept = min(kept or _first(usage, "cache_creation_input_tokens") or 0, read - cached)
        thoughts = _first(getattr(usage, "completion_tokens_details", None), "reasoning_tokens")
        thoughts = thoughts if thoughts is None else min(thoughts, written)
        return cls(read=read, written=written, cached=cached, cache_write=kept, reasoning=thoughts)

    def dollars(self, prices: Sequence[float]) -> float:
        """What they cost. prices: dollars per million, input, output, then cached_input, cache_write and reasoning.

        One that is missing is that of input, or of output.
        """
        of_input, of_output, *rest = prices
        of_cached, of_write, of_thoughts = (*rest, *(of_input, of_input, of_output)[len(rest) :])
        thoughts = self.reasoning or 0
        plain = (self.read - self.cached - self.cache_write) * of_input + (self.written - thoughts) * of_output
        return (plain + self.cached * of_cached + self.cache_write * of_write + thoughts * of_thoughts) / 1e6


def _first(details: Any, *names: str) -> int | None:
    """The first of these counts that a server tells: a whole number from 0 on."""
    told = (getattr(details, name, None) for name in names)
    return next((count for count in told if isinstance(count, int) and count >= 0), None)
