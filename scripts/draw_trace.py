"""Draws docs/img/trace.svg: the trace of one job that runs on a real service, from the request to the certificate.

The collector is in this file: it receives OTLP over HTTP on the loopback and keeps the spans.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "img" / "trace.svg"
ROW, LEFT, WIDTH, RIGHT = 30, 250, 560, 90
COLOURS = {"scrimp-api": "#4269d0", "scrimp-relay": "#97bbf5", "scrimp-worker": "#3ca951"}


@dataclass(frozen=True)
class Span:
    """A received span; times in seconds since the epoch."""

    trace: str
    id: str
    parent: str
    name: str
    service: str
    began: float
    ended: float
    attributes: dict[str, str]


class Collector:
    """An OTLP/HTTP receiver on the loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                collector.spans += list(_spans(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of_job(self, job: str) -> list[Span]:
        """The spans of the job's trace, in the order in which they began."""
        traces = {span.trace for span in self.spans if span.attributes.get("scrimp.job") == job}
        return sorted((span for span in self.spans if span.trace in traces), key=lambda span: (span.began, span.ended))


def _spans(request: object) -> Iterator[Span]:
    for resource in request.resource_spans:  # type: ignore[attr-defined]
        service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {
                    each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes
                }
                times = (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                yield Span(*ids, span.name, service, *times, attributes)


def picture(spans: list[Span]) -> str:
    """The spans as bars over time, each under the one before; children are indented."""
    first, last = min(each.began for each in spans), max(each.ended for each in spans)
    scale = WIDTH / max(last - first, 1e-9)
    parents = {span.id: span.parent for span in spans}

    def depth(span_id: str) -> int:
        return 0 if parents.get(span_id, "") not in parents else 1 + depth(parents[span_id])

    height = ROW * (len(spans) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        "<title>The trace of one job, from the request to the certificate</title>",
        f'<rect width="{LEFT + WIDTH + RIGHT}" height="{height}" fill="#ffffff"/>',
    ]
    for number, span in enumerate(spans):
        y = ROW * (number + 1)
        x, width = LEFT + scale * (span.began - first), max(2.0, scale * (span.ended - span.began))
        name = escape(span.name.replace("{job_id}", "…"))
        lines += [
            f'<text x="{10 + 14 * depth(span.id)}" y="{y + 16}">{name}</text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="18" rx="2" fill="{COLOURS[span.service]}"/>',
            f'<text x="{x + width + 6:.1f}" y="{y + 16}" fill="#555555">{_long(span.ended - span.began)}</text>',
        ]
    for number, (service, colour) in enumerate(COLOURS.items()):
        x, y = LEFT + 130 * number, height - 12
        lines.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{y}">{service.removeprefix("scrimp-")}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _long(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


@contextmanager
def service(home: Path, collector: str) -> Iterator[str]:
    """`scrimp serve` in a home of its own; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
    environment = os.environ | {"SCRIMP_OTEL_ENDPOINT": collector}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for said in process.stdout:
            if said.startswith("ready"):
                break
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.stdout.read()


def job_on(url: str, home: Path) -> str:
    """Runs a small private job to its certificate; returns its id."""
    import scrimp

    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 5))
    rows = np.column_stack([x, x.sum(axis=1) > 0])
    file = home.parent / "trace.csv"
    np.savetxt(file, rows, delimiter=",", header="a,b,c,d,e,y", comments="", fmt="%.4f")
    spec = {
        "name": "trace",
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": list("abcde")},
        "privacy": {"sensitivity": "private", "records": 2000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "gdp"},
    }
    with scrimp.Client(url, (home / "admin.key").read_text().strip()) as client:
        dataset = client.create_dataset(spec, file).id
        job = client.submit(
            {
                "dataset": dataset,
                "privacy": {"target_epsilon": 1.0},
                "length": {"steps": 300},
                "optimizer": {"kind": "dp_sgd"},
            }
        ).id
        while client.job(job).status not in ("succeeded", "failed"):
            time.sleep(0.2)
    return job


def main() -> None:
    """Runs the service and the job, and writes the picture."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder, Collector() as collector:
        home = Path(folder) / "home"
        with service(home, collector.url) as url:
            job = job_on(url, home)
            time.sleep(3)  # the relay issues the certificate, and all send their spans
        spans = collector.of_job(job)
    PICTURE.write_text(picture(spans))
    print(f"wrote {PICTURE} with {len(spans)} spans")


if __name__ == "__main__":
    main()
