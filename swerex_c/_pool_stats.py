"""What a pool counts of itself, and how it is shown to Prometheus by the optional package prometheus-client."""

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
    """Durations of one kind, in seconds: how many there were, their sum, the longest, and how many in each bucket."""

    BOUNDS: ClassVar[tuple[float, ...]] = (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    )
    """Upper bounds of the buckets but the last."""

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
        """0 if there were none."""
        return self.sum / self.count if self.count else 0.0

    def copy(self) -> Times:
        return Times(self.count, self.sum, self.longest, list(self.buckets))


@dataclass
class Counts:
    """What has happened in a pool since it was made."""

    handed_out: int = 0
    """Environments given to a caller; one that is used again counts again."""

    reused: int = 0
    """Those of them that had been used before."""

    started: int = 0
    """Environments that were started."""

    attempts_failed: int = 0
    """Attempts to start one that failed, whether another followed or not."""

    starts_failed: int = 0
    """Environments that were given up, after all their attempts."""

    replaced: int = 0
    """Environments that ended before their time: dead in use, while they waited for a user, or in their reset."""

    time_limits: int = 0
    """Environments that were ended because they were in use too long."""

    refused: int = 0
    """Callers that were refused because the queue was full."""

    gave_up: int = 0
    """Callers that waited and left without an environment: their time was over, or they were cancelled."""

    ended: int = 0
    """Environments that were stopped."""

    ends_failed: int = 0
    """Those of them whose stop failed, or did not return in time. Something of them may be left."""

    waiting_seconds: Times = field(default_factory=Times)
    """How long callers waited for the environment that they got."""

    starting_seconds: Times = field(default_factory=Times)
    """How long the attempts took that succeeded."""

    use_seconds: Times = field(default_factory=Times)
    """How long environments were in use."""


@dataclass(frozen=True)
class PoolStats:
    """A pool at one moment. The states add up to at most its size, but for `waiting`, which counts callers."""

    size: int
    waiting: int
    starting: int
    """Being started, waiting for their turn to start, or before another attempt."""

    idle: int
    """Ready, in nobody's hands; or being asked whether they are alive, or being reset."""

    in_use: int
    ending: int
    counts: Counts


class Collector:
    """The numbers of one pool in the form that Prometheus reads, taken when somebody asks."""

    def __init__(self, name: str, stats: Callable[[], PoolStats | None]):
        """
        Args:
            name: the value of the label `pool`.
            stats: gives the numbers; None when the pool is gone, which then has no samples.
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
            ("size", "How many environments there may be at once.", stats.size),
            ("waiting", "Callers that wait for an environment.", stats.waiting),
            ("starting", "Environments that are being started.", stats.starting),
            ("idle", "Environments that are ready.", stats.idle),
            ("in_use", "Environments in use.", stats.in_use),
            ("ending", "Environments that are being stopped.", stats.ending),
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
                counter = CounterMetricFamily(f"swerex_pool_{name}", f"Since the start: {name}.", labels=labels)
                counter.add_metric([self._name], value)
                yield counter


def register(collector: Collector, registry: CollectorRegistry | None) -> Callable[[], None]:
    """Have a registry (None: the default one) show a pool. Returns what ends that.

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
