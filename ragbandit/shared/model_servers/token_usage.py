"""Token counts of a call, read under the names that different servers use, and their price."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, Literal

#: largest plausible count of one call. Larger counts are ignored
MAX_TOKENS: Final = 10_000_000
#: names of the prices in a list of prices, in their order
PRICES: Final = ("input", "output", "cached_input", "cache_write", "reasoning", "cache_write_hour")
#: hours of a row of a list, such as "16:30-00:30"
HOURS: Final = re.compile(r"((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d|24:00)")
#: which price of a call counts if there are two: the one that the server reports, or the listed one
Preference = Literal["told", "listed"]
CHARACTERS: Final = 4  #: characters of JSON in English per token, with a usual tokenizer
#: name of the limit of tokens in OpenAI's Responses. For the name in chats see `OpenAiOptions.max_tokens_field`
OUTPUT_LIMIT: Final = "max_output_tokens"
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", OUTPUT_LIMIT)

#: name of a count here -> its names at different servers. "a.b" is field b of the object a
_NAMES: Final = {
    # OpenAI, Bedrock, Gemini (two spellings), Cohere (two objects), Ollama, llama.cpp. "thoughts" is part of "written".
    "read": "prompt_tokens promptTokenCount prompt_token_count tokens.input_tokens billed_units.input_tokens "
    "prompt_eval_count",
    "written": "completion_tokens output_tokens candidatesTokenCount candidates_token_count outputTokens "
    "tokens.output_tokens billed_units.output_tokens eval_count predicted_n",
    "total": "total_tokens totalTokenCount total_token_count totalTokens",
    "thoughts": "completion_tokens_details.reasoning_tokens output_tokens_details.reasoning_tokens reasoning_tokens",
    # Parts of the prompt's tokens: taken from the provider's cache, added to that cache, and not in it (DeepSeek).
    "cached": "prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens prompt_cache_hit_tokens "
    "cachedContentTokenCount cached_content_token_count cached_tokens num_cached_tokens",
    "cache_write": "prompt_tokens_details.cache_write_tokens prompt_tokens_details.cache_creation_tokens "
    "input_tokens_details.cache_write_tokens input_tokens_details.cache_creation_tokens "
    "prompt_tokens_details.cache_creation_input_tokens cache_creation.cache_creation_input_tokens",
    "missed": "prompt_cache_miss_tokens",
    # Prompt tokens. Anthropic, Bedrock and llama.cpp exclude the tokens of the cache, OpenAI's Responses include them.
    "read_plain": "input_tokens inputTokens prompt_n",
    "cached_apart": "cache_read_input_tokens cacheReadInputTokens cache_n",
    "cache_write_apart": "cache_creation_input_tokens cacheWriteInputTokens",
    # Anthropic, and LiteLLM: the part of these writes that is kept for an hour.
    "cache_write_hour": "cache_creation.ephemeral_1h_input_tokens "
    "cache_creation_token_details.ephemeral_1h_input_tokens",
    # Gemini: reasoning tokens that "written" does not include.
    "thoughts_apart": "thoughtsTokenCount thoughts_token_count",
}
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_MOST_OUTER: Final = 2  #: objects around a count, within an object that contains counts
#: objects in a reply that contain counts
_OBJECTS: Final = ("timings", "usage", "usageMetadata", "usage_metadata")
#: fields without one of which a reply has no counts
_PLACES: Final = frozenset({*_OBJECTS, "x_groq", "eval_count", "prompt_eval_count"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Token counts of a call."""

    #: prompt tokens
    read: int
    #: completion tokens
    written: int
    #: prompt tokens read from the provider's cache; included in `read`
    cached: int = 0
    #: prompt tokens written to the provider's cache; included in `read`
    cache_write: int = 0
    #: tokens of `cache_write` that the provider keeps for an hour
    cache_write_hour: int = 0
    #: reasoning tokens, included in `written`; None if the server does not report them
    reasoning: int | None = None
    #: whether `read` or `written` is an estimate
    estimated: bool = False

    def dollars(self, prices: Sequence[Any], *, calls: int = 1, tier: str = "", end: float | None = None) -> float:
        """Price of these tokens.

        prices: dollars per million tokens, in the order of PRICES. The last four may be missing. Then cached_input and
            cache_write cost as much as input, reasoning as much as output, and cache_write_hour twice as much as input,
            as at Anthropic. Then optional rows, mappings with other prices under conditions: see `met_row`
        calls: number of calls that used the tokens; a row's condition on the prompt is tested with their mean prompt
        tier, end: see `met_row`
        """
        row = met_row(prices, prompt=self.read / max(calls, 1), tier=tier, end=end)
        named = row or dict(zip(PRICES, (one for one in prices if isinstance(one, int | float)), strict=False))
        of_input, of_output = named["input"], named["output"]
        defaults = of_input, of_output, of_input, of_input, of_output, 2.0 * of_input
        of_cached, of_write, of_thoughts, of_hour = map(named.get, PRICES[2:], defaults[2:])
        thoughts, hour = self.reasoning or 0, self.cache_write_hour
        plain = (self.read - self.cached - self.cache_write) * of_input + (self.written - thoughts) * of_output
        writes = (self.cache_write - hour) * of_write + hour * of_hour
        return float(plain + self.cached * of_cached + writes + thoughts * of_thoughts) / 1e6


def met_row(prices: Sequence[Any], *, prompt: float, tier: str, end: float | None) -> Mapping[str, Any] | None:
    """The last row of a list of prices whose conditions a call meets, see `PriceRow`; None if there is no such row.

    prompt: tokens of the call's prompt. tier: tier of service, in small letters. end: end of the call, seconds
    since 1970; if it is None, the conditions of rows with hours are not met
    """
    for row in reversed(prices):
        if isinstance(row, int | float):
            break
        if prompt > row.get("above", -1) and row.get("tier", tier).lower() == tier and _is_within(row, ended=end):
            return row  # type: ignore[no-any-return] # a row of settings, or of a stored correction
    return None


def _is_within(row: Mapping[str, Any], *, ended: float | None) -> bool:
    if ended is None or "hours" not in row:
        return "hours" not in row
    now = f"{datetime.fromtimestamp(ended, zone_of(row.get('zone', 'UTC'))):%H:%M}"
    return any(
        start <= now < end or (end <= start and not end <= now < start) for start, end in HOURS.findall(row["hours"])
    )


def zone_of(name: str) -> tzinfo:
    """The time zone of a name such as Asia/Shanghai. Raises ValueError, KeyError or OSError for another name."""
    from zoneinfo import ZoneInfo  # only rows with hours need it

    return UTC if name == "UTC" else ZoneInfo(name)


#: the call by whose price lists of prices are compared
USUAL_CALL: Final = Tokens(read=2000, written=1000)


def add_usage(known: dict[str, int], reply: Mapping[str, Any]) -> None:
    """Update `known` with the counts in a reply, or in a chunk of one. Null and 0 do not replace a known count."""
    if _PLACES.isdisjoint(reply):
        return
    groq = reply.get("x_groq")
    ollama = reply if "eval_count" in reply or "prompt_eval_count" in reply else None
    for source in (*map(reply.get, _OBJECTS), groq.get("usage") if isinstance(groq, dict) else None, ollama):
        if isinstance(source, dict):
            _add_counts(known, source)


def _add_counts(known: dict[str, int], source: Mapping[str, Any], *, outer: str = "", depth: int = 0) -> None:
    for name, value in source.items():
        kind = _KINDS.get(outer + name)
        if kind is not None:
            count = count_of(value)
            if count or (count == 0 and kind not in known):
                known[kind] = count
        elif isinstance(value, dict) and depth < _MOST_OUTER:
            _add_counts(known, value, outer=f"{name}.", depth=depth + 1)


def count_of(value: Any) -> int | None:
    """Parse a count, which may be a float or text; None if the number is not whole, negative or above MAX_TOKENS."""
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return None
    return int(value) if value == int(value) else None


def tokens_of(counts: Mapping[str, int], *, read: int | None = None, written: int | None = None) -> Tokens | None:
    """Combine counts to Tokens; None if a count is missing and has no estimate. read, written: estimates."""
    cached = counts.get("cached", 0)
    cached_apart = counts.get("cached_apart", 0)
    apart_sum = cached_apart + counts.get("cache_write_apart", 0)
    tokens_read, tokens_written, total = (counts.get(name) for name in ("read", "written", "total"))
    total_read = (total or 0) - (tokens_written or 0)
    if tokens_read is None and "read_plain" in counts:
        tokens_read = counts["read_plain"] + (0 if cached else apart_sum)
    elif tokens_read is None and "missed" in counts:
        tokens_read = counts["missed"] + cached
    elif tokens_read is not None and not cached and (apart_sum > tokens_read or tokens_read + apart_sum == total_read):
        tokens_read += apart_sum  # a proxy sent a count without the cache under OpenAI's name
    thoughts = counts.get("thoughts_apart", counts.get("thoughts"))
    if total and tokens_read and total - tokens_read >= (tokens_written or 0):
        tokens_written = total - tokens_read  # the total shows whether `written` includes thoughts
    elif tokens_written is not None and thoughts and ("thoughts_apart" in counts or thoughts > tokens_written):
        tokens_written += thoughts
    if total and tokens_written and not tokens_read:
        tokens_read = total - tokens_written
    # A call has at least one prompt token: a server that reports 0 does not count tokens.
    estimated = tokens_read is None or tokens_read <= 0 or tokens_written is None
    if estimated:
        tokens_read = tokens_read if tokens_read and tokens_read > 0 else read
        tokens_written = tokens_written or written
    if tokens_read is None or tokens_written is None:
        return None
    cached = min(cached or cached_apart, tokens_read)
    cache_write = min(counts.get("cache_write") or counts.get("cache_write_apart", 0), tokens_read - cached)
    return Tokens(
        read=tokens_read,
        written=tokens_written,
        cached=cached,
        cache_write=cache_write,
        cache_write_hour=min(counts.get("cache_write_hour", 0), cache_write),
        reasoning=None if thoughts is None else min(thoughts, tokens_written),
        estimated=estimated,
    )


def used_tokens(counts: Mapping[str, int], *, estimates: Callable[[], tuple[int, int]]) -> Tokens:
    """The reported tokens, with estimates of unreported counts.

    estimates: called only if a count is missing; returns (prompt tokens, completion tokens)
    """
    reported = tokens_of(counts)
    if reported is not None:
        return reported
    read, written = estimates()
    return tokens_of(counts, read=read, written=written) or Tokens(read=read, written=written, estimated=True)
