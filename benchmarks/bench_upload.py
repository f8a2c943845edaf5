"""Registers a large file: sent in pieces, interrupted twice by kill -9, resumed, read in the background.

    python benchmarks/bench_upload.py [--gib 5] [--folder FOLDER] [--report FILE]

Starts `scrimp serve` in a home of its own, over SQLite. The file is an NPZ archive of random float32 records. A client
process sends it and is killed at a third and at two thirds; a third one resumes and registers it by its upload. The
peaks of memory are VmHWM of the API's process and of the process that parses. Needs three times the file on disk.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import psutil  # noqa: E402

from scrimp.client import Client  # noqa: E402
from scrimp.models import Dataset  # noqa: E402

FEATURES, CLASSES, AT_ONCE = 784, 10, 20_000
GIB = 2**30
KILLED_AT = (1 / 3, 2 / 3)
POLL_S = 0.2
TITLE = "# A large file, sent in pieces and read in the background\n"


def written(path: Path, gib: float) -> int:
    """Writes the archive; returns its number of records."""
    records = int(gib * GIB) // (4 * FEATURES + 8)
    draw = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, dtype, shape in (("x", "<f4", (records, FEATURES)), ("y", "<i8", (records,))):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(out, header)
                for start in range(0, records, AT_ONCE):
                    n = min(AT_ONCE, records - start)
                    x = draw.standard_normal((n, FEATURES), dtype=np.float32) if name == "x" else None
                    out.write((np.arange(start, start + n) % CLASSES if x is None else x).astype(dtype).tobytes())
    return records


@dataclass
class Peaks:
    """The largest VmHWM of the API's process and of its helpers, in MiB, until `over` is set."""

    api: int
    over: threading.Event = field(default_factory=threading.Event)
    of_api: float = 0.0
    of_parser: float = 0.0

    def look(self) -> None:
        """Looks again and again."""
        while not self.over.wait(POLL_S):
            self.of_api = max(self.of_api, peak(self.api))
            for child in psutil.Process(self.api).children():
                self.of_parser = max(self.of_parser, peak(child.pid))


def peak(pid: int) -> float:
    """A process's VmHWM in MiB; 0 if it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def serving(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Starts the service; returns it once it answers, with its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output = home.parent / "serve.out"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with output.open("wb") as log:
        line = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment, cwd=ROOT)
    while "ready in" not in output.read_text():
        if process.poll() is not None:
            raise SystemExit(output.read_text())
        time.sleep(POLL_S)
    return process, f"http://127.0.0.1:{port}"


def send(url: str, key: str, file: Path) -> None:
    """In a process of its own: sends the file, and prints how much is sent."""
    with Client(url, key) as client:
        print("sent", client.upload(file, lambda done, _whole: print(done, flush=True)).id, flush=True)


def sent_in_spite_of_kills(url: str, key: str, file: Path, cache: Path) -> tuple[str, list[str]]:
    """Sends the file, with a kill at each of KILLED_AT; returns the upload's id, and what each client sent."""
    size, told = file.stat().st_size, []
    for until in (*KILLED_AT, 2.0):
        line = [sys.executable, __file__, "--send", url, key, str(file)]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        first = last = -1
        for said in process.stdout:
            if said.startswith("sent"):
                process.wait()
                return said.split()[1], [*told, f"{max(first, 0) / size:.0%} to 100 %"]
            last = int(said)
            first = last if first < 0 else first
            if last > until * size:
                process.kill()
                break
        process.wait()
        told.append(f"{first / size:.0%} to {last / size:.0%}, killed")
    raise SystemExit("the file was not sent")


@dataclass
class Registered:
    """What came of the registration.

    Attributes:
        states: those that the data set had.
        answered: when the registration was answered; `ready` likewise, both by time.monotonic.
        shares: of the file, as progress was told.
    """

    dataset: Dataset
    states: list[str]
    answered: float
    ready: float
    shares: list[float]


def registered(url: str, key: str, upload: str, records: int) -> Registered:
    """Registers the upload, and waits until it is ready."""
    task = {"kind": "classification", "label": "y", "classes": list(range(CLASSES))}
    declared = max(1000, round(records, -3))
    privacy = {"sensitivity": "private", "records": declared, "cap": {"epsilon": 4.0}, "filter": "gdp"}
    features = {"kind": "tensor", "array": "x"}
    spec = {"name": "large", "format": "npz", "task": task, "features": features, "privacy": privacy, "upload": upload}
    with Client(url, key) as client:
        found: Dataset = client.create_dataset(spec, wait=False)
        made = Registered(found, [found.state], time.monotonic(), 0.0, [])
        while found.state == "reading":
            time.sleep(1.0)
            found = client.dataset(found.id)
            if found.reading is not None:
                made.shares.append(found.reading.bytes_read / found.reading.bytes)
    made.dataset, made.ready = found, time.monotonic()
    made.states.append(found.state)
    return made


def measured(folder: Path, gib: float) -> str:
    """Runs it all; returns the report."""
    file = folder / "large.npz"
    records = written(file, gib)
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    process, url = serving(folder / "home")
    try:
        key = (folder / "home" / "admin.key").read_text().strip()
        children = psutil.Process(process.pid).children(recursive=True)
        api = next(each.pid for each in children if "scrimp.api" in each.cmdline())
        peaks, idle = Peaks(api), peak(api)
        looking = threading.Thread(target=peaks.look, daemon=True)
        looking.start()
        began = time.monotonic()
        upload, told = sent_in_spite_of_kills(url, key, file, folder / "cache")
        arrived = time.monotonic()
        made = registered(url, key, upload, records)
        peaks.over.set()
        looking.join()
    finally:
        process.terminate()
        process.wait(60)
    read = made.dataset.reading.read if made.dataset.reading is not None else None
    if read is None:
        raise SystemExit(f"the file was rejected: {made.dataset.reading}")
    right = made.dataset.content_sha256 == sha256 and read.records == records
    rising = all(a <= b for a, b in itertools.pairwise(made.shares))
    stored = sum(each.stat().st_size for each in (folder / "home" / "storage").rglob("*") if each.is_file())
    rows = [
        *((f"client {number}, of the file", each) for number, each in enumerate(told, 1)),
        ("states", " → ".join(made.states)),
        ("SHA-256 and number of records are right", "yes" if right else "NO"),
        ("progress never falls", "yes" if rising else "NO"),
        ("sending, with three starts of the client and its SHA-256", f"{arrived - began:.0f} s"),
        ("answer to the registration", f"{made.answered - arrived:.2f} s"),
        ("`reading` to `ready`", f"{made.ready - made.answered:.0f} s"),
        ("API process, peak of memory before", f"{idle:.0f} MiB"),
        ("API process, peak of memory", f"{peaks.of_api:.0f} MiB"),
        ("parsing process, peak of memory", f"{peaks.of_parser:.0f} MiB"),
        ("stored at the end", f"{stored / GIB:.2f} GiB"),
    ]
    return reported(gib, records, file.stat().st_size, rows)


def reported(gib: float, records: int, size: int, rows: list[tuple[str, str]]) -> str:
    """The report."""
    return "\n".join(
        [
            TITLE,
            f"`python benchmarks/bench_upload.py --gib {gib:g}`: `scrimp serve` over SQLite, {records:,} records of",
            f"{FEATURES} float32 features in an NPZ file of {size:,} bytes, over loopback.",
            f"{platform.system()}, Python {platform.python_version()}, {os.cpu_count()} processors ({processor()}),",
            "shared with other work. Seconds are by the wall clock.\n",
            "| what | |",
            "|---|---:|",
            *(f"| {what} | {found} |" for what, found in rows),
            "",
        ]
    )


def processor() -> str:
    """The processor's name."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--report", type=Path, default=None)
    parser.add_argument("--send", nargs=3, metavar=("URL", "KEY", "FILE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.send is not None:
        send(asked.send[0], asked.send[1], Path(asked.send[2]))
        return
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        if shutil.disk_usage(folder).free < 3.5 * asked.gib * GIB:
            raise SystemExit("not enough disk")
        report = measured(folder, asked.gib)
    finally:
        shutil.rmtree(folder)
    print(report)
    if asked.report is not None:
        asked.report.write_text(report)


if __name__ == "__main__":
    main()
