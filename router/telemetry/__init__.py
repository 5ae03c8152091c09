"""Telemetry: traces by OpenTelemetry, and lines of the log, with the ids that tie them together (docs/telemetry.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.router.telemetry.tracing import Tracing


def make_tracing(*, enabled: bool, service: str, process: str) -> "Tracing":
    """The tracing of a process, to be made in the process itself, after every fork.

    service: its name, where OTEL_SERVICE_NAME gives none. process: which one of ours. Raises ConfigError without the
    extra `otel`.
    """
    if not enabled:
        from ragbandit.router.telemetry.tracing import OFF

        return OFF
    from ragbandit.router.telemetry.otel import open_telemetry  # needs the extra `otel`

    return open_telemetry(service=service, process=process)
