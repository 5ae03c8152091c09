"""The words of `ragbandit replay`, in the panels of its help."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AnytimeWord",
    "AsJsonWord",
    "BaselineWord",
    "ConfidenceWord",
    "ConfigWord",
    "DatabaseWord",
    "EstimatorWord",
    "FailBelowWord",
    "FloorWord",
    "FoldsWord",
    "InSampleWord",
    "LabelWord",
    "LearnWord",
    "LogFormatWord",
    "LogWord",
    "MaximumWord",
    "MinimumWord",
    "MixedArmsWord",
    "ParamWord",
    "PolicyWord",
    "ReportWord",
    "RewardModelWord",
    "SegmentWord",
    "SinceWord",
    "SkipBadWord",
    "WeightWord",
]

_WHAT, _LOG, _HOW, _OUTPUT = "What is judged", "The log", "How it is judged", "Output"

PolicyWord = Annotated[
    list[str] | None,
    typer.Option(
        help="a policy's NAME, a snapshot's VERSION, fixed:ARM or column:KEY [,...]; may be repeated. Default: "
        "every arm of the log, and uniform",
        rich_help_panel=_WHAT,
    ),
]
BaselineWord = Annotated[str, typer.Option(help="to compare with: logged, or a candidate", rich_help_panel=_WHAT)]
ParamWord = Annotated[
    list[str] | None, typer.Option(help="NAME.KEY=VALUE of a policy; may be repeated", rich_help_panel=_WHAT)
]
LearnWord = Annotated[bool, typer.Option("--learn", help="policies learn while they go", rich_help_panel=_WHAT)]
FloorWord = Annotated[
    float | None,
    typer.Option(help="of policies' probabilities; default policy.floor", rich_help_panel=_WHAT),
]
InSampleWord = Annotated[
    bool, typer.Option("--in-sample", help="also rows that a snapshot has learned", rich_help_panel=_WHAT)
]
LogWord = Annotated[
    Path | None,
    typer.Option(help="a file (jsonl, parquet, dsjson, npz); default the store", rich_help_panel=_LOG),
]
LogFormatWord = Annotated[
    str | None,
    typer.Option("--format", help="of a file whose name does not say it", rich_help_panel=_LOG),
]
MinimumWord = Annotated[
    float | None,
    typer.Option(help="of a file's rewards that name no bounds; default: config", rich_help_panel=_LOG),
]
MaximumWord = Annotated[
    float | None,
    typer.Option(help="of a file's rewards that name no bounds; default: config", rich_help_panel=_LOG),
]
DatabaseWord = Annotated[
    str | None, typer.Option(help="URL of another store than the configured one", rich_help_panel=_LOG)
]
LabelWord = Annotated[str | None, typer.Option(help="the store's ledger; default policy.label", rich_help_panel=_LOG)]
SinceWord = Annotated[str | None, typer.Option(help="a date, a time, or an age such as 7d", rich_help_panel=_LOG)]
MixedArmsWord = Annotated[
    bool, typer.Option("--mixed-arms", help="rows may offer different arms", rich_help_panel=_LOG)
]
SkipBadWord = Annotated[
    bool, typer.Option("--skip-bad", help="leave out rows that cannot be used", rich_help_panel=_LOG)
]
EstimatorWord = Annotated[
    str,
    typer.Option(
        help="dr, sndr, ips, snips, dm, clipped_ips:C, switch_dr:T, dros:L; without its number one of the last "
        "three is tuned on the log",
        rich_help_panel=_HOW,
    ),
]
RewardModelWord = Annotated[str, typer.Option(help="ridge, mean, mrdr or package.module:Class", rich_help_panel=_HOW)]
FoldsWord = Annotated[int, typer.Option(help="parts of the log for cross-fitting", rich_help_panel=_HOW)]
WeightWord = Annotated[
    float | None,
    typer.Option("--lambda", help="weight of cost to put on all rewards; default as learned", rich_help_panel=_HOW),
]
ConfidenceWord = Annotated[float, typer.Option(help="of every interval", rich_help_panel=_HOW)]
AnytimeWord = Annotated[
    bool, typer.Option("--anytime", help="intervals that hold at every look (dr, ips)", rich_help_panel=_HOW)
]
SegmentWord = Annotated[
    list[str] | None,
    typer.Option(help="tenant, version or fields of the context [,...]; may be repeated", rich_help_panel=_HOW),
]
ReportWord = Annotated[Path | None, typer.Option(help="write the page as FILE.html", rich_help_panel=_OUTPUT)]
FailBelowWord = Annotated[
    float | None,
    typer.Option(help="exit 1 unless every difference is surely at least this", rich_help_panel=_OUTPUT),
]
AsJsonWord = Annotated[bool, typer.Option("--json", help="print JSON", rich_help_panel=_OUTPUT)]
ConfigWord = Annotated[
    str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml", rich_help_panel=_LOG)
]
