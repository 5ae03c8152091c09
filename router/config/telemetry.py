"""Settings of telemetry: whether traces are made. Where they go is told by OpenTelemetry's own variables."""

from typing import Annotated

from pydantic import Field

from ragbandit.router.config.sections import Section

__all__ = ["TelemetrySettings"]


class TelemetrySettings(Section):
    """Traces by OpenTelemetry (the extra `otel`), sent by OTLP over HTTP. See docs/telemetry.md."""

    #: make traces of requests, decisions, answers and feedback. OTEL_EXPORTER_OTLP_ENDPOINT says where they are sent
    enabled: bool = False
    #: the name of this service in them, where OTEL_SERVICE_NAME gives none
    service_name: Annotated[str, Field(min_length=1, max_length=200)] = "ragbandit"
