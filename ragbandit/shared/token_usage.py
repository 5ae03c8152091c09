"""Tokens that a call used, by the names of each server, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: most tokens of one call that are believed; a larger count is unknown
MAX_TOKENS: Final = 10_000_000

# Names of a count, the first that a server sends counts; "a.b" is a field of an object. In their order: OpenAI and
# its kin, OpenAI's Responses and Anthropic, Gemini (two spellings), Bedrock, Cohere (two objects), Ollama, llama.cpp.
_READ: Final = (
    *("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count", "inputTokens"),
    *("tokens.input_tokens", "billed_units.input_tokens", "prompt_eval_count", "prompt_n"),
)
_WRITTEN: Final = (
    *("completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count", "outputTokens"),
    *("tokens.output_tokens", "billed_units.output_tokens", "eval_count", "predicted_n"),
)
_TOTAL: Final = ("total_tokens", "totalTokenCount", "total_token_count", "totalTokens")
#: parts of the tokens read: out of the provider's cache (OpenAI, DeepSeek, Gemini, Moonshot, Mistral), and into it
_CACHED: Final = (
    *("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "prompt_cache_hit_tokens"),
    *("cachedContentTokenCount", "cached_content_token_count", "cached_tokens", "num_cached_tokens"),
)
_CACHE_WRITE: Final = tuple(
    f"{side}_tokens_details.{name}_tokens" for side in ("prompt", "input") for name in ("cache_write", "cache_creation")
)
#: the same by Anthropic, Bedrock and llama.cpp, whose `_PLAIN_READ` has neither; in a proxy's `prompt_tokens` both are
_CACHED_APART: Final = ("cache_read_input_tokens", "cacheReadInputTokens", "cache_n")
_CACHE_WRITE_APART: Final = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_PLAIN_READ: Final = ("input_tokens", "inputTokens", "prompt_n")
#: a reasoning model's thoughts: parts of the tokens written; of Gemini in addition to them
_THOUGHTS: Final = (
    *("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens", "reasoning_tokens"),
)
_THOUGHTS_APART: Final = ("thoughtsTokenCount", "thoughts_token_count")
#: objects of a reply that have counts; Ollama's stand in the reply itself
_OBJECTS: Final = ("usage", "usageMetadata", "usage_metadata", "timings")
_BARE: Final = ("prompt_eval_count", "eval_count")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens of a call: prompt and completion, and the parts of them that a server reports."""

    read: int
    written: int
    #: parts of the tokens read: out of the provider's cache of prompts, and written into it
    cached: int = 0
    cache_write: int = 0
    #: part of the tokens written: a reasoning model's thoughts; None if the server does not report them
    reasoning: int | None = None
    #: True if the server did not report the tokens read or written
    estimated: bool = False

    def dollars(self, prices: Sequence[float]) -> float:
        """What they cost. prices: dollars per million, input, output, then cached_input, cache_write and reasoning.

        One that is missing is that of input, or of output.
        """
        of_input, of_output, *rest = prices
        of_cached, of_write, of_thoughts = (*rest, *(of_input, of_input, of_output)[len(rest) :])
        thoughts = self.reasoning or 0
        plain = (self.read - self.cached - self.cache_write) * of_input + (self.written - thoughts) * of_output
        return (plain + self.cached * of_cached + self.cache_write * of_write + thoughts * of_thoughts) / 1e6


def add_usage(known: dict[str, Any], reply: Mapping[str, Any]) -> None:
    """Add the counts of a chunk or a whole reply to those of earlier chunks; null and 0 replace no count."""
    groq = reply.get("x_groq")
    for source in (*map(reply.get, _OBJECTS), groq.get("usage") if isinstance(groq, Mapping) else None):
        if isinstance(source, Mapping):
            _merge(known, source)
    if _BARE[0] in reply or _BARE[1] in reply:
        _merge(known, {name: reply.get(name) for name in _BARE})


def _merge(known: dict[str, Any], counts: Mapping[str, Any]) -> None:
    for name, value in counts.items():
        if isinstance(value, Mapping):
            inner = known.setdefault(name, {})
            if isinstance(inner, dict):
                inner |= {each: count for each, count in value.items() if count or each not in inner}
        elif count_of(value) or name not in known:
            known[name] = value


def count_of(value: Any) -> int | None:
    """A count, also as a float or text; None if it cannot be a count, is negative or too large."""
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return None
    return int(value) if value == int(value) else None


def _first(usage: Mapping[str, Any], names: Sequence[str]) -> tuple[str, int | None]:
    """(the first of these names that has a count, its count); ("", None) if there is none."""
    for name in names:
        outer, _, inner = name.partition(".")
        value = usage.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if (count := count_of(value)) is not None:
            return name, count
    return "", None


def tokens_of(usage: Mapping[str, Any], *, read: int | None = None, written: int | None = None) -> Tokens | None:
    """The tokens that `usage` reports; None if it lacks a count for which there is no estimate.

    read, written: estimates. What a server counts apart belongs to the tokens read or written all the same, and is
    paid: caches by Anthropic's names, thoughts by Gemini's, and whatever makes the total larger than the sum of both.
    """
    name, told_read = _first(usage, _READ)
    told_written, total = _first(usage, _WRITTEN)[1], _first(usage, _TOTAL)[1]
    cached, kept = _first(usage, _CACHED)[1] or 0, _first(usage, _CACHE_WRITE)[1] or 0
    apart = _first(usage, _CACHED_APART)[1] or 0, _first(usage, _CACHE_WRITE_APART)[1] or 0
    thoughts, thoughts_apart = _first(usage, _THOUGHTS)[1], _first(usage, _THOUGHTS_APART)[1]
    if told_read is None and (missed := count_of(usage.get("prompt_cache_miss_tokens"))) is not None:
        told_read = cached + missed
    if told_read is not None and not cached and (name in _PLAIN_READ or sum(apart) > told_read):
        told_read += sum(apart)
    if told_written is not None and (thoughts_apart or (thoughts or 0) > told_written):
        told_written += thoughts_apart or thoughts or 0
    if total and told_read and (told_written is None or total - told_read > told_written):
        told_written = max(0, total - told_read)
    if total and not told_read and told_written:
        told_read = total - told_written
    estimated = not (told_read and told_read > 0) or told_written is None
    if estimated:  # no call reads nothing: a server that says 0 does not count
        told_read = told_read if told_read and told_read > 0 else read
        told_written = told_written or written
    if told_read is None or told_written is None:
        return None
    cached = min(cached or apart[0], told_read)
    thoughts = thoughts if thoughts_apart is None else thoughts_apart
    return Tokens(
        read=told_read,
        written=told_written,
        cached=cached,
        cache_write=min(kept or apart[1], told_read - cached),
        reasoning=None if thoughts is None else min(thoughts, told_written),
        estimated=estimated,
    )
