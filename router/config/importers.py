"""Settings of the importers: feedback that is given in Langfuse, LangSmith, Phoenix or Open WebUI."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from ragbandit.router.config.sections import Seconds, Section, plain_address

#: name of an environment variable
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
#: most score names in one importer
MAX_NAMES: Final = 200


class ScoreMapping(Section):
    """Score of another system as feedback of ours. `name: rating` is short for `name: {kind: rating}`."""

    #: what it is here: a rating, a label (its text is a gold answer), or the event of that name in feedback_events
    kind: Literal["rating", "label", "event"]
    #: of a number: what is worst and what is best, which become 0 and 1; larger and smaller ones are refused
    minimum: float = 0.0
    maximum: float = 1.0
    #: of a text: what each category is worth, in [0, 1]; others are refused
    categories: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    #: who judged, where the other system does not say it: human or code; null: such a score is not taken
    source: Literal["human", "code"] | None = None
    #: name of the event, where kind is event
    event: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ScoreMapping":
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum {self.minimum} is not below maximum {self.maximum}")
        if (self.kind == "event") != (self.event is not None):
            raise ValueError("kind: event and event: NAME go together")
        return self


class ImporterSettings(Section):
    """What every importer has."""

    # Described in Field, where the pages of settings look for what a section inherits.
    url: str | None = Field(
        default=None,
        description="address of the other system, without user and password; null: nothing is imported from it",
    )
    names: dict[str, ScoreMapping] = Field(
        default_factory=dict,
        description="score name there -> what it is here: rating, label or event, or {kind, minimum, maximum, "
        "categories, source, event}; other names are counted and not taken. docs/integrations/feedback-importers.md",
    )
    tenant: str | None = Field(
        default=None, description="only decisions of this tenant are judged by it; null: of every tenant"
    )
    lookback_s: Seconds = Field(
        default=900.0,
        description="each import also reads again what is that many seconds older than the last one, and "
        "learning.wait_s if that is more: what is shown late there, and what was edited",
    )
    timeout_s: Seconds = Field(default=30.0, description="longest wait for the next bytes of a reply, seconds")

    @property
    def known_names(self) -> Mapping[str, ScoreMapping]:
        """The names that are taken."""
        return self.names

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str | None) -> str | None:
        return None if url is None else plain_address(url)

    @field_validator("names", mode="before")
    @classmethod
    def _short(cls, names: object) -> object:
        if not isinstance(names, dict):
            return names
        return {name: {"kind": each} if isinstance(each, str) else each for name, each in names.items()}

    @field_validator("names")
    @classmethod
    def _bounded(cls, names: dict[str, ScoreMapping]) -> dict[str, ScoreMapping]:
        if len(names) > MAX_NAMES:
            raise ValueError(f"{len(names)} names; map at most {MAX_NAMES}")
        return names


class LangfuseSettings(ImporterSettings):
    """Scores of a Langfuse project; joined by the links `trace` and `span`."""

    #: environment variable that holds the project's public key
    public_key_env: Variable = "LANGFUSE_PUBLIC_KEY"
    #: environment variable that holds the project's secret key
    secret_key_env: Variable = "LANGFUSE_SECRET_KEY"  # noqa: S105 - a name


class LangSmithSettings(ImporterSettings):
    """Feedback of LangSmith, on runs whose id is a decision's, or that are linked as `run` or `trace`."""

    #: environment variable that holds the API key
    key_env: Variable = "LANGSMITH_API_KEY"
    #: id of the one project to read; null: of all projects of the key
    project: str | None = None


class PhoenixSettings(ImporterSettings):
    """Span annotations of Phoenix, on spans that are linked as `span`."""

    #: environment variable that holds the API key; null: the server asks for none
    key_env: Variable | None = "PHOENIX_API_KEY"
    #: name or id of the project
    project: str = "default"
    lookback_s: Seconds = Field(
        default=86_400.0,
        description="the spans of decisions made in that many seconds are looked up by each import, 100 in one call",
    )


class OpenWebUiSettings(ImporterSettings):
    """Ratings of Open WebUI, on messages that are linked as `openwebui_message`; `rating` need not be named."""

    #: environment variable that holds the API key of an administrator
    key_env: Variable = "OPENWEBUI_API_KEY"

    @property
    def known_names(self) -> Mapping[str, ScoreMapping]:
        """As configured, and the rating of a message, which is 1 or -1."""
        return {"rating": ScoreMapping(kind="rating", minimum=-1.0), **self.names}


class ImportersSettings(Section):
    """Feedback from other systems; see `ragbandit feedback import`."""

    langfuse: LangfuseSettings = LangfuseSettings()
    langsmith: LangSmithSettings = LangSmithSettings()
    phoenix: PhoenixSettings = PhoenixSettings()
    openwebui: OpenWebUiSettings = OpenWebUiSettings()

    @property
    def know_traces(self) -> bool:
        """Whether one of them joins by trace or span, so that it is worth linking decisions to both."""
        return any(each.url is not None for each in (self.langfuse, self.langsmith, self.phoenix))
