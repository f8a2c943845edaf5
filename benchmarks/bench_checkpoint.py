"""What a checkpoint costs: a state through the pipe, sealed, to disk; and back into an attempt's memory.

    python -m benchmarks.bench_checkpoint [--folder FOLDER]

A thread is the attempt. Processor time is of both ends together, elapsed time has the disk's.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path
from threading import Thread

import torch

from app.lifecycle.saved import FOLDER
from app.settings import Settings
from app.storage import objects
from core.contracts.stored_documents import SaltedSteps
from worker.attempt.job_checkpoints import Checkpoints
from worker.attempt.link import SupervisorLink
from worker.channel import Channel
from worker.messages import TO_CHILD, TO_SUPERVISOR, Checkpoint, More, Piece
from worker.optimizers.sharded import PIECE

SEGMENT = SaltedSteps(from_step=1, salt="ab" * 32, key_id="k")
SIZES = (10**4, 10**6, 3 * 10**7)  # numbers of a state
RUNS = 3


def measured(folder: Path, numbers: int) -> tuple[list[float], list[float]]:
    """(elapsed, processor) seconds to save a state, and to read it back; the best of RUNS."""
    state = torch.arange(numbers, dtype=torch.float64)
    saved, read = list[tuple[float, float]](), list[tuple[float, float]]()
    for run in range(RUNS):
        settings = Settings(home=folder, attempt_memory_bytes=2**40)
        kept = Checkpoints(settings, f"job_{numbers}_{run}", 2, "r", lambda _segment: bytes(range(32)))
        ours, theirs = socket.socketpair()
        link, channel = SupervisorLink(Channel(theirs, TO_CHILD)), Channel(ours, TO_SUPERVISOR)
        header = Checkpoint(step=1, before="0" * 64)
        began = time.perf_counter(), time.process_time()
        child = Thread(target=lambda link=link, header=header: link.save(header, iter(state.split(PIECE))))
        child.start()
        assert kept.wants(1, now=True)
        kept.begin(channel.receive(), 1, [SEGMENT])
        while not kept.add(channel.receive_bytes(channel.receive().size)):
            pass
        child.join()
        saved.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        found = kept.find([SEGMENT], {SEGMENT.salt: {1}})
        assert found is not None
        back = torch.zeros(numbers, dtype=torch.float64)
        began = time.perf_counter(), time.process_time()
        child = Thread(target=lambda link=link, back=back: [link.fill(each) for each in back.split(PIECE)])
        child.start()
        left = back.nbytes
        while left:
            assert isinstance(channel.receive(), More)
            content = found.read()
            channel.send(Piece(size=len(content)))
            channel.send_bytes(content)
            left -= len(content)
        child.join()
        read.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        assert torch.equal(back, state)
        found.close()
        objects.of(settings).remove(f"{FOLDER}/job_{numbers}_{run}")
    return [min(each) for each in zip(*saved, strict=True)], [min(each) for each in zip(*read, strict=True)]


def main() -> None:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary folder")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(dir=folder) as home:
        os.environ["SCRIMP_HOME"] = home
        for numbers in SIZES:
            (saved_s, saved_cpu_s), (read_s, read_cpu_s) = measured(Path(home), numbers)
            print(
                f"{8 * numbers / 1e6:8.2f} MB  save {1e3 * saved_s:8.1f} ms ({1e3 * saved_cpu_s:.1f} of processors)"
                f"  read {1e3 * read_s:8.1f} ms ({1e3 * read_cpu_s:.1f})"
            )


if __name__ == "__main__":
    main()
