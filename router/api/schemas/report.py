"""The reply of /v1/report, which `ragbandit report --json` prints too."""

from collections.abc import Sequence

from ragbandit.client.replies.report import ComparisonReply, LineReply, ReportReply
from ragbandit.router.reporting import words
from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import Unit
from ragbandit.router.reporting.report import Line, Report


def report_json(report: Report, *, now: float) -> ReportReply:
    """The reply of a report."""

    def lines(of: Sequence[Line]) -> list[LineReply]:
        return [_line(line, unit=report.unit) for line in of]

    return ReportReply(
        sentence=words.sentence(report, now=now),
        since=report.since,
        until=report.until,
        tenant=report.tenant,
        unit=report.unit,
        why=report.why,
        total=None if report.total is None else _line(report.total, unit=report.unit),
        costs={unit: _comparison(of) for unit, of in report.costs.items()},
        arms=lines(report.arms),
        tenants=lines(report.tenants),
        prices=lines(report.prices),
        weeks=lines(report.weeks),
        left_out=dict(report.left_out),
        notes=list(words.footnotes(report)),
    )


def _line(line: Line, *, unit: Unit) -> LineReply:
    return LineReply(
        name=line.name,
        against=line.against,
        questions=line.questions,
        cost=_comparison(line.cost),
        quality=_comparison(line.quality),
        verdict=line.verdict,
        missing=line.missing,
        saved=words.saved(line, unit),
        words=words.verdict(line),
    )


def _comparison(of: Comparison) -> ComparisonReply:
    return ComparisonReply(
        served=of.served,
        always=of.always,
        difference=of.difference,
        low=of.low,
        high=of.high,
        draws=of.tried.draws,
        seen=of.tried.judged,
        effective_rows=of.tried.effective,
        missing=of.tried.missing,
    )
