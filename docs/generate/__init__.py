"""Reference pages, written from the code: settings, endpoints, commands, alerts, and the comments of config.yaml."""

from pathlib import Path
from typing import Final

from docs.generate.alerts import alerts_page
from docs.generate.command import command_page
from docs.generate.config_file import FILE, config_file
from docs.generate.configuration import configuration_page
from docs.generate.endpoints import endpoints_page

__all__ = ["DOCS", "pages"]

DOCS: Final = Path(__file__).parents[1]


def pages() -> dict[Path, str]:
    """Map each generated page to its text."""
    return {
        DOCS / "alerts.md": alerts_page(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "command.md": command_page(),
        DOCS / "endpoints.md": endpoints_page(),
        FILE: config_file(),
    }
