"""A verb of the command: prints which arms are configured."""

import typer

from ragbandit.router.cli.options import ConfigOption
from ragbandit.router.config.loading import load


def own_verb(config: ConfigOption = None) -> None:
    """Print the names of all arms."""
    typer.echo(" ".join(load(config).settings.arms))
