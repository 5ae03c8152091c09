"""Verb `worker`: one process that takes jobs."""

from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import ConfigOption
from ragbandit.router.config import loading as configuration
from ragbandit.router.telemetry.logs import set_log_format
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import known_choices
from ragbandit.workers.process import QUEUES, run_worker


def worker(
    *,
    config: ConfigOption = None,
    queue: Annotated[list[str] | None, typer.Option(help="answer, judge or learn; repeat it; default all")] = None,
    burst: Annotated[bool, typer.Option(help="end when the queues are empty")] = False,
    heartbeat: Annotated[
        Path | None, typer.Option(help="touch this file every 5 s, from when everything is loaded, for a probe")
    ] = None,
) -> None:
    """Take jobs: answer decisions, judge answers, learn from feedback."""
    unknown = [name for name in queue or () if name not in QUEUES]
    if unknown:
        raise ConfigError(
            f"unknown queue {unknown[0]!r}", field="queue", remedy=known_choices(QUEUES, given=unknown[0])
        )
    settings = configuration.load(config).settings
    set_log_format(settings.log.format)
    configured = [name for name in QUEUES if name != "judge" or settings.judge.generator is not None]
    run_worker(settings, queues=queue or configured, burst=burst, heartbeat=heartbeat)
