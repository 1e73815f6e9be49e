"""A workflow with traces, for a process that is killed: `python -m tests.observe.traced STORE SPANS`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from effectflow import Checkpoints, Do, SqliteStore, ask, step, workflow
from effectflow.observe import OpenTelemetry


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints
    is_deadly: bool


@step
async def charge(amount: int) -> int:
    return amount


@step
async def ship() -> str:
    if (await ask(Shop)).is_deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return "shipped"


@workflow
def checkout(amount: int) -> Do[Shop, object, str]:
    yield from charge(amount)
    return (yield from ship())


def tracing(exporter: SpanExporter) -> OpenTelemetry:
    """Return an observer whose spans are exported as they end."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetry(tracer_provider=provider)


class ToFile(SpanExporter):
    """Writes a line for each span that has ended: name, trace, id and parent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                context: Any = span.get_span_context()
                parent = span.parent.span_id if span.parent else 0
                print(span.name, context.trace_id, context.span_id, parent, sep="|", file=file)
        return SpanExportResult.SUCCESS


async def main(store: str, spans: str) -> None:
    async with SqliteStore(store) as opened:
        checkpoints = Checkpoints(opened, observers=[tracing(ToFile(Path(spans)))])
        await checkout.start(5, run_id="c1").run_or_raise(Shop(checkpoints, is_deadly=True))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
