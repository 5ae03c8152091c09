"""Telemetry: OpenTelemetry traces and log lines, connected by ids (docs/telemetry.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.router.telemetry.tracing import Tracing


def make_tracing(*, enabled: bool, service: str, process: str) -> "Tracing":
    """Make the tracing of this process. Call it again after a fork. Raises ConfigError if an extra is missing.

    service: service name, if OTEL_SERVICE_NAME is not set. process: kind of the process, for example "worker".
    """
    if not enabled:
        from ragbandit.router.telemetry.tracing import OFF

        return OFF
    from ragbandit.router.telemetry.otel import open_telemetry  # needs the extra `otel`

    return open_telemetry(service=service, process=process)
