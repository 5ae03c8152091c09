"""Settings of the generator "anthropic"."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, with_config

from ragbandit.router.config.section import Section
from ragbandit.shared.model_servers.openai_options import OpenAiOptions


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, kw_only=True, slots=True)
class AnthropicOptions(OpenAiOptions):
    """Options of the generator "anthropic" for its server of Anthropic's Messages."""

    provider: ClassVar[str] = "anthropic"
    vendor: ClassVar[str] = "Anthropic"
    packages: ClassVar[tuple[str, ...]] = ("aiohttp",)
    key_headers: ClassVar[tuple[str, ...]] = ("authorization", "x-api-key")
    base_url_env: ClassVar[str] = "ANTHROPIC_BASE_URL"

    #: endpoint of the server that is called: "chat" is /v1/messages
    api: Literal["chat"] = "chat"
    #: kind of the server, which decides how a request is fitted to it; null is "anthropic"
    kind: Literal["anthropic"] | None = None
    #: environment variable with the API key. If the variable is not set, your own server gets the key "none"
    api_key_env: Annotated[str, Field(min_length=1)] = "ANTHROPIC_API_KEY"
    #: limit of an answer's tokens if a request has none, since Anthropic requires a limit
    max_tokens: Annotated[int, Field(strict=True, ge=1)] = 8192


class AnthropicSection(Section):
    """Settings that the generator "anthropic" adds to the section `generator`."""

    anthropic: AnthropicOptions = AnthropicOptions()
