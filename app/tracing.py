"""Traces of jobs, from the request to the certificate, over OTLP/HTTP (`otel_endpoint`); off by default.

One trace is one job: its row keeps the request's `traceparent`, and relay and workers go on from there. A span names
requests, jobs and attempts by id, route and number; it holds no value computed from private data. Moments of an attempt
are whole seconds, as callers see them (app.lifecycle.cadence): finer ones would tell how long a private pass took.

Without the extra `otel`, or without an endpoint, everything here does nothing and loads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from app.logs import about
from core.errors import ServiceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Ids = Mapping[str, str | int]
FLUSH_MS = 2000


class _Tracing:
    """This process's tracer, once it is configured."""

    tracer: Tracer | None = None
    provider: TracerProvider | None = None


def configure(process: str, endpoint: str) -> None:
    """Starts tracing in this process if there is an endpoint.

    Args:
        process: api, relay or worker; the service is named `scrimp-…`.
        endpoint: the collector's address, such as http://127.0.0.1:4318.

    Raises:
        ServiceError: the extra `otel` is not installed.
    """
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise ServiceError("SCRIMP_OTEL_ENDPOINT needs the extra: pip install 'scrimp[otel]'") from None
    provider = TracerProvider(resource=Resource({"service.name": f"scrimp-{process}"}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    _Tracing.provider, _Tracing.tracer = provider, provider.get_tracer("scrimp")


def close() -> None:
    """Sends what is left, and ends tracing in this process."""
    if _Tracing.provider is not None:
        _Tracing.provider.force_flush(FLUSH_MS)
        _Tracing.provider.shutdown()
    _Tracing.provider = _Tracing.tracer = None


def is_on() -> bool:
    """True if this process traces."""
    return _Tracing.tracer is not None


def span(
    name: str, ids: Ids | None = None, *, parent: str | None = None, kind: Literal["server", "internal"] = "internal"
) -> AbstractContextManager[Span | None]:
    """A span around a block.

    Args:
        ids: its attributes: ids and other public facts, under `scrimp.…`.
        parent: a traceparent to go on from; None: the present span, or a new trace.
    """
    tracer = _Tracing.tracer
    return nullcontext() if tracer is None else _span(tracer, name, ids or {}, parent, kind)


@contextmanager
def _span(tracer: Tracer, name: str, ids: Ids, parent: str | None, kind: str) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind, StatusCode, format_trace_id  # noqa: PLC0415 - loaded already

    spoken = SpanKind.SERVER if kind == "server" else SpanKind.INTERNAL
    # An exception's text may quote a record: its type alone is recorded.
    with tracer.start_as_current_span(
        name,
        context=_context(parent),
        kind=spoken,
        attributes=_named(ids),
        record_exception=False,
        set_status_on_exception=False,
    ) as new_span:
        try:
            with about({"trace": format_trace_id(new_span.get_span_context().trace_id)}):
                yield new_span
        except Exception as error:
            new_span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def _context(parent: str | None) -> Context | None:
    if parent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract({"traceparent": parent})


def traceparent() -> str | None:
    """The present span, for a later one to go on from; None if nothing is traced."""
    if _Tracing.tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def coarse(name: str, ids: Ids, *, parent: str | None) -> Iterator[None]:
    """A span around a block that works on private data: it begins and ends at whole seconds."""
    tracer = _Tracing.tracer
    if tracer is None:
        yield
        return
    from opentelemetry.trace import use_span  # noqa: PLC0415

    began = int(wall())
    new_span = tracer.start_span(name, context=_context(parent), start_time=began * 10**9, attributes=_named(ids))
    try:
        with use_span(new_span, record_exception=False, set_status_on_exception=False):
            yield
    finally:
        new_span.end(max(began, int(wall())) * 10**9)


def past(name: str, ids: Ids, began: float, *, parent: str | None = None) -> None:
    """Records a span that ends now, at whole seconds.

    Args:
        began: from `wall`.
        parent: a traceparent; None: the present span.
    """
    tracer = _Tracing.tracer
    if tracer is None:
        return
    new_span = tracer.start_span(name, context=_context(parent), start_time=int(began) * 10**9, attributes=_named(ids))
    new_span.end(max(int(began), int(wall())) * 10**9)


def wall() -> float:
    """Seconds since the epoch, for `past`."""
    return time.time()


def _named(ids: Ids) -> dict[str, str | int]:
    return {f"scrimp.{key}": value for key, value in ids.items()}
