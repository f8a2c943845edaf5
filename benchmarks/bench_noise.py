"""Measures the keyed noise's cost: per number, and in a step of the sparse linear model. Writes reports/noise.md.

All compared variants take turns in one process, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from bench_training import BUCKETS, PARTS, ROOT, Reviews, Steps, key, machine, reviews, stand_in  # noqa: E402

from worker.models.linear import Linear  # noqa: E402
from worker.noise.ahead import StepNoise  # noqa: E402
from worker.noise.gaussian import NoisedGradient, PublicRelease  # noqa: E402
from worker.noise.generator import CHUNK, GaussianGenerator, gaussians  # noqa: E402
from worker.noise.rounding import add_noise  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "noise.md"
NUMBERS = 2**20


class FloatRelease(PublicRelease):
    """Adds noise in plain floating point, for comparison only: it protects nothing, or falls to known attacks."""

    def __init__(self, divisor: int, draw: Callable[[int, int], torch.Tensor]) -> None:
        super().__init__(divisor)
        self._draw = draw

    def release(self, private_sum: dict[str, torch.Tensor], step: int) -> NoisedGradient:
        noised = {name: self._draw(step, v.numel()).view_as(v).mul_(10.0).add_(v) for name, v in private_sum.items()}
        return super().release(noised, step)


def randn(step: int, size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def sum_of_four(generator: GaussianGenerator) -> Callable[[int, int], torch.Tensor]:
    """Adds four Gaussians of the same generator and halves the sum, as in Holohan & Braghin 2021."""

    def draw(step: int, size: int) -> torch.Tensor:
        result = torch.empty(size, dtype=torch.float64)
        for start in range(0, size, CHUNK):
            out = result[start : start + CHUNK]
            bits = torch.empty(len(out), dtype=torch.int64)
            for tensor in range(4):
                generator.fill_bits(bits, step, tensor, start)
                if tensor == 0:
                    gaussians(bits, out)
                else:
                    out += gaussians(bits)
            out *= 0.5
        return result

    return draw


def numbers(rounds: int) -> list[str]:
    """Measures nanoseconds per number on one thread, by the clock and by the processor."""
    generator, sums = GaussianGenerator(key("n")), torch.randn(NUMBERS, dtype=torch.float64)
    four = sum_of_four(generator)

    def plain(step: int) -> torch.Tensor:
        return StepNoise(generator, step, [NUMBERS]).take()[0]

    def words(step: int) -> None:
        for start in range(0, NUMBERS, CHUNK):
            generator.stream.words(step, 0, 0, start, CHUNK)

    ready, memory = plain(0), torch.empty(NUMBERS, dtype=torch.float64)
    kinds: dict[str, Callable[[int], Any]] = {
        "words alone (AES-256-CTR)": words,
        "plain: words and Gaussians": plain,
        "rounding alone (adds to the sum, settles what is not certain)": lambda step: add_noise(
            sums, memory.copy_(ready), 10.0, generator.stream, 0, 0
        ),
        "**as shipped: plain and rounding**": lambda step: add_noise(
            sums, plain(step), 10.0, generator.stream, step, 0
        ),
        "sum of four, then added in floats (what it replaces)": lambda step: four(step, NUMBERS).mul_(10.0).add_(sums),
        "torch.randn, float64, not cryptographic, added in floats": lambda step: (
            randn(step, NUMBERS).mul_(10).add_(sums)
        ),
        "torch.randn, float32, alone": lambda step: torch.randn(NUMBERS),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for step in range(1, rounds + 2):
        for name, draw in kinds.items():
            clock, processor = time.perf_counter(), time.process_time()
            draw(step)
            if step > 1:
                ended = time.perf_counter() - clock, time.process_time() - processor
                taken[name].append((ended[0] / NUMBERS * 1e9, ended[1] / NUMBERS * 1e9))
    lines = [
        "| a million at a time, one thread | ns each, median | least | processor ns, median | least |",
        "|---|---|---|---|---|",
    ]
    for name, pairs in taken.items():
        row = [f"{pick(each):.1f}" for each in zip(*pairs, strict=True) for pick in (statistics.median, min)]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines


def steps(data: Reviews, rounds: int, count: int) -> list[str]:
    """Runs full-batch steps, with all parts of a private step or with fewer."""
    records, model = data.split(0)[0], Linear(BUCKETS, 2)
    n = len(records)
    kinds = {
        "non-private": Steps(records, model, private=False),
        "clipping alone, no noise": Steps(records, model, private=True),
        "torch.randn, not cryptographic": Steps(records, model, private=True),
        "sum of four (what is replaced)": Steps(records, model, private=True),
        "as shipped, without look-ahead": Steps(records, model, private=True, ahead=False),
        "**as shipped**": Steps(records, model, private=True),
    }
    kinds["clipping alone, no noise"].release = PublicRelease(n)
    kinds["torch.randn, not cryptographic"].release = FloatRelease(n, randn)
    kinds["sum of four (what is replaced)"].release = FloatRelease(n, sum_of_four(GaussianGenerator(key("n"))))
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

A release is the correctly rounded sum with a true Gaussian (`worker/noise/rounding.py`). Another thread makes a
step's noise while the step computes its gradient. All compared kinds take turns in one process."""

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
