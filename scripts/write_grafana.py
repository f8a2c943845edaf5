"""Writes deploy/grafana/scrimp.json, Grafana's dashboard, from the list of panels below."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "scrimp.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, COLUMNS = 8, 7, 3

# Title, unit, and the series: expression and legend.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Jobs by status", "short", (("scrimp_jobs", "{{status}}"),)),
    ("Queued jobs", "short", (("scrimp_queued_jobs", "{{device}}"),)),
    ("Age of the oldest queued job", "s", (("scrimp_queue_oldest_seconds", "{{device}}"),)),
    ("Workers", "short", (("scrimp_workers", "{{device}} {{state}}"),)),
    (
        "Claims and running attempts",
        "short",
        (("rate(scrimp_claims_total[5m]) * 60", "claims a minute"), ("scrimp_attempts_running", "running")),
    ),
    ("Ended attempts an hour", "short", (("rate(scrimp_attempts_total[1h]) * 3600", "{{outcome}}"),)),
    (
        "Attempts' processes by signal, an hour",
        "short",
        (("rate(scrimp_attempt_processes_total[1h]) * 3600", "{{ended}}"),),
    ),
    ("Lease losses an hour", "short", (("rate(scrimp_lease_losses_total[1h]) * 3600", "lost"),)),
    ("Failed jobs by cause", "short", (("scrimp_job_failures", "{{cause}}"),)),
    ("Share spent and held", "percentunit", (("scrimp_ledger_share", "{{dataset}} {{account}} {{state}}"),)),
    ("Budget in units", "short", (("scrimp_ledger_units", "{{dataset}} {{account}} {{state}}"),)),
    (
        "Ledgers: valid, behind",
        "short",
        (("min(scrimp_ledger_valid)", "valid"), ("max(scrimp_ledger_behind)", "behind")),
    ),
    ("Since the last full check", "s", (("time() - scrimp_ledger_checked_timestamp_seconds", "{{dataset}}"),)),
    ("The relay's lag", "s", (("scrimp_outbox_oldest_seconds", "{{topic}}"),)),
    ("The relay's tasks", "short", (("scrimp_outbox_rows", "{{topic}}"),)),
    ("Requests a second", "reqps", (("sum by (status) (rate(scrimp_http_requests_total[5m]))", "{{status}}"),)),
    (
        "Time of requests, 95 of 100",
        "s",
        (
            (
                "histogram_quantile(0.95, sum by (le, route) (rate(scrimp_http_request_seconds_bucket[5m])))",
                "{{route}}",
            ),
        ),
    ),
    (
        "Pricing",
        "short",
        (
            ("scrimp_pricing_queue", "waiting"),
            ("sum by (found) (rate(scrimp_prices_total[5m])) * 60", "{{found}} a minute"),
        ),
    ),
    (
        "Webhooks",
        "short",
        (("scrimp_webhook_deliveries", "messages {{status}}"), ("scrimp_webhooks", "webhooks {{state}}")),
    ),
    (
        "Readings, uploads, predictions",
        "short",
        (
            ("scrimp_readings", "readings {{state}}"),
            ("scrimp_uploads_open", "uploads"),
            ("scrimp_predictions", "predictions {{status}}"),
        ),
    ),
    ("Clocks", "s", (("scrimp_clock_skew_seconds", "{{process}}"),)),
    ("Jobs by key", "short", (("topk(20, scrimp_key_jobs)", "{{name}} {{state}}"),)),
    (
        "Workers that a key kept busy, over an hour",
        "short",
        (("topk(20, rate(scrimp_key_job_seconds_total[1h]))", "{{name}}"),),
    ),
)


def dashboard() -> dict[str, object]:
    """The dashboard, as Grafana imports it."""
    panels = [
        {
            "id": number + 1,
            "title": title,
            "type": "timeseries",
            "datasource": SOURCE,
            "gridPos": {
                "x": WIDTH * (number % COLUMNS),
                "y": HEIGHT * (number // COLUMNS),
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": None}, "overrides": []},
            "targets": [
                {"refId": chr(65 + index), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
                for index, (expr, legend) in enumerate(series)
            ],
        }
        for number, (title, unit, series) in enumerate(PANELS)
    ]
    return {
        "title": "Scrimp",
        "uid": "scrimp",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def main() -> None:
    """Writes the file."""
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
