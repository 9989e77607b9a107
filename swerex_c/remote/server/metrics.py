"""Export of a server's metrics to Prometheus.

It needs the optional package prometheus-client. This module counts nothing: it formats the counts of `Service` when
/metrics is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from swerex_c.exceptions import NotAvailableError
from swerex_c.remote.server import output

if TYPE_CHECKING:
    from swerex_c.remote.server.service import Histogram, Service

__all__ = ["endpoint"]

_Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def endpoint(service: Service) -> _Endpoint:
    """Return the endpoint that answers /metrics for a service, in the format that the request prefers.

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

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return metrics


class _Collector:
    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        service = self._service
        calls = CounterMetricFamily("swerex_calls", "Requests that were carried out, or failed.", labels=["method"])
        errors = CounterMetricFamily("swerex_call_errors", "Those of them that failed.", labels=["method"])
        seconds = HistogramMetricFamily("swerex_call_duration_seconds", "How long they took.", labels=["method"])
        for method, histogram in service.histograms.items():
            calls.add_metric([method], histogram.finished)
            errors.add_metric([method], histogram.errors)
            seconds.add_metric([method], buckets=_buckets(histogram), sum_value=histogram.seconds)
        yield from (calls, errors, seconds)
        for name, text, value in (
            ("swerex_requests_in_flight", "Requests that are being carried out.", service.in_flight),
            ("swerex_sessions", "Sessions that are open.", service.session_count),
            ("swerex_connections", "Connections that are open.", service.connections),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        text = "Lines of the log that were dropped, because nobody read them."
        yield CounterMetricFamily("swerex_log_lines_dropped", text, value=output.dropped())
        warm = getattr(service.runtime, "warm", None)
        if warm is not None:
            yield GaugeMetricFamily("swerex_warm_sessions", "Shells that wait to become sessions.", value=warm.waiting)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in histogram.BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(histogram.buckets), strict=True))
