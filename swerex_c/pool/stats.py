"""Statistics of a pool, and their export to Prometheus.

The export needs the optional package prometheus-client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import NotAvailableError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Counts", "PoolStats", "Times", "register"]


@dataclass
class Times:
    """Number, sum and maximum of durations in seconds."""

    count: int = 0
    sum: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        """Mean in seconds; 0 without durations."""
        return self.sum / self.count if self.count else 0.0


@dataclass
class Counts:
    """Counters of a pool since it was created."""

    handed_out: int = 0
    """Environments given to a caller."""

    started: int = 0
    """Environments that were started."""

    attempts_failed: int = 0
    """Start attempts that failed, whether or not another attempt followed."""

    starts_failed: int = 0
    """Environments whose start was given up after the last attempt."""

    replaced: int = 0
    """Environments that ended early: they died in use or while idle."""

    time_limits: int = 0
    """Environments that were ended because they reached the pool's time limit."""

    refused: int = 0
    """Callers that were refused because the queue was full."""

    gave_up: int = 0
    """Callers that waited and left without an environment: they timed out or were cancelled."""

    ended: int = 0
    """Environments that were stopped."""

    ends_failed: int = 0
    """Environments whose stop failed or exceeded its timeout. Parts of them may be left."""

    waiting_seconds: Times = field(default_factory=Times)
    """Seconds that callers waited for the environment that they got."""

    starting_seconds: Times = field(default_factory=Times)
    """Seconds that successful start attempts took."""

    use_seconds: Times = field(default_factory=Times)
    """Seconds that environments were in use."""


@dataclass(frozen=True)
class PoolStats:
    """Snapshot of a pool.

    The states add up to at most `size`; `waiting` counts callers instead.
    """

    size: int
    waiting: int
    starting: int
    """Environments that are starting, wait for the start limit, or wait for another attempt."""

    idle: int
    """Environments that are ready and unused, or are being checked."""

    in_use: int
    ending: int
    counts: Counts


class _Collector:
    """Prometheus collector that reads the statistics of one pool on each scrape."""

    def __init__(self, name: str, stats: Callable[[], PoolStats]):
        self._name = name
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        labels = ["pool"]
        stats = dict(vars(self._stats()))
        counts = vars(stats.pop("counts"))
        for name, value in {**stats, **counts}.items():
            family = f"swerex_pool_{name}"
            if isinstance(value, Times):
                summary = SummaryMetricFamily(family, f"Durations: {name}.", labels=labels)
                summary.add_metric([self._name], value.count, value.sum)
                yield summary
            else:
                kind, text = (CounterMetricFamily, "Total") if name in counts else (GaugeMetricFamily, "Now")
                metric = kind(family, f"{text}: {name}.", labels=labels)
                metric.add_metric([self._name], value)
                yield metric


def register(name: str, stats: Callable[[], PoolStats], registry: CollectorRegistry | None) -> Callable[[], None]:
    """Register a collector of a pool's statistics with a Prometheus registry; return a function that unregisters it.

    Args:
        name: value of the label `pool`.
        registry: None is the default registry.

    Raises:
        NotAvailableError: if prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        msg = "Metrics of a pool need the package prometheus-client: pip install 'swerex-c[metrics]'"
        raise NotAvailableError(msg) from None
    target = REGISTRY if registry is None else registry
    collector = _Collector(name, stats)
    target.register(collector)
    return lambda: target.unregister(collector)
