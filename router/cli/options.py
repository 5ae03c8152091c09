"""Options that several verbs share."""

import math
import os
from typing import Annotated

import typer

from ragbandit.shared.errors import InvalidInput

ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml")]

AllOption = Annotated[bool, typer.Option("--all", help="print every table and note")]

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="RAGBANDIT_URL", help="address of the service; default: the configured one"),
]

KeyOption = Annotated[str | None, typer.Option("--key-env", help="variable with the key; default: RAGBANDIT_API_KEY")]

MeasureOption = Annotated[
    str | None,
    typer.Option(help="correct, exact_match, f1 ...: what makes an answer right; default: exact_match, if known"),
]

ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(help="OURS=COLUMN[,...]: columns of the table, as question=prompt,arm=model,correct=score"),
]

SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="leave out rows that cannot be used")]

HopsOption = Annotated[str | None, typer.Option(help="DATASET=N[,...]: hops of a data set's rows that have none")]

LabelOption = Annotated[str | None, typer.Option(help="name of the ledger; default: the configured one")]

HostOption = Annotated[str | None, typer.Option("--host", help="address to listen on; default: server.host")]

PortOption = Annotated[int | None, typer.Option("--port", help="port to listen on; default: server.port")]

IdOption = Annotated[
    str | None, typer.Option("--id", help="your id of the decision; a repeated call returns the stored decision")
]


def listen_on(*, host: str | None, port: int | None) -> None:
    """Set server.host and server.port to --host and --port, for this process and its children."""
    for name, value in (("HOST", host), ("PORT", port)):
        if value is not None:
            os.environ[f"RAGBANDIT_SERVER__{name}"] = str(value)


def check_dollars(budget: float | None, *, without: str) -> None:
    """Raises InvalidInput for a budget that is not finite. without: what the command does without --budget."""
    if budget is not None and not math.isfinite(budget):
        remedy = f"give dollars, for example --budget 1, or leave --budget out: {without}"
        raise InvalidInput(f"{budget} dollars are not a budget", field="budget", remedy=remedy)
