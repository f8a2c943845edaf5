"""The first hour on a GPU: what only one can show, besides its tests and speed. `scripts/gpu_hour.sh` runs all of it.

    self-test   for every model of the catalogue, networks in TF32 too: operations that are not on the closed list, bits
                that follow other records, and whether a pass repeats
    places      how many results a row's softmax, or its product with a sparse matrix, has at 48 places
    noise       milliseconds of a release of 10⁵ to 10⁸ numbers, and its bits beside the processor's

It exits with 1 if a record's bits follow other records, if something does not repeat, or if noise has other bits. A
place may change bits: records stand in secret, uniformly random rows. `--tiny` is a rehearsal in small sizes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tests.bound.worst import CASES, LARGE, MORE, Case, engine_of
from worker.data.placed import placed
from worker.models.modules import ModuleModel
from worker.models.views import stilled
from worker.noise.gaussian import GaussianRelease
from worker.optimizers.pieces import flattened
from worker.training.operations import Recorder
from worker.training.self_test import KEPT, random_parameters, random_records, same

GPU = torch.device("cuda", 0)
KEY = bytes(range(32))
ROWS = 48
FEW = ("deep relu", "transformer, last")  # of the rehearsal
BAD: list[str] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal in small sizes")
    tiny = parser.parse_args().tiny
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False  # as in an attempt
    print(f"# {torch.cuda.get_device_name(0)}, torch {torch.__version__}\n")
    for title, lines in (
        ("Self-test", self_tests(tiny=tiny)),
        ("Places", places(tiny=tiny)),
        ("Noise", noise([10**3] if tiny else [10**5, 10**6, 10**7, 10**8])),
    ):
        print(f"## {title}\n")
        for line in lines:
            print(f"* {line}", flush=True)
        print()
    print("Refused: " + ("; ".join(BAD) if BAD else "nothing"))
    sys.exit(1 if BAD else 0)


def judged(name: str, what: str, *, fine: bool) -> str:
    """A line of the report; what is not fine is listed at the end."""
    if not fine:
        BAD.append(f"{name}: {what}")
    return f"{'fine' if fine else 'REFUSED'}  {name}: {what}"


# --- Self-test ---


def self_tests(*, tiny: bool) -> Iterator[str]:
    """A line for each model."""
    every = CASES | MORE | LARGE
    for name in FEW if tiny else every:
        try:
            yield self_tested(name, every[name])
            if isinstance(every[name].model, ModuleModel) and every[name].model.dtype == torch.float32:
                yield self_tested(f"{name}, TF32", every[name], tf32=True)
        except (RuntimeError, TypeError) as error:  # one model must not end the hour
            yield judged(name, f"{type(error).__name__}: {str(error).splitlines()[0][:150]}", fine=False)


def self_tested(name: str, case: Case, *, tf32: bool = False) -> str:
    """Operations of a pass, and whether records that stay keep their bits among others."""
    model = replace(case.model, device=GPU, tf32=tf32)  # type: ignore[type-var]
    generator = torch.Generator().manual_seed(0)
    parameters = placed(random_parameters(model, generator), GPU)
    pool = random_records(model, 2 * ROWS, generator, sparse=case.sparse, extremes=True)
    engine = engine_of(model, positions=case.positions, views=case.views)
    stay = np.append(np.arange(KEPT - 1), ROWS - 1)
    others = ROWS + np.arange(ROWS)
    others[stay] = stay
    with stilled(case.views):
        with Recorder() as recorder:
            known = engine.trace(parameters, pool.select(np.arange(ROWS)))
        again = engine.trace(parameters, pool.select(np.arange(ROWS)))
        found = engine.trace(parameters, pool.select(others))
    if not same(known, again, np.arange(ROWS)):
        return judged(name, "it does not repeat", fine=False)
    if not same(known, found, stay):
        return judged(name, "a record's bits follow other records", fine=False)
    unlisted = recorder.unlisted
    return judged(
        name, f"not listed: {', '.join(unlisted)}" if unlisted else "listed operations alone", fine=not unlisted
    )


# --- Places ---


def places(*, tiny: bool) -> Iterator[str]:
    """A row's results at every place of a pass, and twice."""
    for columns in (100, 1500) if tiny else (100, 1024, 1025, 3417, 50_257):
        row = torch.randn(columns, generator=torch.Generator().manual_seed(1))
        yield stood(f"softmax over {columns:,} columns", row, lambda x: torch.softmax(x, dim=1))
    table = torch.randn(300, 10, generator=torch.Generator().manual_seed(2)).to(GPU)
    row = torch.randn(300, generator=torch.Generator().manual_seed(3)) * (torch.arange(300) % 7 == 0)
    try:
        yield stood("product of a sparse matrix (cuSPARSE)", row, lambda x: x.to_sparse_csr() @ table)
    except (RuntimeError, NotImplementedError) as error:
        yield f"none  product of a sparse matrix: {str(error).splitlines()[0][:150]}"


def stood(name: str, row: Tensor, work: Callable[[Tensor], Tensor]) -> str:
    """How many results one row has among others, at as many places."""
    rows = torch.randn(ROWS + 1, len(row), generator=torch.Generator().manual_seed(4))
    results = set()
    for place in range(ROWS):
        one = rows.clone()
        one[place] = row
        there = one.to(GPU)
        first, second = work(there), work(there)
        if not torch.equal(first.cpu(), second.cpu()):
            return judged(name, "it does not repeat", fine=False)
        results.add(first.cpu()[place].numpy().tobytes())
    return judged(name, f"it repeats, with {len(results)} results at {ROWS} places", fine=True)


# --- Noise ---


def noise(sizes: list[int]) -> Iterator[str]:
    """Milliseconds of a release, beginning with its words, and its bits. The aim on an H200: 10 ms for 10⁸ numbers."""
    for size in sizes:
        sums = {"w": torch.zeros(size, dtype=torch.float64)}
        times, released = [], {}
        release = a_release()
        for step in range(1, 5):
            here = flattened(placed(sums, GPU))  # the release is written over it
            torch.cuda.synchronize()
            began = time.perf_counter()
            release.prepare(here, step)
            released = release.release(dict(here), step)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        took = f"{1000 * statistics.median(times[1:]):.1f} ms"
        fine = torch.equal(a_release().release(sums, 4)["w"], released["w"].cpu())
        yield judged(
            f"noise of {size:,} numbers", f"{took}, {'the' if fine else 'NOT the'} processor's bits", fine=fine
        )


def a_release() -> GaussianRelease:
    return GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=100)


if __name__ == "__main__":
    main()
