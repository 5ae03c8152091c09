"""The verb that judges policies on logged traffic."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from router import config as configuration
from router.bootstrap import make_encoder
from router.cli import ConfigOption, JsonOption, console, errors, failing_well, ledger_of, print_json
from router.config import Settings
from router.errors import InvalidInput
from router.logs import BadRow, Defaults, Logged, format_of, read_rows
from router.logs.store import ledger_rows
from router.replay import Asked, Held, Plan, Replayed, asked_candidates, held, judge, replay
from router.replay.candidates import Judged, described
from router.replay.page import check_page, write_page
from router.replay.results import Skipped
from router.replay.streamed import Streamed, streams
from router.replay.terminal import print_replay
from router.simulation.asked import asked_policies
from router.simulation.report import bars

__all__ = ["add_replay_verb", "asked_time"]

#: bad rows that an error names
MOST_NAMED = 5
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

Progress = Callable[[str, int, int], None]


def add_replay_verb(app: typer.Typer) -> None:
    """Put `replay` on the command."""

    @app.command(name="replay")
    def replay_(
        *,
        policy: Annotated[
            list[str], typer.Option(help="NAME, a snapshot's VERSION, fixed:ARM or column:KEY [,...]; may be repeated")
        ],
        log: Annotated[
            Path | None, typer.Option(help="a file (jsonl, parquet, dsjson, npz); default the store")
        ] = None,
        log_format: Annotated[
            str | None, typer.Option("--format", help="where the file's name does not say it")
        ] = None,
        database: Annotated[str | None, typer.Option(help="URL of another store than the configured one")] = None,
        label: Annotated[str | None, typer.Option(help="the ledger; default policy.label")] = None,
        baseline: Annotated[str, typer.Option(help="logged, or one of the candidates")] = "logged",
        estimator: Annotated[
            str, typer.Option(help="dr, sndr, ips, snips, dm, clipped_ips:C, switch_dr:T, dros:L")
        ] = "dr",
        weight: Annotated[
            float | None, typer.Option("--lambda", help="weight of cost to put on all rewards; default as learned")
        ] = None,
        since: Annotated[str | None, typer.Option(help="a date, a time, or an age such as 7d")] = None,
        segment: Annotated[list[str] | None, typer.Option(help="a field of the context, tenant or version")] = None,
        confidence: Annotated[float, typer.Option(help="of every interval")] = 0.95,
        anytime: Annotated[bool, typer.Option("--anytime", help="intervals that hold at every look")] = False,
        learn: Annotated[bool, typer.Option("--learn", help="policies learn while they go")] = False,
        folds: Annotated[int, typer.Option(help="parts of the log for cross-fitting")] = 5,
        reward_model: Annotated[str, typer.Option(help="ridge, mean, mrdr or package.module:Class")] = "ridge",
        floor: Annotated[float | None, typer.Option(help="of policies' probabilities; default policy.floor")] = None,
        param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE; may be repeated")] = None,
        mixed_arms: Annotated[bool, typer.Option("--mixed-arms", help="rows may offer different arms")] = False,
        in_sample: Annotated[bool, typer.Option("--in-sample", help="also rows that a snapshot has learned")] = False,
        skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out rows that cannot be used")] = False,
        fail_below: Annotated[
            float | None, typer.Option(help="exit 1 unless every difference is surely above this")
        ] = None,
        report: Annotated[Path | None, typer.Option(help="write the page as FILE.html")] = None,
        config: ConfigOption = None,
        as_json: JsonOption = False,
    ) -> None:
        """What other policies would have earned on logged traffic, how sure that is, and what the log cannot say."""
        with failing_well():
            settings = configuration.load(config).settings
            if database is not None:
                settings = settings.model_copy(update={"database_url": database})
            if report is not None:
                check_page(report)
            plan = Plan(
                estimator=estimator,
                weight=weight,
                baseline=baseline,
                confidence=confidence,
                anytime=anytime,
                segments=tuple(segment or ()),
                folds=folds,
                reward_model=reward_model,
                floor=floor,
                learn=learn,
                in_sample=in_sample,
            )
            asking = _Asking(
                plan=plan,
                settings=settings,
                label=label or settings.policy.label,
                log=log,
                format=log_format,
                since=None if since is None else asked_time(since, now=time.time()),
                mixed_arms=mixed_arms,
                skip_bad=skip_bad,
            )
            names = [name.strip() for text in policy for name in text.split(",") if name.strip()]
            candidates = _candidates(names, params=param or [], settings=settings)
            with bars(errors) as progress:
                found = asking.replayed(candidates, progress=progress)
            if report is not None:  # first: whoever reads the terminal through `head` wants the page too
                write_page(found, report)
            if as_json:
                print_json(_finite(asdict(found)))
            else:
                print_replay(found, console=console)
            if found.faults:
                raise typer.Exit(2)
            if fail_below is not None and not all(_above(found, index, fail_below) for index in range(len(candidates))):
                errors.print(f"[red]a difference is not surely above {fail_below:g}[/red]", highlight=False)
                raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asking:
    """The command's words, checked."""

    plan: Plan
    settings: Settings
    label: str
    log: Path | None
    format: str | None
    since: float | None
    mixed_arms: bool
    skip_bad: bool

    @property
    def _defaults(self) -> Defaults:
        reward = self.settings.reward
        return Defaults(minimum=reward.minimum, maximum=reward.maximum, weight=reward.weight)

    def replayed(self, candidates: Sequence[Asked], *, progress: Progress) -> Replayed:
        """The replay."""
        if self.log is not None and self._streams(self.log, candidates):
            return self._streamed(self.log, candidates, progress=progress)
        log, words, skipped, notes = self._stored(progress) if self.log is None else self._file(self.log, progress)
        return replay(
            log,
            candidates=candidates,
            plan=self.plan,
            settings=self.settings,
            encoder=lambda: make_encoder(self.settings.encoder),
            described=words,
            notes=notes,
            skipped=skipped,
            progress=progress,
        )

    def _streams(self, path: Path, candidates: Sequence[Asked]) -> bool:
        parquet = format_of(path, format=self.format) == "parquet"
        return parquet and not self.skip_bad and streams(path, candidates=candidates)

    def _streamed(self, path: Path, candidates: Sequence[Asked], *, progress: Progress) -> Replayed:
        pieces = Streamed(
            path=path,
            candidates=candidates,
            plan=self.plan,
            defaults=self._defaults,
            mixed_arms=self.mixed_arms,
            since=self.since,
        )
        return judge(
            pieces,
            candidates=candidates,
            judged=[Judged(described=described(asked)) for asked in candidates],
            plan=self.plan,
            log=str(path),
            progress=progress,
        )

    def _file(self, path: Path, progress: Progress) -> tuple[Held, str, list[Skipped], list[str]]:
        good: list[Logged] = []
        bad: list[BadRow] = []
        for done, row in enumerate(read_rows(path, format=self.format, defaults=self._defaults), start=1):
            if isinstance(row, BadRow):
                bad.append(row)
            elif self.since is None or row.decision.made_at >= self.since:
                good.append(row)
            if done % 1000 == 0:
                progress("rows read", done, 0)
        if bad and not self.skip_bad:
            named = "; ".join(f"line {row.line} {row.field} {row.reason} ({row.remedy})" for row in bad[:MOST_NAMED])
            more = f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
            raise InvalidInput(
                f"{len(bad)} rows cannot be used: {named}{more}",
                field=str(path),
                remedy="mend them, or give --skip-bad to go on without them",
            )
        skipped = [Skipped(where=f"line {row.line}", reason=f"{row.field} {row.reason}") for row in bad]
        return held(good, mixed_arms=self.mixed_arms), str(path), skipped, []

    def _stored(self, progress: Progress) -> tuple[Held, str, list[Skipped], list[str]]:
        rows = []
        with ledger_of(self.settings, label=self.label) as ledger:
            total = ledger.last_seq()
            for row in ledger_rows(ledger, since=self.since):
                rows.append(row)
                if len(rows) % 1000 == 0:
                    progress("rows read", len(rows), total)
            if not rows:
                raise InvalidInput(
                    f"the ledger {self.label!r} has no rows{'' if self.since is None else ' since then'}",
                    field="log",
                    remedy="decisions count once their feedback is learned; `ragbandit status` says where they are",
                )
        return held(rows, mixed_arms=self.mixed_arms, ledger=self.label), f"the ledger {self.label}", [], []


def asked_time(text: str, *, now: float) -> float:
    """Seconds since the epoch of a date, a time (UTC unless it says otherwise), or an age: 30m, 12h, 7d, 2w."""
    age = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if age:
        return now - float(age[1]) * _UNITS[age[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is no time", field="since", remedy="for example 2026-11-20, 2026-11-20T08:00 or 7d"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _candidates(names: Sequence[str], *, params: Sequence[str], settings: Settings) -> list[Asked]:
    """The candidates, policies of the registry with the configured params or those of --param."""
    plain = asked_candidates(names)
    learning = [asked.name for asked in plain if asked.kind == "policy"]
    return asked_candidates(names, params=asked_policies(learning, params=params, settings=settings))


def _above(found: Replayed, index: int, margin: float) -> bool:
    """Whether a candidate's difference lies surely above the margin; the baseline itself is not asked."""
    gap = found.candidates[index].difference
    return gap is None or (gap.low is not None and not gap.biased and gap.low >= margin)


def _finite(value: Any) -> Any:
    """JSON knows no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
