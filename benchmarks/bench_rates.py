"""The service's rates, starts and idle costs against their aims, in one run of some five minutes.

    python benchmarks/bench_rates.py [--rows 1000000] [--seconds 5] [--runs 3]

Writes benchmarks/reports/rates.md. Run it on a quiet machine: the client is on the same cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import asyncio  # noqa: E402

from app.db.database import Database  # noqa: E402
from app.db.migrate import upgrade  # noqa: E402
from app.pricing.service import PricingService  # noqa: E402
from app.settings import Settings  # noqa: E402
from benchmarks import load_client as client  # noqa: E402
from benchmarks.bench_load import Deployment, Load, events_phase, loads, phase_of  # noqa: E402
from benchmarks.bench_pricing import PLANS, request  # noqa: E402
from benchmarks.load_report import WHO, Phase, machine  # noqa: E402
from benchmarks.serve_idle import Idle, idle, start_s  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "rates.md"
IMPORTS = 7


@dataclass(frozen=True)
class Aim:
    """A measured number and its aim: at least it, or at most."""

    what: str
    measured: float
    aim: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.aim if self.at_least else self.measured <= self.aim

    def row(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return (
            f"| {self.what} | {self.measured:.3g} {self.unit} | {sign} {self.aim:g} | {'yes' if self.met else 'no'} |"
        )


def import_s() -> float:
    """The median time of `import app.main` in a fresh interpreter, beyond the interpreter's own start."""

    def taken(statement: str) -> float:
        times = []
        for _ in range(IMPORTS):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return taken("import app.main") - taken("pass")


def first_prices(home: Path) -> list[float]:
    """The seconds of each first price of a Poisson plan, as a request waits for it in a service that has warmed up."""
    home.mkdir()
    settings = Settings(home=home)
    db = Database.of(settings)
    upgrade(settings.effective_database_url)
    pricing = PricingService(db, settings)
    try:
        pricing._warm()
        found = []
        for batch, records, steps, epsilon, delta in PLANS.values():
            asked = request("poisson", batch, records, steps, epsilon, delta)
            began = time.perf_counter()
            pricing.price(asked)
            found.append(time.perf_counter() - began)
        return found
    finally:
        pricing.close()
        db.close()


def closed(deployment: Deployment, load: Load, seconds: float, runs: int) -> Phase:
    def run(for_s: float = seconds) -> object:
        return client.closed(deployment.ports, load.make, connections=8, seconds=for_s, expect=load.expect)

    asyncio.run(run(1.5))  # type: ignore[arg-type] # a coroutine
    return phase_of(deployment, load.name, run, runs)


def write(
    aims: list[Aim], phases: list[Phase], events: Phase, processes: list[Idle], options: argparse.Namespace
) -> None:
    loads_table = "\n".join(_load(each) for each in phases)
    idle_table = "\n".join(
        f"| {each.name} | {each.cpu_percent:.2f} % | {each.pss_mib:.0f} | {each.wakeups:.1f} |" for each in processes
    )
    report = f"""# Rates, starts and idle costs

`python benchmarks/bench_rates.py` on {machine()}. Load average at the end: {os.getloadavg()[1]:.1f}.

| what | measured | aim | met |
|---|---|---|---|
{chr(10).join(each.row() for each in aims)}

Rates: medians of {options.runs} closed loops of {options.seconds:g} s with 8 connections, {options.apis} API processes,
the relay, PostgreSQL (every commit waits for the disk), Redis and the client on the same cores. The database holds
{options.rows:,} finished jobs, copies of one, so that their quotes are one text. Import and start: medians of {IMPORTS}
and 3; at the end of a start the API answers, and relay and workers begin to load. First prices: the worst of
{len(PLANS)} plans in a process that has warmed up.

## Processor time, in milliseconds a request

| load | answered/s | p50, ms | p99, ms | other answers | {" | ".join(WHO)} |
|{"---|" * (5 + len(WHO))}
{loads_table}

{events.name}: p50 {events.quantiles_ms[0.5]:.0f} ms, p95 {events.quantiles_ms[0.95]:.0f} ms; {events.refused} not seen;
the APIs take {events.cpu["API"] / 10:.0f} % of a core.

## An idle `scrimp serve`

| process | of a core | PSS, MiB | wake-ups a second |
|---|---|---|---|
{idle_table}
"""
    REPORT.write_text(report, encoding="utf-8")
    print(report)


def _load(phase: Phase) -> str:
    columns = [f"{phase.rate:.0f}", f"{phase.quantiles_ms[0.5]:.1f}", f"{phase.quantiles_ms[0.99]:.1f}"]
    spent = [f"{phase.cpu.get(who, 0.0):.2f}" for who in WHO]
    return "| " + " | ".join([phase.name, *columns, str(phase.refused), *spent]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--apis", type=int, default=2)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rates") as folder:
        imported, started = import_s(), start_s(Path(folder) / "home")
        print(f"import {imported:.2f} s, start {started:.2f} s", flush=True)
        processes = idle(Path(folder) / "home", options.idle)
        print(
            ", ".join(f"{each.name} {each.cpu_percent:.2f} % {each.pss_mib:.0f} MiB" for each in processes), flush=True
        )
        prices = first_prices(Path(folder) / "prices")
        print("first prices: " + ", ".join(f"{each:.2f} s" for each in prices), flush=True)
    with ExitStack() as stack:
        deployment = Deployment(stack, options.rows, options.apis)
        phases = [closed(deployment, load, options.seconds, options.runs) for load in loads(deployment)]
        events = events_phase(deployment, options.seconds)
    get, post, page = (each.rate for each in phases)
    aims = [
        Aim("POST with hold", post, 150, "/s", at_least=True),
        Aim("GET one job", get, 800, "/s", at_least=True),
        Aim(f"page of 50 of {options.rows:,}", page, 200, "/s", at_least=True),
        Aim("200 event readers, p95", events.quantiles_ms[0.95], 250, "ms"),
        Aim("idle, processor time", sum(each.cpu_percent for each in processes), 1, "% of a core"),
        Aim("idle, memory", sum(each.pss_mib for each in processes), 450, "MiB PSS"),
        Aim("start until ready", started, 3, "s"),
        Aim("`import app.main`", imported, 1.2, "s"),
        Aim("first Poisson price, the worst", max(prices), 0.5, "s"),
    ]
    write(aims, phases, events, processes, options)


if __name__ == "__main__":
    main()
