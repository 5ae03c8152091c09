"""Options of generators that call servers."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Required
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.model_servers import Kind
from ragbandit.shared.model_servers.outbound import check_address, check_header_value
from ragbandit.shared.model_servers.token_usage import HOURS, PRICES, zone_of
from ragbandit.shared.plugins import check_values
from ragbandit.shared.texts.redaction import variable_or_hidden
from ragbandit.shared.types import MAX_MEDIA

# Each field is strict. Pydantic would not convert a mapping to a dataclass that is strict as a whole.
_Flag = Annotated[bool, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True, gt=0)]
_Dollars = Annotated[float, Field(strict=True, ge=0)]


def _known_zone(name: str) -> str:
    with suppress(ValueError, LookupError, OSError):
        zone_of(name)
        return name
    raise ValueError(f"this machine has no time zone {name!r:.60}; give one such as UTC or Asia/Shanghai")


def _known_hours(hours: str) -> str:
    if all(HOURS.fullmatch(part.strip()) for part in hours.split(",")):
        return hours
    raise ValueError("give hours such as 16:30-00:30, or several with commas between them")


def reached_rows(rows: Sequence[Any]) -> Sequence[Any]:
    """Raises ValueError if a row of a list of prices has no condition, or if its calls all meet a later row."""
    hours = [row.get("hours") and (row["hours"], row.get("zone", "UTC")) for row in rows]
    for place, row in enumerate(rows):
        if not row.keys() & {"above", "tier", "hours"}:
            raise ValueError("a row needs a condition: above, tier or hours")
        for number, later in enumerate(rows[place + 1 :], place + 1):
            covers = later.get("tier", "").lower() in ("", row.get("tier", "").lower())
            covers = covers and hours[number] in (None, hours[place])
            if covers and later.get("above", 0) <= row.get("above", 0):
                raise ValueError(f"row {place + 1} is never used: the last row that a call meets counts")
    return rows


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
class PriceRow(TypedDict, total=False):
    """Prices of the calls that meet the row's conditions: `above`, `tier` and `hours` (docs/price.md)."""

    input: Required[_Dollars]
    output: Required[_Dollars]
    cached_input: _Dollars
    cache_write: _Dollars
    reasoning: _Dollars
    cache_write_hour: _Dollars
    above: Annotated[int, Field(strict=True, ge=1)]
    tier: Annotated[str, Field(strict=True, min_length=1, max_length=40)]
    hours: Annotated[str, AfterValidator(_known_hours)]
    zone: Annotated[str, AfterValidator(_known_zone)]


_Prices = Annotated[Sequence[_Dollars], Field(min_length=2, max_length=len(PRICES))]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAiOptions:
    """Options of the generator "openai" for its OpenAI-compatible server."""

    provider: ClassVar[str] = "openai"
    vendor: ClassVar[str] = "OpenAI"
    base_url_env: ClassVar[str] = "OPENAI_BASE_URL"
    #: packages that the generator imports
    packages: ClassVar[tuple[str, ...]] = ("openai", "aiohttp")
    #: headers in which the server gets the key, in lower case
    key_headers: ClassVar[tuple[str, ...]] = ("authorization",)

    #: address of the server; by default $OPENAI_BASE_URL, else OpenAI. A query (?api-version=...) is sent every time
    base_url: str | None = None
    #: environment variable with the API key. If the variable is not set, your own server gets the key "none"
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    #: endpoint of the server. "chat": /v1/chat/completions. "completions": /v1/completions, for models without a chat
    #: template, such as gpt-3.5-turbo-instruct and base models in vLLM; instructions, conversation, question and the
    #: given beginning of the answer are then one text, and arms of the class `model` read chats as text, without tools
    api: Literal["chat", "completions"] = "chat"
    #: kind of the server, which decides how a chat is fitted to it: roles, ids of calls, names and schemas of tools,
    #: blank texts, refused parameters. "template": a server with a model's chat template, such as vLLM and llama.cpp.
    #: null: recognised by the address, and by the model's name
    kind: Kind | None = None
    #: headers sent with every request. traceparent is sent with the trace of the call, whatever value is given
    headers: Mapping[str, str] = field(default_factory=dict)
    #: whether replies are requested as event streams. Otherwise an answer that is not complete at the deadline is lost,
    #: and one that takes longer than read_s. "caller": only if the caller reads the answer in pieces; other chats then
    #: take less processor time. "auto": like "caller" for a chat that is passed on if no other arm can answer it and
    #: the time left is at most read_s
    stream: _Flag | Literal["auto", "caller"] = "auto"
    #: chats: place of the given beginning of an answer. "user": at the end of the user's message, with a request to
    #: continue. If the answer repeats the beginning, the repetition is removed. "assistant": in a last assistant
    #: message, for servers that continue such a message. "continue": like "assistant", with two fields that vLLM and
    #: others need
    prefix: Literal["user", "assistant", "continue"] = "user"
    #: the server's name for the limit of completion tokens; newer models of OpenAI accept only max_completion_tokens
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: seed of all greedy requests, for servers that sample reproducibly; null if no seed should be sent
    seed: Annotated[int, Field(strict=True)] | None = None
    #: fields that are added to every request, or replace its fields; null removes a field, as in {"temperature": null}
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: names of the request fields that arms of the class `model` pass to the server, besides messages, limits of
    #: tokens and an arm's own effort; null: all fields except the service's own
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
    #: maximum number of further attempts. A request is repeated if the connection fails or is silent before the reply
    #: begins, and after status 408, 409, 424, 425, 429, 498, 499 or 5xx; never if another arm can answer
    retries: Annotated[int, Field(strict=True, ge=0, le=20)] = 4
    #: maximum number of simultaneous requests per worker
    concurrency: Annotated[int, Field(strict=True, ge=1)] = 16
    #: model -> dollars per million tokens, [input, output] or [input, output, cached_input, cache_write, reasoning,
    #: cache_write_hour], of which the last ones may be left out.
    #: These prices are for other models with which the server may answer, and for the configured model if
    #: `generator.token_prices` is not set
    token_prices: Mapping[str, _Prices] = field(default_factory=dict)
    #: maximum number of tokens that the server's chat template adds
    template_tokens: Annotated[int, Field(strict=True, ge=0)] = 64
    #: bytes of text that count as one token. At 1.0 no byte-level tokenizer makes more tokens than are counted. 3.0
    #: fits English text, but may count too few tokens
    bytes_per_token: Annotated[float, Field(strict=True, ge=1)] = 1.0

    @property
    def path(self) -> str:
        """Path of the requests, behind the address of the server."""
        return "/completions" if self.api == "completions" else "/chat/completions"


def base_url_of(options: OpenAiOptions) -> str:
    """The configured address of the server; "" for the provider's own."""
    return options.base_url or os.environ.get(options.base_url_env) or ""


def checked_key(options: OpenAiOptions) -> str | None:
    """The API key; None if the server is not the provider's and the variable is not set. Raises ConfigError."""
    key, where = os.environ.get(options.api_key_env) or None, f"generator.{options.provider}.api_key_env"
    if key is None and not base_url_of(options):
        message = f"{options.vendor} needs a key, and {variable_or_hidden(options.api_key_env)} is not set"
        remedy = f"set that variable, or generator.{options.provider}.base_url for a server of your own"
        raise ConfigError(message, field=where, remedy=remedy)
    if key is not None:
        name, remedy = variable_or_hidden(options.api_key_env), "set that variable to the key and nothing else"
        check_header_value(key, source=name, field=where, remedy=remedy)
    return key


def check_options(options: OpenAiOptions) -> None:
    """Raises ConfigError for options that cannot be used, or if a package is missing."""
    section = f"generator.{options.provider}"
    for package in options.packages:
        required_module(package, extra="openai", field="generator.name")
    values = {option.name: getattr(options, option.name) for option in fields(options)}
    check_values(type(options), given=values, where=section)
    where = options.base_url_env if options.base_url is None else f"{section}.base_url"
    address = os.environ.get(options.base_url_env) if options.base_url is None else options.base_url
    remedy = f"for example http://127.0.0.1:8000/v1, with the key in {variable_or_hidden(options.api_key_env)}"
    if address is not None:
        check_address(address, field=where, remedy=remedy, query=True)
    if options.base_url is not None and "@" in urlsplit(options.base_url).netloc:
        raise ConfigError("the address has a password in it", field=where, remedy=remedy)
    for name, value in options.headers.items():
        if name.lower() in options.key_headers:
            remedy = f"put it into the environment variable {variable_or_hidden(options.api_key_env)}"
            raise ConfigError("the key does not belong in the headers", field=f"{section}.headers", remedy=remedy)
        described, remedy = f"the value of {name}", "give only the value"
        check_header_value(value, source=described, field=f"{section}.headers", remedy=remedy)
