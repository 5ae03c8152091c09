"""Options of generators that the settings and the generator share: defined here once, with ranges and defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config

# Strict field by field: a dataclass that is strict as a whole is not read from a mapping.
_Flag = Annotated[bool, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True, gt=0)]
_Dollars = Annotated[float, Field(strict=True, ge=0)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAiOptions:
    """The OpenAI-compatible server of the generator "openai"."""

    #: None: OPENAI_BASE_URL or OpenAI's own
    base_url: str | None = None
    #: the environment variable that holds the key; servers of your own that want none get "none"
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    #: sent with every request
    headers: Mapping[str, str] = field(default_factory=dict)
    #: ask for the reply as an event stream; false: the answer comes in one piece, and a deadline leaves nothing of it
    stream: _Flag = True
    #: where the first words of an answer go in a chat. "user": the end of the user's turn, with the words to go on from
    #: it; an answer that repeats it loses it. "assistant": a last assistant message, for servers that go on from it by
    #: themselves. "continue": the same, with the two fields by which vLLM and its kin are told to
    prefix: Literal["user", "assistant", "continue"] = "user"
    #: how the server calls the limit of tokens to write; newer models of OpenAI take the second name only
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: sent with every greedy request, for servers that sample reproducibly; None: none is sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: put into every request last; null takes a field out, for example {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: the server tells log-probabilities
    logprobs: _Flag = False
    #: longest silence within a reply
    read_s: _Seconds = 60.0
    #: attempts after the first, by the openai package: where there is no connection, or status 408, 409, 429 or 5xx
    retries: Annotated[int, Field(strict=True, ge=0, le=20)] = 4
    #: requests under way at once, per worker
    concurrency: Annotated[int, Field(strict=True, ge=1)] = 16
    #: model -> dollars per million tokens, [input, output] or [input, output, cached_input, cache_write, reasoning]: of
    #: other models that the server answers with, and, without `generator.token_prices`, of the model itself; empty:
    #: calls cost nothing
    token_prices: Mapping[str, Annotated[Sequence[_Dollars], Field(min_length=2, max_length=5)]] = field(
        default_factory=dict
    )
    #: tokens that the server's chat template adds at most
    template_tokens: Annotated[int, Field(strict=True, ge=0)] = 64
    #: bytes of text that count as one token; 1.0 bounds every byte-level tokenizer, 3.0 suits English text and bounds
    #: nothing
    bytes_per_token: Annotated[float, Field(strict=True, ge=1)] = 1.0
