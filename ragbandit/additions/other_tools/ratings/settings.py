"""Settings of lists of ratings in other services."""

import os
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from ragbandit.router.config.finding import Finding
from ragbandit.router.config.named_sections import Name
from ragbandit.router.config.section import Section
from ragbandit.shared.texts.redaction import variable_or_hidden


class RatingsSettings(Section):
    """A list of ratings in another service, which a process that learns fetches as feedback. See docs/logs.md."""

    #: address of the list with its query: feedback of Open WebUI, scores of Langfuse
    url: str
    #: environment variable with the key of the service; PUBLIC_KEY:SECRET_KEY for Langfuse
    key_env: Annotated[str, Field(min_length=1)]
    #: WORST-BEST, the worst and the best rating; -1-1 for thumbs
    scale: str = "0-1"
    #: tenant whose answers are rated; None for all tenants. Then a chat's id that several tenants use names no answer
    tenant: str | None = None
    #: seconds between two fetches
    every_s: Annotated[float, Field(ge=1)] = 60.0


class RatingsSection(Section):
    """The key `ratings` of the top level."""

    #: name -> list of ratings to fetch, as {url: ..., key_env: ..., scale: -1-1}
    ratings: dict[Name, RatingsSettings] = Field(default_factory=dict, max_length=20)

    def findings(self) -> Iterator[Finding]:
        """Yield a warning for each list of ratings whose key is not in the environment."""
        for name, source in self.ratings.items():
            if not os.environ.get(source.key_env):
                variable = variable_or_hidden(source.key_env)
                what = f"the environment variable {variable} is not set: its ratings are not fetched"
                yield Finding("warning", f"ratings.{name}.key_env", what, "set it to the key of that service")
