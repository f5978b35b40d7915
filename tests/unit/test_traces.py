"""Traces of starts: one for each, with its phases in it; nothing without the library, and nothing sent unasked."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from carme_hub import traces


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return what the spans are sent to."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(api, "get_tracer", lambda name: provider.get_tracer(name))
    yield found
    provider.shutdown()


def test_a_start_has_its_phases_with_their_times(exporter: InMemorySpanExporter) -> None:
    with traces.traced_start("s1"):
        traces.phase("s1", "admission", 1000.0, 1000.25)
        traces.phase("s1", "queue", 1000.25, 1060.0)
    admission, queue, start = exporter.get_finished_spans()
    assert [span.name for span in (admission, queue, start)] == ["admission", "queue", "start"]
    assert (queue.start_time, queue.end_time) == (1_000_250_000_000, 1_060_000_000_000)
    assert queue.parent is not None
    assert queue.parent.span_id == admission.parent.span_id == start.context.span_id
    assert dict(start.attributes or {}) == {"carme.session": "s1"}


def test_two_starts_at_once_keep_their_phases_apart(exporter: InMemorySpanExporter) -> None:
    with traces.traced_start("s1"), traces.traced_start("s2"):
        traces.phase("s1", "queue", 1.0, 2.0)
    queue, second, first = exporter.get_finished_spans()
    assert queue.parent is not None
    assert queue.parent.span_id == first.context.span_id
    assert first.attributes is not None
    assert first.attributes["carme.session"] == "s1"
    assert second.context.span_id != queue.parent.span_id


def test_a_start_that_fails_says_so_and_a_phase_after_it_is_none(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="full"), traces.traced_start("s1"):
        raise ValueError("the disk is full")
    traces.phase("s1", "server", 1.0, 2.0)
    (start,) = exporter.get_finished_spans()
    assert (start.status.status_code, start.status.description) == (api.StatusCode.ERROR, "ValueError")
    assert not start.events, "the message may name somebody"
    assert not traces._starts


def test_without_the_library_a_start_is_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "trace", None)
    with traces.traced_start("s1"):
        traces.phase("s1", "queue", 1.0, 2.0)


def test_nothing_is_sent_unasked_and_a_missing_exporter_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in traces.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert traces.set_up() is False
    assert caplog.records == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert traces.set_up() is False
    assert "install carme-hub[traces]" in caplog.text
