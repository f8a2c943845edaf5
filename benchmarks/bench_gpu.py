"""Measures private steps on a GPU against non-private ones and Opacus. Writes reports/gpu.md with the GPU's name.

`make gpu` runs it after the tests that need a GPU, and the whole takes less than ten minutes. Where there is none,
`--tiny` runs every row once on the processor, in small sizes: it proves that the program works and measures nothing.

A private step is complete and made by the service's own parts: passes, norms, sum, keyed noise made ahead, DP-Adam. A
non-private step is plain torch: float32, torch's own loss and Adam. All kinds of step in one row take turns. Throughput
is of the non-private step. Memory is the peak that torch allocated in a step. The largest batch is the largest power of
two times the row's batch that fits in one pass. In rows of TF32 plain torch and Opacus have it on throughout, and the
private step in its passes (docs/theorems.md, "TF32 in passes").
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from benchmarks import bench_engine as engine  # noqa: E402
from benchmarks.bench_engine import Batch, Step, Task, drawn  # noqa: E402
from core.contracts.cnn import ImageSize  # noqa: E402
from core.contracts.hf import HfModel  # noqa: E402
from core.contracts.job_spec import CnnModel, MlpModel, ReAttention, TransformerRecModel  # noqa: E402
from core.parts import model_folder  # noqa: E402
from core.privacy.numerics import PublicSizes  # noqa: E402
from scrimp_server.inline import slots_for  # noqa: E402
from tests.hf import tiny  # noqa: E402
from worker.clipping.bookkeeping import Bookkeeping  # noqa: E402
from worker.clipping.precision import in_tf32  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.sequence_records import SequenceRecords  # noqa: E402
from worker.models.hf.hf_model import HfTuning  # noqa: E402
from worker.models.next_item import NextItem  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402
from worker.optimizers.base import StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_adam import DpAdam  # noqa: E402
from worker.optimizers.pieces import flattened  # noqa: E402
from worker.training.self_test import random_records  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "gpu.md"
REFUSED = "–"
DOUBLINGS = 5


class Shipped:
    """The whole private step as a job has it; its parameters and optimizer state are on the device."""

    def __init__(self, task: Task) -> None:
        module = task.module()
        self.parameters = flattened(
            {name: p.detach().double() for name, p in module.named_parameters() if p.requires_grad}
        )
        self.batch, self.number = drawn(task), 0
        rows, group = len(self.batch), task.numerics.group  # one pass, as where a GPU's memory has room
        grid = Grid(rows, rows)
        self.engine = Bookkeeping[Any](
            module, task.losses, rows=rows, kind="flat", max_grad_norm=1.0, grid=grid, group=group
        )
        self.release = GaussianRelease(
            engine.KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(task.batch[0])
        )
        self.optimizer = DpAdam(Descent(1e-3))
        self.state = self.optimizer.init(self.parameters)

    def __call__(self) -> None:
        self.number += 1
        self.release.prepare(self.parameters, self.number)
        noised = self.release.release(self.engine.private_sum(self.parameters, self.batch), self.number)
        info = StepInfo(self.number, self.release.noise_variance(1.0))
        self.parameters, self.state = self.optimizer.update(noised, self.state, self.parameters, info)


def plain(task: Task) -> Step:
    module = task.module()
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.losses(module, task.batch).mean().backward()
        optimizer.step()

    return step


KINDS: dict[str, Callable[[Task], Step]] = {
    "non-private": lambda task: plain(task.standard),
    "private": Shipped,
    "Opacus, hooks": lambda task: engine.opacus_hooks(task.standard),
    "Opacus, ghost": lambda task: engine.opacus_ghost(task.standard),
    "Opacus, fast gradient": lambda task: engine.opacus_ghost(task.standard, ghost=False),
}


# --- The rows ---


class ModelTask(Task):
    """One of the service's own models on random records."""

    def __init__(self, model: HfTuning | NextItem, batch: Batch) -> None:
        self.model, self.batch = model, tuple(each.to(engine.DEVICE) for each in batch)
        # A step's rows and groups are those of any model of sequences.
        sizes = PublicSizes(60_000, 1, 10, 11, sparse=False, slots=slots_for(60_000).train)
        self.numerics = engine.shipped({"kind": "transformer_rec"}, sizes, len(batch[0]))
        self.standard = self

    def module(self) -> torch.nn.Module:
        module = self.model.module().to(engine.DEVICE)
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.model.init(engine.KEY).items():
                named[name].copy_(value)
        return module

    def losses(self, module: torch.nn.Module, batch: Any) -> torch.Tensor:
        return self.model.record_losses(module, Windows(batch))


class Windows(SequenceRecords):
    """Records whose inputs and targets are on the device already."""

    def __init__(self, batch: Batch) -> None:
        self.ids, self.targets = batch

    def windows(self, length: int) -> Batch:
        return self.ids, self.targets


def of_model(model: HfTuning | NextItem, n: int) -> Task:
    records = random_records(model, n, torch.Generator().manual_seed(0))
    if not isinstance(records, SequenceRecords):
        raise TypeError("a model of sequences")
    return ModelTask(model, records.windows(model.spec.max_length))


def language(folder: Path, kind: str, tuning: str, length: int, n: int, sizes: dict[str, Any]) -> Task:
    """A Hugging Face model with random weights in this configuration; nothing is downloaded."""
    if not (folder / kind).exists():
        tiny.write(folder / kind, kind, **sizes)
    read = model_folder.read(folder, kind)
    asked = HfModel.model_validate({"path": kind, "max_length": length, "tuning": tuning})
    return of_model(HfTuning(read, asked, (), device=engine.DEVICE), n)


def dpformer(n: int, *, items: int = 3416, dim: int = 64, length: int = 50, mode: str = "logits") -> Task:
    """The recommender of DPFormer at MovieLens-1M's size."""
    model = NextItem(
        items, TransformerRecModel(dim=dim, max_length=length, re_attention=ReAttention.model_validate({"mode": mode}))
    )
    if model.effective_errors is not None:
        model.effective_errors.restore(0.01, torch.full((items + 1,), 0.02))
    return of_model(model, n)


GPT2: dict[str, Any] = {"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
TINY_GPT2 = GPT2 | {"vocab_size": 97, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
TINY_SMOLLM2 = SMOLLM2 | {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


class Row(NamedTuple):
    """A row's task for a batch of so many times its size; and whether products of float32 are in TF32."""

    make: Callable[[int], Task]
    tf32: bool = False


IN_TF32 = ("DPFormer, Re-Attention", "WRN-16-4", "GPT-2 124M, full")


def rows(folder: Path, *, small: bool) -> dict[str, Row]:
    """All rows; some of them in TF32 too."""
    every = {name: Row(make) for name, make in tasks(folder, small=small).items()}
    return every | {f"{name}, TF32": Row(row.make, True) for name, row in every.items() if name.startswith(IN_TF32)}


def tasks(folder: Path, *, small: bool) -> dict[str, Callable[[int], Task]]:
    """Each row's task."""
    items: dict[str, int] = {"items": 60, "dim": 8, "length": 6} if small else {}
    gpt2, smol, length = (TINY_GPT2, TINY_SMOLLM2, 8) if small else (GPT2, SMOLLM2, 128)
    b = 4 if small else 256
    relu = MlpModel(hidden=[512, 256], activation="relu")
    text = 2 if small else 16
    image = ImageSize(height=4, width=4, channels=3) if small else None
    wide = CnnModel(preset="wrn16_4", activation="relu", weight_standardization=True, image=image)
    return {
        f"tied transformer, all positions, B={b}": lambda k: engine.transformer(n=b * k, **items),
        f"tied transformer, last position, B={b}": lambda k: engine.transformer(positions="last", n=b * k, **items),
        f"DPFormer at MovieLens-1M, B={b}": lambda k: dpformer(b * k, mode="off", **items),
        f"DPFormer, Re-Attention, B={b}": lambda k: dpformer(b * k, **items),
        f"MLP 784-512-256-10, B={2 * b}": lambda k: engine.network(relu, 784, 2 * b * k),
        f"CNN conv2 28×28, B={2 * b}": lambda k: engine.network(CnnModel(preset="conv2"), 784, 2 * b * k),
        f"WRN-16-4, B={b}": lambda k: engine.network(wide, wide.size.numbers, b * k),
        f"GPT-2 124M, full, T={length}, B={text}": lambda k: language(folder, "gpt2", "full", length, text * k, gpt2),
        f"GPT-2 124M, LoRA, T={length}, B={text}": lambda k: language(folder, "gpt2", "lora", length, text * k, gpt2),
        f"SmolLM2-135M, LoRA, T={length}, B={text}": lambda k: language(
            folder, "llama", "lora", length, text * k, smol
        ),
    }


# --- Measuring ---


@dataclass
class Measured:
    """Seconds and peak bytes of a kind's step; `why`: the error that refused it."""

    seconds: list[float]
    peak: int = 0
    largest: int = 0
    why: str = ""


def clean() -> None:
    gc.collect()
    if engine.DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measured(make: Callable[[int], Task], rounds: int, doublings: int) -> dict[str, Measured]:
    """Every kind's step of a row: in turns, then alone for its memory, then at larger batches."""
    found = {kind: Measured([]) for kind in KINDS}
    steps: dict[str, Step] = {}
    for kind, begin in KINDS.items():
        with refused(found[kind]):
            clean()
            step = begin(make(1))
            step()
            engine.now()
            found[kind].peak = torch.cuda.max_memory_allocated() if engine.DEVICE.type == "cuda" else 0
            steps[kind] = step
    for _ in range(rounds):
        for kind, step in steps.items():
            began = engine.now()
            step()
            found[kind].seconds.append(engine.now() - began)
    steps.clear()
    for kind in (each for each in KINDS if found[each].seconds):
        found[kind].largest = largest(make, KINDS[kind], doublings)
    return found


def largest(make: Callable[[int], Task], begin: Callable[[Task], Step], doublings: int) -> int:
    """The largest power of two, up to 2^doublings, by which the batch can grow."""
    fits = 1
    for _ in range(doublings):
        clean()
        try:
            begin(make(2 * fits))()
            engine.now()
        except (torch.OutOfMemoryError, RuntimeError):
            break
        fits *= 2
    clean()
    return fits


@contextlib.contextmanager
def refused(found: Measured) -> Iterator[None]:
    """Notes the error of a kind that cannot run a row."""
    try:
        yield
    except Exception as error:
        found.why = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"


def line(name: str, found: dict[str, Measured]) -> str:
    """A row of the table: throughput of the non-private step, MiB, and the growth of the batch."""
    base = statistics.median(found["non-private"].seconds)
    cells = [name, f"{1e3 * base:.2f}"]
    for kind in list(KINDS)[1:]:
        times = found[kind].seconds
        cells.append(f"{base / statistics.median(times):.2f}" if times else REFUSED)
    cells.append(" / ".join(f"{each.peak / 2**20:.0f}" if each.seconds else REFUSED for each in found.values()))
    cells.append(" / ".join(f"{each.largest}×" if each.seconds else REFUSED for each in found.values()))
    return "| " + " | ".join(cells) + " |"


def report(lines: list[str], notes: list[str], took_s: float) -> str:
    properties = torch.cuda.get_device_properties(0)
    head = ["row", "non-private ms", *list(KINDS)[1:], "peak MiB", "largest batch"]
    return "\n".join(
        [
            "# Steps on a GPU",
            "",
            f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, capability {properties.major}."
            f"{properties.minor}; torch {torch.__version__}, CUDA {torch.version.cuda}. {took_s:.0f} s in all.",
            "",
            "Private kinds: throughput relative to the non-private step. Memory and largest batch: " + ", ".join(KINDS),
            "",
            "| " + " | ".join(head) + " |",
            "|" + "---|" * len(head),
            *lines,
            "",
            *notes,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="every row once in small sizes, also without a GPU")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--row", default="", help="rows whose names have this text")
    asked = parser.parse_args()
    if not torch.cuda.is_available() and not asked.tiny:
        print("skipped: there is no CUDA device (--tiny runs small rows on the processor)")
        return
    engine.DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False  # as in an attempt; torch's own default is True
    lines, notes, began = [], [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, row in rows(Path(folder), small=asked.tiny).items():
            if asked.row not in name:
                continue
            with in_tf32(row.tf32):
                found = measured(row.make, 1 if asked.tiny else asked.rounds, 1 if asked.tiny else DOUBLINGS)
            lines.append(line(name, found))
            notes += [f"* {name}, {kind}: {each.why}" for kind, each in found.items() if each.why]
            print(lines[-1], flush=True)
    for note in notes:
        print(note)
    if engine.DEVICE.type == "cuda" and not asked.tiny and not asked.row:
        REPORT.write_text(report(lines, notes, time.perf_counter() - began))
        print(f"wrote {REPORT}")
    if any(", private: " in note for note in notes):
        sys.exit("a private step was refused")


if __name__ == "__main__":
    main()
