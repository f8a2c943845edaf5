"""Measures an attempt on data larger than memory: its memory, and time a step, by the number of records.

    python benchmarks/bench_data.py [--records 1000000 5000000 20000000] [--folder FOLDER] [--report FILE] [--reading]

Each row is one attempt of the product: a process of the fork server, in its sandbox, with records on disk as a
registration stores them. The data are synthetic: 100 dense float32 features, three classes, private, with DP-SGD on a
linear model. `anonymous` is the peak of memory that the kernel cannot take back (RssAnon); `mapped` is the peak of file
pages in the process's map (RssFile), which the kernel drops when it needs room. Times are processor time of all the
attempt's threads. Early Poisson steps check the hashes of chunks that they read for the first time. The files are
deleted at the end; 20 million records take 8.2 GB of disk.
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402

from app.formats.slot_order import SlotWriter  # noqa: E402
from core.parts.layout import Layout  # noqa: E402
from core.parts.part_reader import PartFile  # noqa: E402
from core.parts.part_writer import PartWriter  # noqa: E402
from core.parts.sealed import DataKey  # noqa: E402
from core.parts.stored_records import StoredPart  # noqa: E402
from tests.worker.support import Supervisor, forks, spec, start_of  # noqa: E402
from worker.channel import Channel  # noqa: E402
from worker.messages import TO_SUPERVISOR, BlockStart, Digest, Failed, Finished, Ready  # noqa: E402

FEATURES, CLASSES, BATCH = 100, 3, 1024
AT_ONCE = 50_000
POLL_S = 0.005
STEPS = {"poisson": 600, "full_batch": 3}
MOST_FULL = 20_000_000  # records of the largest full batch
TITLE = """# Data larger than memory

Attempts on synthetic records of 100 dense float32 features on disk: a linear model with three classes, DP-SGD, Poisson
batches of 1,024 expected records, or full batches (`python benchmarks/bench_data.py`). Each row is one attempt of the
product, in its sandbox.
"""
NOTES = """
* *Anonymous* is the peak of memory that the kernel cannot take back. It depends on the rows of a pass, which admission
  chooses by public sizes, and on the number of records only by the index of chunks: 0.3 bytes a record. *Mapped* are
  file pages, which the kernel drops when it needs the room.
* Times are processor time of all threads, on a machine with other work. A full batch reads every record in every step,
  so its time grows with them.
* Early Poisson steps check the hashes of the chunks that they read for the first time: a chunk holds 327 records.
"""
READING = "\n## Reading ahead\n"
HEAD = (
    "| records | sampling | rows a pass | anonymous, MiB | mapped, MiB | s to `ready` | s to the first step's end "
    "| s a step, first block | s a step, last blocks |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|"
)


def generated(folder: Path, records: int, key: DataKey | None = None, slots: int | None = None) -> dict[str, Any]:
    """Writes a part of synthetic records, sealed if there is a key, and in the order of slots if it has some. Returns
    the start message's entry for it."""
    weights = np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)

    def block(number: int, n: int) -> StoredPart:
        x = np.random.default_rng((1, number)).standard_normal((n, FEATURES), dtype=np.float32)
        return StoredPart(x, (x @ weights).argmax(axis=1).astype(np.int64))

    path = folder / f"{records}{'.sealed' if key else ''}.arrow"
    seal = None if key is None else {"key": key.key.hex(), "wrap": key.wrap.hex()}
    layout = Layout.of(block(0, 1))
    with PartWriter(path, layout, key=key) if slots is None else SlotWriter(path, layout, slots, key=key) as writer:
        for number, start in enumerate(range(0, records, AT_ONCE)):
            writer.add(block(number, min(AT_ONCE, records - start)))
        return {"path": str(path), "sha256": writer.close(), "seal": seal}


@dataclass
class Watch:
    """Peaks of a process's memory, in KiB."""

    pid: int
    anonymous: int = 0
    mapped: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Looks until the process has ended."""
        while not self.ended.wait(POLL_S):
            try:
                status = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                return
            found = {name: int(size) for name, size in re.findall(r"(RssAnon|RssFile):\s+(\d+)", status)}
            self.anonymous = max(self.anonymous, found.get("RssAnon", 0))
            self.mapped = max(self.mapped, found.get("RssFile", 0))


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def measured(folder: Path, part: dict[str, Any], records: int, sampling: str) -> str:
    """Runs one attempt, and returns its row."""
    how: dict[str, Any] = {"kind": sampling} | ({"expected_batch_size": BATCH} if sampling == "poisson" else {})
    job = spec(sampling=how, length={"steps": STEPS[sampling]}, evaluation=None)
    shape = {"records_train": records, "records_holdout": 0, "features": FEATURES, "outputs": CLASSES, "sparse": False}
    out = Path(tempfile.mkdtemp(dir=folder))
    supervisor = Supervisor(start_of(job, shape, parts={"train": part}, output_dir=out))
    ours, theirs = socket.socketpair()
    with theirs:
        process = forks.start(theirs.fileno())
    fdinfo = Path(f"/proc/self/fdinfo/{process._handle}").read_text()
    pid = int(re.search(r"Pid:\s+(\d+)", fdinfo)[1])  # type: ignore[index]
    watch = Watch(pid)
    thread = threading.Thread(target=watch.run)
    thread.start()
    channel = Channel(ours, TO_SUPERVISOR)
    channel.send(supervisor.message())
    ready, blocks, began = 0.0, [], 0.0
    while True:
        message = channel.receive()
        if isinstance(message, Failed):
            raise SystemExit(f"the attempt failed: {message.code}")
        if isinstance(message, Ready):
            ready, rows = processor_s(pid), message.numerics.rows_per_pass
        elif isinstance(message, BlockStart):
            began, steps = processor_s(pid), message.last_step - message.first_step + 1
        elif isinstance(message, Digest) and message.step > 0:
            blocks.append(((processor_s(pid) - began) / steps, processor_s(pid)))
        if isinstance(message, Finished):
            break
        if (answer := supervisor.answer(message)) is not None:
            channel.send(answer)
    watch.ended.set()
    thread.join()
    channel.close()
    process.kill()
    process.close()
    later = float(np.median([each for each, _ in blocks[-(len(blocks) + 2) // 3 :]]))
    first = blocks[0][0]
    mib = (watch.anonymous / 1024, watch.mapped / 1024)
    return (
        f"| {records:,} | {sampling} | {rows} | {mib[0]:.0f} | {mib[1]:.0f} | {ready:.2f} | {ready + first:.2f} "
        f"| {first:.4f} | {later:.4f} |"
    )


def reading(folder: Path, records: int, batches: int = 100) -> list[str]:
    """What a Poisson batch's reading costs by itself, in ms: the most that reading ahead in a thread could hide.

    Returns:
        rows of a table: processor time where the file is cached, wall clock where it is not; each as it is read where
        the data fit in memory, and where the kernel is told of the batch's places first because they may not.
    """
    part = generated(folder, records)
    draw = np.random.default_rng(2)
    drawn = [np.sort(draw.choice(records, BATCH, replace=False)) for _ in range(batches)]

    def medians(clock: Callable[[], float], *, cold: bool, told: bool) -> float:
        file = PartFile(Path(part["path"]), part["sha256"], again=told)
        file._seen[:] = True  # hashes are checked once, in early steps
        with Path(part["path"]).open("rb") as raw:
            if cold:
                os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file._blob._map.madvise(
                    mmap.MADV_RANDOM
                )  # as if the data were larger than memory: no page is there by luck
            else:
                file.column("y")
            found = []
            for numbers in drawn:
                began = clock()
                if told:
                    file.announce(numbers)
                file.rows(numbers)
                found.append(1000 * (clock() - began))
        return float(np.median(found))

    processor, wall = time.process_time, time.perf_counter
    return [
        f"| cached, processor time | {medians(processor, cold=False, told=False):.2f} |",
        f"| cached, the kernel is told first, processor time | {medians(processor, cold=False, told=True):.2f} |",
        f"| not cached, wall clock | {medians(wall, cold=True, told=False):.1f} |",
        f"| not cached, the kernel is told first, wall clock | {medians(wall, cold=True, told=True):.1f} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--report", type=Path, default=None)
    parser.add_argument(
        "--reading", action="store_true", help="only what reading a batch costs, of the first --records"
    )
    asked = parser.parse_args()
    if asked.reading:
        with tempfile.TemporaryDirectory(dir=asked.folder) as place:
            print("\n".join(reading(Path(place), asked.records[0])))
        return
    rows = [HEAD]
    print(HEAD, flush=True)
    for records in asked.records:
        folder = Path(tempfile.mkdtemp(dir=asked.folder))
        try:
            if shutil.disk_usage(folder).free < records * (FEATURES * 4 + 16) * 1.5:
                print(f"(not enough disk for {records:,} records)", flush=True)
                continue
            began = time.process_time()
            part = generated(folder, records)
            print(f"(written in {time.process_time() - began:.0f} s of processor time)", flush=True)
            for sampling in STEPS:
                if sampling == "poisson" or records <= MOST_FULL:
                    rows.append(measured(folder, part, records, sampling))
                    print(rows[-1], flush=True)
        finally:
            shutil.rmtree(folder)
    if asked.report is not None:
        old = asked.report.read_text() if asked.report.exists() else ""
        ahead = "".join(old.partition(READING)[1:])  # written by hand from --reading
        asked.report.write_text("\n".join([TITLE, *rows, NOTES]) + "\n" + ahead)


if __name__ == "__main__":
    main()
