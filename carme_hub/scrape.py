"""Metrics that are computed at one scrape, in Prometheus' text format. The services write theirs so.

A metric without a value is named nevertheless, so that what asks for it can be checked before there is a value. A value
that is not known is absent, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Scrape(Collector):
    """The metrics of one scrape. ``prefix``: the beginning of all names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._families: list[Metric] = []

    def value(self, name: str, about: str, value: float | None) -> None:
        """Add a metric without labels; None = the value is not known."""
        family = self.gauge(name, about)
        if value is not None:
            family.add_metric((), value)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
        """Add a metric, and return it for its values."""
        family = GaugeMetricFamily(self._prefix + name, about, labels=labels)
        self._families.append(family)
        return family

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
        """Add a number that only grows, and return it for its values."""
        family = CounterMetricFamily(self._prefix + name, about, labels=labels)
        self._families.append(family)
        return family

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()
