"""Verb `status`. This module imports little, so that --line is fast."""

from typing import Annotated

import typer

from ragbandit.router.cli.console import console
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.status_line import stored_line


def status(
    line: Annotated[bool, typer.Option("--line", help="print one line for a shell prompt")] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what routing earned, counts, learning lag, the health of each arm, and each problem with its remedy.

    Reads the database, and Redis if it is used, so no service has to run. The exit code is 1 if there is a problem.
    --json prints the ledger's fields of /v1/status, the findings, and the additions of installed packages. --line
    prints shares of the arms and dollars against always one arm within 300 ms, from a file that the last `ragbandit
    status` wrote. If the file is older than 5 minutes, the command starts `ragbandit status`.
    """
    if line:
        console.say(stored_line(config, label=label))
        return
    from ragbandit.router.verbs.inspection import print_status  # this import takes long

    print_status(label, config=config, as_json=as_json)
