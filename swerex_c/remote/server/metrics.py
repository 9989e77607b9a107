"""Export of a server's metrics to Prometheus.

It needs the optional package prometheus-client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from swerex_c.remote.server import logs
from swerex_c.remote.server.service import METHODS, STREAMING_METHODS, Service
from swerex_c.utils.load import load_library

__all__ = ["endpoint"]

_BOUNDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the buckets of durations, in seconds."""


def endpoint(service: Service) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return the endpoint that answers /metrics for a service, in the format that the request prefers.

    Raises:
        NotAvailableError: if prometheus-client is not installed.
    """
    load_library("prometheus_client", "metrics", "--metrics")
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    def warm() -> int:
        return getattr(getattr(service.runtime, "warm", None), "waiting", 0)  # of a LocalRuntime

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    for name, text, value in (
        ("swerex_requests_in_flight", "Requests that are being carried out.", lambda: service.in_flight),
        ("swerex_sessions", "Sessions that are open.", lambda: len(getattr(service.runtime, "sessions", ()))),
        ("swerex_connections", "Connections that are open.", lambda: service.connections),
        ("swerex_warm_sessions", "Shells that wait to become sessions.", warm),
    ):
        Gauge(name, text, registry=registry).set_function(value)
    registry.register(_DroppedLines())
    of_each: dict[str, Any] = {"labelnames": ["method"], "registry": registry}
    calls = Counter("swerex_calls", "Requests that were carried out, or failed.", **of_each)
    errors = Counter("swerex_call_errors", "Those of them that failed.", **of_each)
    seconds = Histogram("swerex_call_duration_seconds", "How long they took.", buckets=_BOUNDS, **of_each)
    for method in (*METHODS, *STREAMING_METHODS):
        for metric in (calls, errors, seconds):
            metric.labels(method)  # so that a method without calls counts as zero

    def observe(method: str, took: float, failed: bool) -> None:
        calls.labels(method).inc()
        errors.labels(method).inc(failed)
        seconds.labels(method).observe(took)

    service.observe = observe

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return metrics


class _DroppedLines:
    """Collector of a counter that is kept elsewhere."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        handler = logs.handler()
        text = "Log lines that were dropped because the output was not read."
        yield CounterMetricFamily("swerex_log_lines_dropped", text, value=0 if handler is None else handler.dropped)
