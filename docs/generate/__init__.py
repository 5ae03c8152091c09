"""Reference pages, written from the code: settings, HTTP, command line, alerts, tables."""

from pathlib import Path
from typing import Final

from docs.generate.alerts import alerts_page
from docs.generate.command import command_page
from docs.generate.configuration import configuration_page
from docs.generate.features import architecture_page
from docs.generate.http import http_page
from docs.generate.schema import schema_page

__all__ = ["DOCS", "pages"]

DOCS: Final = Path(__file__).parents[1]


def pages() -> dict[Path, str]:
    """File -> what it has to hold."""
    return {
        DOCS / "alerts.md": alerts_page(),
        DOCS / "architecture.md": architecture_page(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "http.md": http_page(),
        DOCS / "command.md": command_page(),
        DOCS / "schema.md": schema_page(),
    }
