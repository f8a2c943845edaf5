"""Measures the keyed noise's cost per number, per Poisson batch and per sparse linear step. Writes reports/noise.md.

All compared variants take turns in one process, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from bench_training import BUCKETS, PARTS, ROOT, Reviews, Steps, key, machine, reviews, stand_in  # noqa: E402

from core.native.library import PATHS, load  # noqa: E402
from worker.models.linear import Linear  # noqa: E402
from worker.noise import native  # noqa: E402
from worker.noise.batch_sampling import PoissonSampler  # noqa: E402
from worker.noise.gaussian import NoisedGradient, PublicRelease  # noqa: E402
from worker.noise.generator import KeyedStream, gaussians  # noqa: E402
from worker.noise.native import Native  # noqa: E402
from worker.noise.release import SHIFT, Address, noised_mean  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "noise.md"
NUMBERS = 2**20
DRAWS = [(10_000_000, 1e-4), (1_000_000, 1e-3), (1_000_000, 0.05), (100_000, 0.01), (100_000, 0.5)]


class FloatRelease(PublicRelease):
    """Adds torch.randn in plain floating point, for comparison only: it protects nothing."""

    def release(self, private_sum: dict[str, torch.Tensor], step: int) -> NoisedGradient:
        return super().release(
            {name: randn(v.numel()).view_as(v).mul_(10.0).add_(v) for name, v in private_sum.items()}, step
        )


class InPython(Steps):
    """Steps where no library was built."""

    def run(self, steps: int) -> None:
        kept, native.NATIVE = native.NATIVE, None
        super().run(steps)
        native.NATIVE = kept


def randn(size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def processor_times(kinds: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Runs all kinds in turns. Returns the median and the least processor time of each, in seconds."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for step in range(1, rounds + 2):
        for name, run in kinds.items():
            began = time.process_time()
            run(step)
            if step > 1:
                taken[name].append(time.process_time() - began)
    return {name: (statistics.median(each), min(each)) for name, each in taken.items()}


def numbers(rounds: int) -> list[str]:
    """Measures nanoseconds per number on one thread."""
    stream, sums = KeyedStream(key("n")), randn(NUMBERS) * 40
    words, out, kept = (torch.empty(NUMBERS, dtype=torch.int64) for _ in range(3))
    stream.fill(kept.numpy(), 0, 0, 0, 0)

    def finish(library: Native | None, words: torch.Tensor, step: int) -> None:
        before, native.NATIVE = native.NATIVE, library
        noised_mean(sums, words, 10.0, 1000, Address(stream, step, 0), out=out.view(torch.float64))
        native.NATIVE = before

    def whole(library: Native | None, step: int) -> None:
        stream.fill(words.numpy(), step, 0, 0, 0)
        finish(library, words, step)

    opened = {f"compiled, {path}": load(path=path) for path in reversed(PATHS)}
    libraries = {name: Native(library) for name, library in opened.items() if library is not None}
    kinds: dict[str, Callable[[int], Any]] = {
        "words alone (AES-256-CTR)": lambda step: stream.fill(words.numpy(), step, 0, 0, 0)
    }
    for name, library in [*libraries.items(), ("Python", None)]:
        kinds[f"{name}: Gaussians, addition, rounding, division"] = partial(finish, library, kept)
        kinds[f"**{name}: words and all of it**"] = partial(whole, library)
    kinds["Python: Gaussians alone (erf⁻¹)"] = lambda step: gaussians(kept >> SHIFT)
    kinds["torch.randn, float64, not cryptographic, added in floats"] = lambda step: (
        randn(NUMBERS).mul_(10).add_(sums).div_(1000)
    )
    kinds["torch.randn, float32, alone"] = lambda step: torch.randn(NUMBERS)
    lines = ["| a million at a time, one thread | processor ns each, median | least |", "|---|---|---|"]
    for name, times in processor_times(kinds, rounds).items():
        lines.append(f"| {name} | " + " | ".join(f"{each / NUMBERS * 1e9:.1f}" for each in times) + " |")
    return lines


def draws(rounds: int) -> list[str]:
    """Measures milliseconds per Poisson batch."""
    lines = ["| records | rate q | processor ms, median | least |", "|---|---|---|---|"]
    kinds = {f"{records:,} | {rate}": PoissonSampler(key("s"), rate, records).draw for records, rate in DRAWS}
    return lines + [
        f"| {name} | {1000 * median:.2f} | {1000 * least:.2f} |"
        for name, (median, least) in processor_times(kinds, rounds).items()
    ]


def steps(data: Reviews, rounds: int, count: int) -> list[str]:
    """Runs full-batch steps, with all parts of a private step or with fewer."""
    records, model = data.split(0)[0], Linear(BUCKETS, 2)
    n = len(records)
    kinds = {
        "non-private": Steps(records, model, private=False),
        "clipping alone, no noise": Steps(records, model, private=True),
        "torch.randn, not cryptographic": Steps(records, model, private=True),
        "in Python, where no library was built": InPython(records, model, private=True),
        "as shipped, without look-ahead": Steps(records, model, private=True, ahead=False),
        "**as shipped**": Steps(records, model, private=True),
    }
    kinds["clipping alone, no noise"].release = PublicRelease(n)
    kinds["torch.randn, not cryptographic"].release = FloatRelease(n)
    for each in kinds.values():
        each.run(3)
        each.times = {name: [] for name in PARTS}
    for _ in range(rounds):
        for each in kinds.values():
            each.run(count)
    lines = [
        "| step | ms | gradient | noise and division | its share | least ms | processor ms | of non-private "
        "| by least | by processor |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    base = kinds["non-private"]
    for name, each in kinds.items():
        step, gradient, release, processor = (
            each.median_ms(part) for part in ("step", "gradient", "release", "processor")
        )
        least = 1000 * min(each.times["step"])
        lines.append(
            f"| {name} | {step:.2f} | {gradient:.2f} | {release:.2f} | {release / step:.1%} | {least:.2f} | "
            f"{processor:.2f} | {base.median_ms('step') / step:.2f} | {1000 * min(base.times['step']) / least:.2f} | "
            f"{base.median_ms('processor') / processor:.2f} |"
        )
    return lines


HEAD = """\
# The noise

Made by `python benchmarks/bench_noise.py`. Machine: {machine}.

A release is the correctly rounded sum with a true Gaussian (`worker/noise/rounding.py`). Words are made ahead on
another thread while the step computes its gradient. One compiled pass (`core/native/noise.c`) makes Gaussians of
them, adds, rounds and divides; Python does the same, to the bit, where no library was built. All compared kinds take
turns in one process."""

DRAW = """\
Below q = 1/16 a draw goes from one joining record to the next (`worker/noise/batch_sampling.py`)."""

STEP = """\
Full batch, sparse: {what}, hashed to {buckets:,} buckets, two classes: {coordinates:,} coordinates. "Share" is the part
of the step's clock time that waits for noise, rounding and division. Processor time is that of all threads, so it
includes the noise made meanwhile in full. Where others use the machine, the least times say more than the medians."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="how often the kinds take turns")
    parser.add_argument("--stand-in", action="store_true", help="synthetic data of the reviews' shape")
    arguments = parser.parse_args()
    where, threads = machine(), torch.get_num_threads()
    data = stand_in("synthetic data of the shape of the IMDB reviews") if arguments.stand_in else reviews()
    torch.set_num_threads(1)
    text = HEAD.format(machine=where) + "\n\n## A number\n\n" + "\n".join(numbers(arguments.rounds))
    text += "\n\n## A Poisson batch\n\n" + DRAW + "\n\n" + "\n".join(draws(arguments.rounds))
    text += "\n\n## A step\n\n" + STEP.format(what=data.what, buckets=BUCKETS, coordinates=2 * BUCKETS)
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        text += f"\n\n### {count} torch thread{'s' if count > 1 else ''}\n\n" + "\n".join(
            steps(data, arguments.rounds, 10)
        )
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
