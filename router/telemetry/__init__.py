"""Telemetry: OpenTelemetry traces and log lines, connected by ids (docs/telemetry.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.router.telemetry.tracing import Tracing


def make_tracing(*, enabled: bool, process: str) -> "Tracing":
    """Make the tracing of this process; call again after a fork. Raises ConfigError without the extra `otel`."""
    if not enabled:
        from ragbandit.router.telemetry.tracing import OFF

        return OFF
    from ragbandit.router.telemetry.otel import open_telemetry  # needs the extra `otel`

    return open_telemetry(process=process)
