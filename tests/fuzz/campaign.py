"""Feeds a parser many inputs in a process that may die, watches it, starts it again and keeps what killed it.

python -m tests.fuzz.campaign --inputs 100000 --report benchmarks/reports/fuzz.md
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from core.errors import ServiceError
from tests.fuzz.cases import ANY, FORMATS, Case
from tests.fuzz.examine import MEMORY_BYTES, TIME_S, examine

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")
WORKER = [sys.executable, "-m", "tests.fuzz.worker"]
SILENCE_S = 120.0  # start of the process included


def engines(format: str) -> dict[str, float]:
    """Which share of the inputs each engine makes. atheris takes one parser, and has few wheels."""
    if format == ANY or importlib.util.find_spec("atheris") is None:
        return {"structured": 1.0}
    return {"structured": 0.5, "guided": 0.5}


@dataclass
class Campaign:
    """One parser's inputs and what became of them."""

    format: str
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    engines: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_bytes: int = 0
    deaths: int = 0
    coverage: str = "-"
    took_s: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.outcomes.values())

    def run(self, inputs: int, seed: int, found: Path, worker: list[str] | None = None) -> Campaign:
        """Feed it `inputs` inputs; what breaks the property, kills the process or hangs it is kept under `found`."""
        began = time.monotonic()
        for engine, share in engines(self.format).items():
            with tempfile.TemporaryDirectory(dir=_memory_folder()) as name:
                folder = Path(name)
                left = round(inputs * share)
                while left > 0:
                    (folder / "scratch").mkdir(exist_ok=True)
                    done = self._feed([*(worker or WORKER), self.format, engine, str(seed), str(left), name], found)
                    self.engines[engine] += done
                    left, seed = left - done, seed + left
                    if not done:
                        raise RuntimeError(f"the {engine} engine of {self.format} does nothing")
        self.took_s += time.monotonic() - began
        return self

    def _feed(self, command: list[str], found: Path) -> int:
        """One process, to its end. Returns how many inputs it took."""
        folder = Path(command[-1])
        environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with (
            (folder / "stderr").open("w+") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment, start_new_session=True
            ) as process,
        ):
            done, hung = self._listen(process, found)
            if hung:
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            errors.seek(0)
            told = errors.read()
        seen = re.findall(r"cov: (\d+) ft: (\d+)", told)
        if seen:
            self.coverage = f"{seen[-1][0]} branches, {seen[-1][1]} features"
        if hung or status != 0:
            if not done and not (folder / "current").exists():
                raise RuntimeError(told[-2000:])
            done += 1
            self._died(folder, found, "hang" if hung else f"status {status}")
        return done

    def _listen(self, process: subprocess.Popen[bytes], found: Path) -> tuple[int, bool]:
        done, buffer = 0, b""
        assert process.stdout is not None
        while True:
            if not select.select([process.stdout], [], [], SILENCE_S)[0]:
                return done, True
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return done, False
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                kind, took_s, peak_kib, case, parser = json.loads(line)
                done += 1
                self.slowest_s = max(self.slowest_s, took_s)
                self.peak_bytes = max(self.peak_bytes, peak_kib * 1024)
                self.outcomes[kind] += 1
                self.accepted[parser] += kind == "accepted"
                if case is not None:
                    self._found(found, kind, bytes.fromhex(case))

    def _died(self, folder: Path, found: Path, how: str) -> None:
        """The process is gone. That is no finding where the service would say why: each input has a process there."""
        self.deaths += 1
        shutil.rmtree(folder / "scratch", ignore_errors=True)
        (folder / "scratch").mkdir()
        content = (folder / "current").read_bytes()
        try:
            kind = examine(Case.of(content), folder / "scratch", limited=True)
        except (ServiceError, AssertionError) as error:
            kind = f"finding: {how}, then {error}"
        kind = f"finding: {how}" if how == "hang" else f"{kind} (its process died: {how})"
        self.outcomes[kind] += 1
        self._found(found, kind, content)

    def _found(self, found: Path, kind: str, content: bytes) -> None:
        if kind.startswith("finding") and kind not in self.findings:
            self.findings.append(kind)
        name = f"{self.format}-{sha256(kind.encode()).hexdigest()[:8]}"
        if not (found / name).exists():
            found.mkdir(parents=True, exist_ok=True)
            (found / name).write_bytes(content)


def _memory_folder() -> str | None:
    """Files that live for a millisecond need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


def report(campaigns: list[Campaign], seed: int) -> str:
    lines = [
        "# Fuzzing of the parsers",
        "",
        f"`make nightly`, seed {seed}. A process of at most {MEMORY_BYTES // 2**20} MiB of address space parses every",
        f"input; every 1,000th is parsed again through `run_limited` ({TIME_S:g} s). `structured`: files of schemas",
        "that hypothesis draws, in every dialect, 40 % of them damaged. `guided`: atheris, guided by the coverage of",
        "the Python in app/formats, zipfile, numpy's NPY reader and json; the C and C++ below (csv, zlib, Arrow) is",
        "not instrumented. A process that died is no finding if the service states the cause: it parses each file in a",
        "separate process.",
        "",
        "| parser | inputs | structured | guided | findings | process died | slowest | peak memory | coverage | took |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.format} | {each.inputs:,} | {each.engines['structured']:,} | {each.engines['guided']:,} "
        f"| {len(each.findings)} | {each.deaths} | {each.slowest_s * 1e3:.0f} ms | {each.peak_bytes // 2**20} MiB "
        f"| {each.coverage} | {each.took_s:.0f} s |"
        for each in campaigns
    ]
    lines += ["", "Outcomes:", ""]
    for each in campaigns:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in each.outcomes.most_common())
        lines += [f"* {each.format}: {kinds}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--inputs", type=int, default=100_000, help="for each parser")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--formats", nargs="*", default=list(FORMATS))
    options.add_argument("--report", type=Path)
    options.add_argument("--found", type=Path, default=CORPUS / "found", help="where inputs that break it are kept")
    given = options.parse_args()
    campaigns = []
    for format in given.formats:
        campaigns.append(Campaign(format).run(given.inputs, given.seed, given.found))
        print(report(campaigns, given.seed), flush=True)
        if given.report is not None:
            given.report.write_text(report(campaigns, given.seed))
    sys.exit(any(each.findings for each in campaigns))


if __name__ == "__main__":
    main()
