"""Verb `validate`. It is to be quick, so nothing that it imports loads a database engine, Redis or a model library."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, console, failing_well, print_json

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings

__all__ = ["Check", "add_validate"]

#: settings -> None, raises ConfigError: what the root knows to check and the router does not (arms, prompts)
Check = Callable[["Settings"], None]


def add_validate(app: typer.Typer, *, check: Check, check_more: Check) -> None:
    """Put `validate` on the command. `check_more`: what no service needs, but a worker or `evaluate` does."""

    @app.command()
    def validate(
        config: ConfigOption = None,
        changed: Annotated[bool, typer.Option("--changed", help="print only what is not the default")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Check the configuration and the packages that it needs; print every setting with its value and its source."""
        from ragbandit.router.config import loading as configuration
        from ragbandit.router.policies.checks import check_policy
        from ragbandit.router.serving.setup.requirements import check_packages, check_weights

        with failing_well():
            loaded = configuration.load(config)
            check(loaded.settings)
            check_more(loaded.settings)
            check_policy(loaded.settings)
            check_packages(loaded.settings)
            check_weights(loaded.settings)
            rows = [row for row in configuration.effective(loaded) if not changed or row[2] != "default"]
            if as_json:
                print_json([{"key": key, "value": value, "source": source} for key, value, source in rows])
            else:
                _print_settings(rows)


def _print_settings(rows: Sequence[tuple[str, object, str]]) -> None:
    """One line per setting, never cut: key, value as JSON, source."""
    shown = [(key, json.dumps(value, ensure_ascii=False), source) for key, value, source in rows]
    width = max((len(key) for key, _, _ in shown), default=0)
    for key, value, source in shown:
        console.print(escape(f"{key:<{width}}  {value}  ({source})"), soft_wrap=True, highlight=False)
    if not shown:
        console.print("every setting is the default")
