"""Families of Prometheus metrics, as their values are known at the time of a scrape."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
#: one value, or one for each label: a text, or a tuple of texts where there are several
Values = float | Mapping[Any, float]


def counter(name: str, text: str, values: Values, *, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """A counter with these values."""
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def gauge(name: str, text: str, values: Values, *, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """A gauge with these values."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _filled(family: _Family, values: Values) -> _Family:
    if not isinstance(values, Mapping):
        family.add_metric([], float(values))
        return family
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), float(value))
    return family
