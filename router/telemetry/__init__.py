"""Telemetry: traces by OpenTelemetry, and lines of the log, with the ids that tie them together (docs/telemetry.md)."""
