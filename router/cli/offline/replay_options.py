"""Options of `ragbandit replay`, in the panels of its help; imported as one namespace."""

from pathlib import Path
from typing import Annotated

import typer

_CANDIDATES, _LOG, _ESTIMATE, _OUTPUT = "Candidates", "The log", "Estimation", "Output"

Policy = Annotated[
    list[str] | None,
    typer.Option(
        help="a policy's NAME, a snapshot's VERSION, fixed:ARM or column:KEY [,...]; may be repeated. Default: "
        "every arm of the log, and uniform",
        rich_help_panel=_CANDIDATES,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        help="to compare with: current (the policy that serves, as it is now), logged (as it served), or a candidate; "
        "default: current for the store, and for a file that the service logged where a candidate reads questions",
        rich_help_panel=_CANDIDATES,
    ),
]
Param = Annotated[
    list[str] | None, typer.Option(help="NAME.KEY=VALUE of a policy; may be repeated", rich_help_panel=_CANDIDATES)
]
Learn = Annotated[
    bool,
    typer.Option("--learn", help="policies learn along the log (progressive validation)", rich_help_panel=_CANDIDATES),
]
Floor = Annotated[
    float | None,
    typer.Option(
        help="least probability of every arm; default as served: policy.floor and policy.cold_start_floor",
        rich_help_panel=_CANDIDATES,
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        help="a file (jsonl, parquet), or a folder of Parquet files, or their URL; default the store",
        rich_help_panel=_LOG,
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="format of a file whose name does not tell it", rich_help_panel=_LOG),
]
Minimum = Annotated[
    float | None,
    typer.Option(help="bound of a file's rewards that name none; default: config", rich_help_panel=_LOG),
]
Maximum = Annotated[
    float | None,
    typer.Option(help="bound of a file's rewards that name none; default: config", rich_help_panel=_LOG),
]
Database = Annotated[
    str | None, typer.Option(help="URL of another store than the configured one", rich_help_panel=_LOG)
]
Label = Annotated[str | None, typer.Option(help="the store's ledger; default policy.label", rich_help_panel=_LOG)]
Since = Annotated[str | None, typer.Option(help="a date, a time, or an age such as 7d", rich_help_panel=_LOG)]
MixedArms = Annotated[bool, typer.Option("--mixed-arms", help="rows may offer different arms", rich_help_panel=_LOG)]
Judged = Annotated[
    bool,
    typer.Option(
        "--judged",
        help="complete rewards where no person rated, by a judge's scores corrected by the ratings",
        rich_help_panel=_LOG,
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="leave out rows that cannot be used", rich_help_panel=_LOG)]
Estimator = Annotated[
    str,
    typer.Option(
        help="dr, sndr, ips, snips or dm",
        rich_help_panel=_ESTIMATE,
    ),
]
RewardModel = Annotated[str, typer.Option(help="ridge, mean or package.module:Class", rich_help_panel=_ESTIMATE)]
Folds = Annotated[int, typer.Option(help="folds of the questions for cross-fitting", rich_help_panel=_ESTIMATE)]
Price = Annotated[
    str | None,
    typer.Option(
        help="all at this weight of cost: rewards are read, and policies asked, at it: a number, or a name of the "
        "setting prices; default each row's own",
        rich_help_panel=_ESTIMATE,
    ),
]
Confidence = Annotated[float, typer.Option(help="confidence of every interval", rich_help_panel=_ESTIMATE)]
Segment = Annotated[
    list[str] | None,
    typer.Option(help="tenant, version or fields of the context [,...]; may be repeated", rich_help_panel=_ESTIMATE),
]
Workers = Annotated[
    int | None,
    typer.Option(help="processes that judge the files of a folder; default this one", min=1, rich_help_panel=_LOG),
]
Cluster = Annotated[
    str | None,
    typer.Option(help="tcp://HOST:PORT of a Dask scheduler, whose workers judge the files", rich_help_panel=_LOG),
]
Report = Annotated[Path | None, typer.Option(help="write the page as FILE.html", rich_help_panel=_OUTPUT)]
FailBelow = Annotated[
    float | None,
    typer.Option(help="exit 1 unless the lower bound of every difference is at least this", rich_help_panel=_OUTPUT),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON", rich_help_panel=_OUTPUT)]
Config = Annotated[
    str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml", rich_help_panel=_LOG)
]
