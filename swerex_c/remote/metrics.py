"""A server's counts in the form that Prometheus reads, by the optional package prometheus-client.

Nothing is counted for this: what the service counts anyway is put into form when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import NotAvailableError

if TYPE_CHECKING:
    from swerex_c.remote.service import Service, Tally

__all__ = ["Page", "page"]

Page = Callable[[str], tuple[str, bytes]]
"""From the Accept header of a request to the content type and the body of the answer."""


def page(service: Service) -> Page:
    """What gives a service's metrics.

    Raises:
        NotAvailableError: if prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        msg = "--metrics needs the package prometheus-client: pip install 'swerex-c[metrics]'"
        raise NotAvailableError(msg) from None
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collector(service))

    def answer(accept: str) -> tuple[str, bytes]:
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)

    return answer


class _Collector:
    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        service = self._service
        calls = CounterMetricFamily("swerex_calls", "Requests that were carried out, or failed.", labels=["method"])
        errors = CounterMetricFamily("swerex_call_errors", "Those of them that failed.", labels=["method"])
        seconds = HistogramMetricFamily("swerex_call_duration_seconds", "How long they took.", labels=["method"])
        for method, tally in service.tallies.items():
            calls.add_metric([method], tally.finished)
            errors.add_metric([method], tally.errors)
            seconds.add_metric([method], buckets=_buckets(tally), sum_value=tally.seconds)
        yield from (calls, errors, seconds)
        for name, text, value in (
            ("swerex_requests_in_flight", "Requests that are being carried out.", service.in_flight),
            ("swerex_sessions", "Sessions that are open.", service.session_count),
            ("swerex_connections", "Connections that are open.", service.connections),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        warm = getattr(service.runtime, "warm", None)
        if warm is not None:
            yield GaugeMetricFamily("swerex_warm_sessions", "Shells that wait to become sessions.", value=warm.waiting)
            for name, text, value in (
                ("swerex_warm_sessions_taken", "Sessions that one of them has become.", warm.taken),
                ("swerex_warm_sessions_missed", "Sessions whose shell was started instead.", warm.missed),
            ):
                yield CounterMetricFamily(name, text, value=value)


def _buckets(tally: Tally) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in tally.BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(tally.buckets), strict=True))
