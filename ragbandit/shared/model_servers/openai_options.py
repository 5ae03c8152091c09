"""Options of the generator "openai"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config

from ragbandit.shared.model_servers.model_replies import MAX_MEDIA

# Each field is strict. Pydantic would not convert a mapping to a dataclass that is strict as a whole.
_Flag = Annotated[bool, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True, gt=0)]
_Dollars = Annotated[float, Field(strict=True, ge=0)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAiOptions:
    """Options of the generator "openai" for its OpenAI-compatible server."""

    #: address of the server; by default $OPENAI_BASE_URL, else OpenAI. A query (?api-version=...) is sent every time
    base_url: str | None = None
    #: environment variable with the API key. If the variable is not set, your own server gets the key "none"
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    #: headers sent with every request
    headers: Mapping[str, str] = field(default_factory=dict)
    #: whether replies are requested as event streams. Otherwise an answer that is not complete at the deadline is lost,
    #: and one that takes longer than read_s. "caller": only if the caller reads the answer in pieces; other chats then
    #: take less processor time. "auto": like "caller" for a chat that is passed on if no other arm can answer it and
    #: the time left is at most read_s
    stream: _Flag | Literal["auto", "caller"] = "auto"
    #: place of the given beginning of an answer. "user": at the end of the user's message, with a request to continue.
    #: If the answer repeats the beginning, the repetition is removed. "assistant": in a last assistant message, for
    #: servers that continue such a message. "continue": like "assistant", with two fields that vLLM and others need
    prefix: Literal["user", "assistant", "continue"] = "user"
    #: the server's name for the limit of completion tokens; newer models of OpenAI accept only max_completion_tokens
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: seed of all greedy requests, for servers that sample reproducibly; null if no seed should be sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: fields added to every request, or replacing its own; null removes a field, for example {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: names of the request fields that arms of the class `model` pass to the server, besides messages and limits of
    #: tokens; null: all fields except the service's own
    passed: Sequence[str] | None = None
    #: longest images, audio and video of a chat's reply, characters of base64. A larger reply fails
    media_chars: Annotated[int, Field(strict=True, ge=0, le=MAX_MEDIA)] = MAX_MEDIA
    #: whether the server returns log-probabilities
    logprobs: _Flag = False
    #: longest silence within a reply, seconds
    read_s: _Seconds = 60.0
    #: longest silence before the first piece of an answer, seconds. After it the arm fails without another attempt. The
    #: default is half of the question's time if another arm can answer and the reply is streamed; otherwise only read_s
    #: limits the silence
    first_piece_s: _Seconds | None = None
    #: maximum number of further attempts. A request is repeated if there is no connection, and after status 408, 409,
    #: 424, 425, 429, 498, 499 or 5xx; never if another arm can answer (server.failover)
    retries: Annotated[int, Field(strict=True, ge=0, le=20)] = 4
    #: maximum number of simultaneous requests per worker
    concurrency: Annotated[int, Field(strict=True, ge=1)] = 16
    #: model -> dollars per million tokens, [input, output] or [input, output, cached_input, cache_write, reasoning].
    #: These prices are for other models with which the server may answer, and for the configured model if
    #: `generator.token_prices` is not set. Calls of models without prices cost nothing
    token_prices: Mapping[str, Annotated[Sequence[_Dollars], Field(min_length=2, max_length=5)]] = field(
        default_factory=dict
    )
    #: maximum number of tokens that the server's chat template adds
    template_tokens: Annotated[int, Field(strict=True, ge=0)] = 64
    #: bytes of text that count as one token. At 1.0 no byte-level tokenizer makes more tokens than are counted. 3.0
    #: fits English text, but may count too few tokens
    bytes_per_token: Annotated[float, Field(strict=True, ge=1)] = 1.0
