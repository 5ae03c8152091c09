"""Settings of lists of ratings in other services."""

from typing import Annotated

from pydantic import Field

from ragbandit.router.config.named_sections import Name
from ragbandit.router.config.section import Section


class RatingsSettings(Section):
    """A list of ratings in another service, which a process that learns fetches as feedback. See docs/logs.md."""

    #: address of the list with its query: feedback of Open WebUI, scores of Langfuse
    url: str
    #: environment variable with the key of the service; PUBLIC_KEY:SECRET_KEY for Langfuse
    key_env: Annotated[str, Field(min_length=1)]
    #: WORST-BEST, the worst and the best rating; -1-1 for thumbs
    scale: str = "0-1"
    #: tenant whose questions these ratings are of; None: every tenant, without chats that several tenants have
    tenant: str | None = None
    #: seconds between two fetches
    every_s: Annotated[float, Field(ge=1)] = 60.0


class RatingsSection(Section):
    """The key `ratings` of the top level."""

    #: name -> list of ratings to fetch, as {url: ..., key_env: ..., scale: -1-1}
    ratings: dict[Name, RatingsSettings] = Field(default_factory=dict, max_length=20)
