"""Measures exact clipping: private against non-private steps and Opacus, memory, growth. Writes reports/engine.md.

All kinds of step in one row take turns in one process, so that all see the same machine. The report has medians, and
ratios within one run. One thread's processor time is measured first, and then the clock with all cores: that is what
a user waits for. A whole job of the service takes turns with plain torch's steps, too. Passes are float32, on the CPU
or, with `--device=cuda`, on a GPU. The non-private step is plain autograd and torch's own SGD. A private step is
complete: passes, norms, sum, keyed noise as in the service, update. The noise's time is also reported separately.
Peak memory is measured in a separate process for each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from app.sandbox.processes import ATTEMPT_ENVIRONMENT  # noqa: E402
from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__" and "--torch-allocation" not in sys.argv:
    as_in_an_attempt()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import worker  # noqa: E402, F401 - before torch: its kernels
from benchmarks import engine_growth  # noqa: E402
from benchmarks import shipped as shipped_steps  # noqa: E402
from benchmarks.memory import peak_mib  # noqa: E402
from core.contracts.dataset_spec import Features  # noqa: E402
from core.contracts.job_spec import CnnModel, JobSpec, MlpModel  # noqa: E402
from core.privacy.numerics import Numerics, PublicSizes, numerics_of  # noqa: E402
from scrimp_server import inline  # noqa: E402
from scrimp_server.inline import slots_for  # noqa: E402
from tests.worker.layers import Tensors  # noqa: E402
from worker.clipping.bookkeeping import Bookkeeping  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.passes import EMPTY  # noqa: E402
from worker.data.secret_slots import Slotted  # noqa: E402
from worker.models.activations import Tanh  # noqa: E402
from worker.models.initial import keyed_normals  # noqa: E402
from worker.models.networks import Network  # noqa: E402
from worker.models.pooling import AvgPool2x2, MaxPool2x2  # noqa: E402
from worker.models.recommenders import TransformerRec  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402
from worker.optimizers.base import StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_sgd import DpSgd  # noqa: E402
from worker.optimizers.pieces import flattened  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "engine.md"
WRITTEN = ROOT / "benchmarks" / "engine_notes.md"  # written by hand: what was tried
KEY = bytes(range(32))
CORES = len(os.sched_getaffinity(0))
DEVICE = torch.device("cuda" if "--device=cuda" in sys.argv else "cpu")
Batch = tuple[Tensor, Tensor]
Step = Callable[[], None]


class Standard(TransformerRec):
    """The same model in its usual form: a linear output layer and torch's cross-entropy."""

    def __init__(self, *sizes: int, tied: bool, positions: str) -> None:
        super().__init__(*sizes, tied=tied, positions=positions)
        output = nn.Linear(sizes[1], sizes[0], bias=False)
        output.weight = self.output.weight
        self.output = output  # type: ignore[assignment]

    @staticmethod
    def record_losses(module: nn.Module, batch: Batch) -> Tensor:
        logits = module(batch[0])
        targets = batch[1][:, -logits.shape[1] :]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="none")
        return losses.view_as(targets).sum(dim=1) / (targets != 0).sum(dim=1).clamp(min=1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(super().forward(ids))


def drawn(task: Task) -> Slotted[Batch]:
    """A task's batch in the rows of its step; the others are empty."""
    count, rows = len(task.batch[0]), task.numerics.rows_per_step or 0
    return Slotted(Tensors(*task.batch), np.append(np.arange(count), np.full(rows - count, EMPTY)))


def shipped(model: dict[str, Any], sizes: PublicSizes, batch: int) -> Numerics:
    """Returns shapes and types as a job gets them at admission: P has room for a larger draw than the expected one."""
    job = {
        "dataset": "ds_1",
        "model": model,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 10},
        "sampling": {"kind": "poisson", "expected_batch_size": batch},
    }
    items = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": sizes.features}}
    features: Any = items if model["kind"] == "transformer_rec" else {"kind": "tensor", "array": "x"}
    read = TypeAdapter(Features).validate_python(features)
    return numerics_of(JobSpec.model_validate(job), sizes, read)


class Task:
    """One model and one batch. `standard`: the model in its usual form."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        losses: Callable[[nn.Module, Any], Tensor],
        batch: Any,
        spec: dict[str, Any],
        sizes: PublicSizes,
        standard: Callable[[nn.Module, Any], Tensor] | None = None,
        standard_make: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.make, self.losses = make, losses
        self.batch = tuple(each.to(DEVICE) for each in batch)
        self.numerics = shipped(spec, sizes, len(batch[0]))
        self.standard = self
        if standard is not None and standard_make is not None:
            self.standard = Task(standard_make, standard, batch, spec, sizes)

    def module(self) -> nn.Module:
        module = self.make().to(DEVICE)
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), keyed_normals(module, KEY).values(), strict=True):
                parameter.copy_(value)
        return module


def transformer(
    *, tied: bool = True, positions: str = "all", n: int = 256, items: int = 3417, dim: int = 64, length: int = 50
) -> Task:
    ids = torch.randint(1, items, (n, length + 1), generator=torch.Generator().manual_seed(0))
    batch = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    sizes = (items, dim, 1, 2, length)
    spec = {"kind": "transformer_rec", "dim": dim, "max_length": length, "tied": tied, "loss_positions": positions}
    return Task(
        lambda: TransformerRec(*sizes, tied=tied, positions=positions),
        TransformerRec.record_losses,
        batch,
        spec,
        PublicSizes(6040, 1, items - 1, 1, sparse=False, slots=slots_for(6040).train),
        Standard.record_losses,
        lambda: Standard(*sizes, tied=tied, positions=positions),
    )


def network(spec: MlpModel | CnnModel, features: int, n: int) -> Task:
    model = Network(features, 10, spec)
    generator = torch.Generator().manual_seed(0)
    batch = (torch.rand(n, features, generator=generator), torch.randint(0, 10, (n,), generator=generator))
    sizes = PublicSizes(60_000, 1, features, 10, sparse=False, slots=slots_for(60_000).train)

    def usual() -> nn.Module:
        """With torch's own pooling and tanh."""
        theirs = {MaxPool2x2: nn.MaxPool2d(2, 1), AvgPool2x2: nn.AvgPool2d(2), Tanh: nn.Tanh()}
        return nn.Sequential(*(theirs.get(type(each), each) for each in model.module().children()))

    usually = (of_classes, usual) if isinstance(spec, CnnModel) else (None, None)
    return Task(model.module, of_classes, batch, spec.model_dump(), sizes, *usually)


def of_classes(module: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


TASKS: dict[str, Callable[[], Task]] = {
    "tied transformer, loss at all positions": transformer,
    "tied transformer, loss at the last": lambda: transformer(positions="last"),
    "untied transformer, loss at all positions": lambda: transformer(tied=False),
    "untied transformer, loss at the last": lambda: transformer(tied=False, positions="last"),
    "MLP 784-512-256-10, B=512": lambda: network(MlpModel(hidden=[512, 256], activation="relu"), 784, 512),
    "CNN conv2 28×28, B=512": lambda: network(CnnModel(preset="conv2"), 784, 512),
    "CNN conv5 32×32, B=128": lambda: network(CnnModel(preset="conv5"), 3072, 128),
}


def now() -> float:
    """Returns processor seconds; for a GPU, which has none, the clock's seconds after it is done."""
    if DEVICE.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


# --- The kinds of step ---


def plain(task: Task) -> Step:
    module = task.module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.losses(module, task.batch).mean().backward()
        optimizer.step()

    return step


class Private:
    """The whole private step, with a job's types, shapes and totals; `noises` has the noise's time in each step."""

    def __init__(self, task: Task) -> None:
        module = task.module()
        self.parameters = flattened({name: p.detach().double() for name, p in module.named_parameters()})
        self.optimizer = DpSgd(Descent(0.01))
        numerics = task.numerics
        rows, grid = numerics.rows_per_pass, Grid(len(drawn(task)), numerics.rows_per_pass)
        group = numerics.group if numerics.sums == "float32" else None
        self.engine: Bookkeeping[Any] = Bookkeeping(
            module, task.losses, rows=rows, kind="flat", max_grad_norm=1.0, grid=grid, group=group
        )
        self.batch, self.number, self.noises = drawn(task), 0, list[float]()
        self.release = GaussianRelease(
            KEY,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=len(task.batch[0]),
            sensitivity_slack=task.numerics.sensitivity_slack,
        )

    def __call__(self) -> None:
        self.number += 1
        if torch.get_num_threads() > 1:
            self.release.prepare(self.parameters, self.number)  # as in the service, on another thread
        total = self.engine.private_sum(self.parameters, self.batch)
        began = now()
        noised = self.release.release(total, self.number)
        self.noises.append(now() - began)
        self.optimizer.update(noised, {}, self.parameters, StepInfo(self.number, 0.0))


def opacus_hooks(task: Task) -> Step:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(task.module(), loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(task.batch[0]),
    )

    warnings.filterwarnings("ignore", message="Full backward hook")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.losses(wrapped, task.batch).mean().backward()
        optimizer.step()

    return step


def opacus_ghost(task: Task, *, ghost: bool = True) -> Step:
    """Opacus' second pass with reweighted losses: ghost norms, or norms of formed gradients (fast gradient)."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        task.module(), loss_reduction="mean", max_grad_norm=1.0, use_ghost_clipping=ghost
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(task.batch[0]),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses = task.losses(wrapped, task.batch)
        losses.mean().backward(retain_graph=True)
        optimizer.zero_grad(set_to_none=True)
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        wrapped.enable_hooks()
        optimizer.step()

    return step


KINDS: dict[str, Callable[[Task], Step]] = {
    "non-private": lambda task: plain(task.standard),
    "non-private, our layers": plain,
    "private": Private,
    "Opacus, hooks": lambda task: opacus_hooks(task.standard),
    "Opacus, ghost": lambda task: opacus_ghost(task.standard),
}


def timed(task: Task, kinds: list[str], rounds: int) -> tuple[dict[str, list[float]], float]:
    """Measures processor seconds of each kind's steps, which take turns, and of the noise in one private step."""
    steps = {kind: KINDS[kind](task) for kind in kinds}
    private = steps["private"]
    assert isinstance(private, Private)
    times = in_turns(steps, rounds)
    return times, statistics.median(private.noises[1:])


def by_the_clock(task: Task, rounds: int) -> dict[str, list[float]]:
    """Measures the clock's seconds of private and non-private steps, which take turns on all cores."""
    torch.set_num_threads(CORES)
    try:
        return in_turns({kind: KINDS[kind](task) for kind in ("non-private", "private")}, rounds, time.perf_counter)
    finally:
        torch.set_num_threads(1)


def in_turns(steps: dict[str, Step], rounds: int, now: Callable[[], float] = now) -> dict[str, list[float]]:
    """Measures seconds of each kind's steps, after one uncounted step of each."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            began = now()
            step()
            times[kind].append(now() - began)
    return times


def peak_mb(task: str, kind: str) -> float:
    """Measures the peak memory of two steps beyond the process's memory before them, in a separate process."""
    command = [sys.executable, __file__, "--memory", json.dumps([task, kind]), f"--device={DEVICE.type}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(answer.stdout)


def under_torch_allocation(task: str, rounds: int) -> str:
    """Measures non-private throughput in a process with torch's own allocation, unlike an attempt's."""
    command = [sys.executable, __file__, "--torch-allocation", "--ratio", task, f"--rounds={rounds}"]
    plain = {name: value for name, value in os.environ.items() if name not in ATTEMPT_ENVIRONMENT}
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=plain | passive)
    return answer.stdout.strip()


def measure_memory(task: str, kind: str) -> None:
    made = TASKS[task]()
    step = KINDS[kind](made)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        step()
        print((torch.cuda.max_memory_allocated() - held) / 2**20)
        return
    print(peak_mib(step))


def ratio(times: dict[str, list[float]], over: str, under: str = "private") -> str:
    if over not in times:
        return "–"
    return f"{statistics.median(a / b for a, b in zip(times[over], times[under], strict=True)):.2f}"


def row(name: str, rounds: int) -> str:
    task = TASKS[name]()
    kinds = [kind for kind in KINDS if kind != "Opacus, ghost" or not name.startswith("tied")]
    if task.standard is task:
        kinds.remove("non-private, our layers")
    times, noise = timed(task, kinds, rounds)
    median = {kind: 1000 * statistics.median(taken) for kind, taken in times.items()}
    before_noise = median["non-private"] / (median["private"] - 1000 * noise)
    memory = {kind: peak_mb(name, kind) for kind in ("non-private", "private")}
    clock = by_the_clock(task, rounds) if DEVICE.type == "cpu" else times
    cells = [
        f"{median['non-private']:.0f}",
        f"{median['private']:.0f}",
        f"{1000 * noise:.0f}",
        ratio(times, "non-private"),
        f"{1000 * statistics.median(clock['non-private']):.0f}",
        f"{1000 * statistics.median(clock['private']):.0f}",
        ratio(clock, "non-private"),
        f"{before_noise:.2f}",
        ratio(times, "Opacus, hooks"),
        ratio(times, "Opacus, ghost"),
        f"{memory['private'] / memory['non-private']:.2f}",
        under_torch_allocation(name, rounds) if DEVICE.type == "cpu" else "–",
        ratio(times, "non-private, our layers"),
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


PROFILED = (
    "tied transformer, loss at all positions",
    "tied transformer, loss at the last",
    "MLP 784-512-256-10, B=512",
)
COLUMNS = (
    "",
    "non-private ms",
    "private ms",
    "of which noise ms",
    "throughput of non-private",
    "by the clock: non-private ms",
    "private ms",
    "throughput by the clock",
    "before noise, by processor",
    "times Opacus' hooks'",
    "times Opacus' ghost clipping's",
    "peak memory",
    "throughput under torch's own allocation",
    "of non-private with our layers",
)
TABLE = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


NOTES = """\
Made by `python benchmarks/bench_engine.py`.

Machine: {machine}.

Medians over {rounds} rounds in which the kinds of step take turns; ratios within rounds. Three columns are by the
clock, with {cores} threads, private and non-private steps in turns: what a user waits for, on a machine that does
nothing else. The others are one thread's processor time, which says more where others use the machine too.

Transformer: M=3417 items, T=50, d=64, one head, two blocks, B=256. float32 passes; norms in float64; formed gradients
and those of one position added in float32, the others in float64. Noise as in the service, keyed and
correctly rounded; made ahead on another thread where there are several, as in the service. The non-private step and
Opacus use torch's own loss and pooling. The last column compares with a non-private step that uses our loss layer and
our pooling. Memory: the peak of two steps minus what the process held before them.

A non-private step has B records. A private one has R rows, enough for every draw (docs/theorems.md): 1.7 B at B = 256,
1.5 B at 512, 2 B at 128, all of which it computes.

All steps run in the environment of an attempt (app/sandbox/processes.py), whose allocator keeps memory from step to
step. One column has both without it.
"""
GROWTH = """\
Around B=64, T=50, M=1000, d=64. The tables give the exponent of the time's growth between the two largest sizes."""


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    load = Path("/proc/loadavg").read_text().split()[0]
    return (
        f"{len(names)} × {names[0] if names else platform.processor()}, {torch.get_num_threads()} torch threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}; load average at the start {load}"
    )


def growth() -> list[str]:
    """Plots the step's growth with its sizes; returns the report's lines with the powers."""
    if DEVICE.type != "cpu":
        return []

    def steps(**sizes: Any) -> dict[str, Step]:
        task = transformer(**sizes)
        return {"non-private": plain(task.standard), "private": Private(task)}

    lines = ["## Growth", "", GROWTH, ""]
    for positions, where in (("all", "at all positions"), ("last", "at the last")):
        grown = engine_growth.sweep(steps, positions, rounds=3)
        image = REPORT.with_name(f"engine_growth_{positions}.png")
        engine_growth.draw(grown, f"tied transformer, loss {where}", image)
        lines += [
            f"![growth, loss {where}]({image.name})",
            "",
            f"| loss {where} | non-private | private |",
            "|---|---|---|",
        ]
        lines += [*engine_growth.exponents(grown), ""]
        print("\n".join(lines[-8:]), flush=True)
    return lines


JOB = """\
The MLP above as a job, {threads} threads by the clock: Poisson batches of {batch} of {records:,} records, run by the
service's own plan and loop, with digests and one evaluation at the end. {long:,} steps less {short} are divided by
their number. Plain torch: autograd and SGD, {batch} records by random numbers, in float32. They take turns."""
WHOLE_JOB = "a whole job"
JOB_SHORT, JOB_LONG, JOB_RECORDS, JOB_BATCH, JOB_LARGEST = 100, 1000, 60_000, 512, 672


def whole_job(rounds: int) -> list[str]:
    """Measures a job's step by the clock, beside plain torch's; returns the report's lines."""
    spec = {"kind": "mlp", "hidden": [512, 256], "activation": "relu"}
    data = shipped_steps.images(784, JOB_RECORDS)
    job = shipped_steps.job_of(data, spec, JOB_BATCH)
    step = shipped_steps.plain(job, JOB_BATCH, fresh=True)
    torch.set_num_threads(CORES)
    jobs: dict[str, dict[str, Any]] = {
        "the job": {},
        f"with `largest_batch` {JOB_LARGEST}": {"largest_batch": JOB_LARGEST},
    }
    took: dict[str, list[float]] = {name: [] for name in ("plain torch", *jobs)}
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(JOB_LONG - JOB_SHORT):
            step()
        took["plain torch"].append((time.perf_counter() - began) / (JOB_LONG - JOB_SHORT))
        for name, changes in jobs.items():
            less, more = (seconds_of(data, spec, steps, changes) for steps in (JOB_SHORT, JOB_LONG))
            took[name].append((more - less) / (JOB_LONG - JOB_SHORT))
    torch.set_num_threads(1)
    sizes = {"threads": CORES, "batch": JOB_BATCH, "records": JOB_RECORDS, "long": JOB_LONG, "short": JOB_SHORT}
    lines = ["## A whole job", "", JOB.format(**sizes), "", "| | ms a step | throughput |", "|---|---|---|"]
    for name, seconds in took.items():
        lines.append(f"| {name} | {1000 * statistics.median(seconds):.1f} | {ratio(took, 'plain torch', name)} |")
    print("\n".join(lines), flush=True)
    return [*lines, ""]


def seconds_of(data: inline.Data, model: dict[str, Any], steps: int, sampling: dict[str, Any]) -> float:
    """The clock's seconds of a job's training."""
    job = shipped_steps.private_job(model, JOB_BATCH) | {"length": {"steps": steps}}
    return inline.run(data, job | {"sampling": job["sampling"] | sampling}).seconds


def shares() -> list[str]:
    return engine_growth.shares({name: Private(TASKS[name]()) for name in PROFILED}) if DEVICE.type == "cpu" else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="as --device=cuda")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--ratio", help=argparse.SUPPRESS)
    parser.add_argument("--torch-allocation", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        measure_memory(*json.loads(options.memory))
        return
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        print("skipped: there is no CUDA device")
        return
    if options.ratio:
        print(ratio(timed(TASKS[options.ratio](), ["non-private", "private"], options.rounds)[0], "non-private"))
        return
    lines = [NOTES.format(machine=machine(), rounds=options.rounds, cores=CORES), TABLE]
    print("\n".join(lines), flush=True)
    for name in TASKS:
        if options.only in name:
            lines.append(row(name, options.rounds))
            print(lines[-1], flush=True)
    if DEVICE.type == "cpu" and options.only in WHOLE_JOB:
        lines += ["", *whole_job(min(options.rounds, 3))]
    if not options.only:
        lines += ["", *growth(), *shares(), WRITTEN.read_text(encoding="utf-8").rstrip()]
        report = REPORT if DEVICE.type == "cpu" else REPORT.with_name("engine_gpu.md")
        title = "# The clipping engine: the cost of exactness\n\n"
        report.write_text(title + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
