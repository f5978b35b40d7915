"""Traces of starts by OpenTelemetry: a span for each start of a server, and one in it for each of its phases.

Nothing happens without the extra ``traces``, and nothing is sent without ``OTEL_EXPORTER_OTLP_ENDPOINT`` in the hub's
environment, the variable of OpenTelemetry's own. A site that sets a tracer provider itself keeps it. Spans have the
session's id, and neither user nor node.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from opentelemetry import trace
except ImportError:  # the extra is not installed
    trace = None

log = logging.getLogger(__name__)

#: The variables of which one says where to send spans, and the name of the hub as a service.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE_NAME = "carme-hub"
#: Spans of starts that go on, by session.
_starts: dict[str, Any] = {}


def set_up() -> bool:
    """Send spans where the environment says; return whether they are sent."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("Traces are not sent: install carme-hub[traces], or remove %s", " and ".join(ENDPOINTS))
        return False
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


@contextmanager
def traced_start(session: str) -> Iterator[None]:
    """Trace the start of a session's server. Of an exception the span has the class alone: messages name folders."""
    if trace is None or not session:
        yield
        return
    span = _starts[session] = trace.get_tracer(__name__).start_span("start", attributes={"carme.session": session})
    try:
        yield
    except BaseException as error:
        span.set_status(trace.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        _starts.pop(session, None)
        span.end()


def phase(session: str, name: str, began: float, ended: float) -> None:
    """Add a phase that is over to the start of a session; times are UTC epoch seconds. A start must go on."""
    start = _starts.get(session)
    if trace is None or start is None:
        return
    inside = trace.set_span_in_context(start)
    span = trace.get_tracer(__name__).start_span(name, context=inside, start_time=_nanoseconds(began))
    span.end(end_time=_nanoseconds(max(began, ended)))


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
