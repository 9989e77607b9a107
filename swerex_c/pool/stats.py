"""Statistics of a pool, and their export to Prometheus.

The export needs the optional package prometheus-client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from swerex_c.exceptions import NotAvailableError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Collector", "Counts", "PoolStats", "Times", "register"]


@dataclass
class Times:
    """Histogram of durations in seconds.

    It holds their number, their sum, the longest, and the number in each bucket.
    """

    BOUNDS: ClassVar[tuple[float, ...]] = (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    )
    """Upper bounds in seconds of all buckets except the last."""

    count: int = 0
    sum: float = 0.0
    longest: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(Times.BOUNDS) + 1))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        self.longest = max(self.longest, seconds)
        self.buckets[bisect_left(self.BOUNDS, seconds)] += 1

    @property
    def mean(self) -> float:
        """Mean in seconds; 0 without durations."""
        return self.sum / self.count if self.count else 0.0

    def copy(self) -> Times:
        return Times(self.count, self.sum, self.longest, list(self.buckets))


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


class Collector:
    """Prometheus collector that reads the statistics of one pool on each scrape."""

    def __init__(self, name: str, stats: Callable[[], PoolStats | None]):
        """Create the collector without registering it.

        Args:
            name: value of the label `pool`.
            stats: returns the statistics, or None if the pool is gone, which then has no samples.
        """
        self._name = name
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        stats = self._stats()
        if stats is None:
            return
        labels = ["pool"]
        gauges = (
            ("size", "Maximum number of environments.", stats.size),
            ("waiting", "Callers waiting for an environment.", stats.waiting),
            ("starting", "Environments being started.", stats.starting),
            ("idle", "Environments ready for use.", stats.idle),
            ("in_use", "Environments in use.", stats.in_use),
            ("ending", "Environments being stopped.", stats.ending),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"swerex_pool_{name}", text, labels=labels)
            gauge.add_metric([self._name], value)
            yield gauge
        for name, value in vars(stats.counts).items():
            if isinstance(value, Times):
                histogram = HistogramMetricFamily(f"swerex_pool_{name}", f"Durations: {name}.", labels=labels)
                histogram.add_metric([self._name], buckets=_buckets(value), sum_value=value.sum)
                yield histogram
            else:
                counter = CounterMetricFamily(f"swerex_pool_{name}", f"Total: {name}.", labels=labels)
                counter.add_metric([self._name], value)
                yield counter


def register(collector: Collector, registry: CollectorRegistry | None) -> Callable[[], None]:
    """Register a pool's collector with a Prometheus registry.

    `None` is the default registry. Returns a function that unregisters the collector.

    Raises:
        NotAvailableError: if prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        msg = "Metrics of a pool need the package prometheus-client: pip install 'swerex-c[metrics]'"
        raise NotAvailableError(msg) from None
    target = REGISTRY if registry is None else registry
    target.register(collector)
    return lambda: target.unregister(collector)


def _buckets(times: Times) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in times.BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(times.buckets), strict=True))
