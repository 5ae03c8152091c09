"""The tracing of a process by its settings."""

from ragbandit.router.telemetry.tracing import OFF, Tracing


def make_tracing(*, enabled: bool, service: str, process: str) -> Tracing:
    """The tracing of a process, to be made in the process itself, after every fork.

    service: its name, where OTEL_SERVICE_NAME gives none. process: which one of ours. Raises ConfigError without the
    extra `otel`.
    """
    if not enabled:
        return OFF
    from ragbandit.router.telemetry.otel import open_telemetry  # needs the extra `otel`

    return open_telemetry(service=service, process=process)
