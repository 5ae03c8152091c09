"""Registry of importers: from settings to a source that can be read."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ragbandit.router.config.importers import ImporterSettings, ImportersSettings
from ragbandit.router.importers.langfuse import Langfuse
from ragbandit.router.importers.langsmith import LangSmith
from ragbandit.router.importers.open_webui import OpenWebUi
from ragbandit.router.importers.phoenix import Phoenix
from ragbandit.router.importers.source import FeedbackSystem
from ragbandit.router.storage.decisions.links import links_between
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.formats import known_choices

#: names of the importers, which are also their sections in the settings
IMPORTERS: Final[Mapping[str, Callable[..., FeedbackSystem]]] = {
    one.name: one for one in (OpenWebUi, Langfuse, LangSmith, Phoenix)
}


def make_source(
    name: str, *, settings: ImportersSettings, database: Database, ending: threading.Event
) -> FeedbackSystem:
    """The source of this name. Raises InvalidInput for an unknown one, ConfigError without an address or a key."""
    if name not in IMPORTERS:
        raise InvalidInput(f"unknown source {name!r:.80}", field="source", remedy=known_choices(IMPORTERS, given=name))
    section: ImporterSettings = getattr(settings, name)
    if section.url is None:
        raise ConfigError(
            f"no address of {name} is configured",
            field=f"importers.{name}.url",
            remedy=f"set importers.{name}.url; docs/integrations/feedback-importers.md says what else",
        )
    make = IMPORTERS[name]
    if name == Phoenix.name:
        make = partial(make, spans=partial(_spans, database))
    return make(section, ending=ending)


def _spans(
    database: Database, since: float, until: float, after: tuple[float, str] | None, limit: int
) -> list[tuple[str, float, str]]:
    with database.read() as connection:
        return links_between(connection, "span", since=since, until=until, after=after, limit=limit)
