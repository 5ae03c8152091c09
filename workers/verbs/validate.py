"""Verb `validate`. It is to be quick, so nothing that it imports loads a database engine, Redis or a model library."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, console, print_json
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import budget_warnings, in_words
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.setup.requirements import check_packages, check_weights
from ragbandit.workers.judge.checks import check_judge
from ragbandit.workers.webhooks.secrets import check_webhooks
from ragbandit.workers.wiring.arms import check_arms
from ragbandit.workers.wiring.generators import check_generator


def validate(
    config: ConfigOption = None,
    changed: Annotated[bool, typer.Option("--changed", help="print only what is not the default")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration and the packages that it needs; print every setting with its value and its source.

    Below them: what reward.weight means in words, and what the labels in the store say of it, if there is a store.
    """
    loaded = configuration.load(config)
    check_arms(loaded.settings)
    check_generator(loaded.settings, fetch=False)
    check_judge(loaded.settings, fetch=False)
    check_policy(loaded.settings)
    check_webhooks(loaded.settings)
    check_packages(loaded.settings)
    check_weights(loaded.settings)
    rows = [row for row in configuration.effective(loaded) if not changed or row[2] != "default"]
    if as_json:
        print_json([{"key": key, "value": value, "source": source} for key, value, source in rows])
    else:
        _print_settings(rows)
        if any(key.startswith("reward.") for key, _, _ in rows):
            for line in [*in_words(loaded.settings.reward), *_by_the_log(loaded.settings)]:
                console.print(escape(f"reward.weight: {line}"), soft_wrap=True, highlight=False)
        for line in budget_warnings(loaded.settings):
            console.print(escape(f"tenants: {line}"), soft_wrap=True, highlight=False)


def _by_the_log(settings: Settings) -> Iterator[str]:
    """What the doctor says of the weight; nothing where there is no store yet, whose engine is then not loaded."""
    if settings.database_url is None and not Path(settings.database.removeprefix("sqlite:///")).exists():
        return
    from ragbandit.router.cli.doctor import findings, price

    check = [("reward.weight", price.weight)]
    for one in findings.run_checks(findings.Installation(settings=settings), check, limit_s=3.0):
        words = "; ".join(filter(None, (one.found, one.means, one.remedy)))
        yield f"not compared with the log: {words}" if one.level == "problem" else words


def _print_settings(rows: Sequence[tuple[str, object, str]]) -> None:
    """One line per setting, never cut: key, value as JSON, source."""
    shown = [(key, json.dumps(value, ensure_ascii=False), source) for key, value, source in rows]
    width = max((len(key) for key, _, _ in shown), default=0)
    for key, value, source in shown:
        console.print(escape(f"{key:<{width}}  {value}  ({source})"), soft_wrap=True, highlight=False)
    if not shown:
        console.print("every setting is the default")
