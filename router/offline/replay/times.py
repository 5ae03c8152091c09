"""Times in reports: seconds since the epoch as UTC text."""

from datetime import UTC, datetime

__all__ = ["instant", "moment"]


def moment(seconds: float | None) -> datetime | None:
    """When that is, in UTC; None where it is no date: a log from elsewhere may count as it likes."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None


def instant(seconds: float) -> str:
    """A time as a date, or as seconds where it is none."""
    when = moment(seconds)
    return f"{when:%Y-%m-%d %H:%M} UTC" if when else f"{seconds:g} s"
