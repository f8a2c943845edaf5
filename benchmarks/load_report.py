"""Writes benchmarks/reports/load.md from the measurements."""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

REPORT = Path(__file__).parent / "reports" / "load.md"
PACKAGES = ("fastapi", "uvicorn", "uvloop", "sqlalchemy", "psycopg")
WHO = ("API", "PostgreSQL", "pricing", "relay", "Redis", "client")


@dataclass
class Phase:
    """One load: medians over its runs. `cpu` is CPU milliseconds per request, by process group."""

    name: str
    rate: float
    quantiles_ms: dict[float, float]
    cpu: dict[str, float]
    refused: int
    profile: dict[str, float] = field(default_factory=dict)


def write_report(phases: list[Phase], options: argparse.Namespace, explained: str) -> None:
    loads = [phase for phase in phases if "readers" not in phase.name]
    events = next(phase for phase in phases if "readers" in phase.name)
    profiled = [phase for phase in loads if phase.profile]
    report = f"""# The API under load

`python benchmarks/bench_load.py` on {machine()}.

{options.apis} API processes, the relay, PostgreSQL 18 (defaults: every commit waits for the disk) and Redis share the
cores with the client; the table has its share. The database holds {options.rows:,} finished jobs. Medians of
{options.runs} runs of {options.seconds:g} s; load average during the run: {os.getloadavg()[1]:.1f}. An open loop
sends requests at fixed times, and latency counts from those times.

| load | answered/s | p50, ms | p95, ms | p99, ms | other answers | {" | ".join(WHO)} |
|{"---|" * (6 + len(WHO))}
{chr(10).join(_row(phase) for phase in loads)}

The last {len(WHO)} columns are CPU milliseconds a request. Jobs of one data set are admitted one after the other:
each hold waits for the account's row until the previous commit is on the disk.

## Events

{events.name}: seen after {events.quantiles_ms[0.5]:.0f} ms (p50), {events.quantiles_ms[0.95]:.0f} ms (p95),
{events.quantiles_ms[0.99]:.0f} ms (p99) after the moment before the commit; {events.refused} not seen. CPU of the APIs:
{events.cpu["API"] / 10:.0f} % of a core.

## Where an API's time goes

Share of samples of the threads that hold the interpreter (py-spy), in a closed loop.

| part | {" | ".join(phase.name.split(",")[0] for phase in profiled)} |
|{"---|" * (1 + len(profiled))}
{chr(10).join(_profile_rows(profiled))}

## The query plan of a page in the middle

```
{explained}
```
"""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report, encoding="utf-8")
    print(report)


def _row(phase: Phase) -> str:
    quantiles = " | ".join(f"{phase.quantiles_ms[q]:.1f}" for q in (0.5, 0.95, 0.99))
    cpu = " | ".join(f"{phase.cpu.get(who, 0.0):.2f}" for who in WHO)
    return f"| {phase.name} | {phase.rate:.0f} | {quantiles} | {phase.refused} | {cpu} |"


def _profile_rows(phases: list[Phase]) -> list[str]:
    parts = sorted(set().union(*(phase.profile for phase in phases)), key=lambda part: -phases[0].profile.get(part, 0))
    shares = {part: [phase.profile.get(part, 0.0) for phase in phases] for part in parts}
    return [f"| {part} | " + " | ".join(f"{100 * share:.0f} %" for share in shares[part]) + " |" for part in parts]


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    cpu = models[0].split(":")[1].strip() if models else platform.processor()
    python = f"Python {platform.python_version()}"
    return f"{cpu}, {os.cpu_count()} cores, {python} ({loop_ms():.0f} ms of CPU for a loop of a million), {packages}"


def loop_ms() -> float:
    """Measures the machine's speed: CPU time of a loop of a million additions, the least of five."""

    def once() -> float:
        began, total = time.process_time(), 0
        for number in range(1_000_000):
            total += number
        return 1e3 * (time.process_time() - began)

    return min(once() for _ in range(5))
