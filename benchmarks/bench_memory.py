"""Compares the memory that a quote estimates with what attempts take (reports/memory.md).

    python benchmarks/bench_memory.py [--only NAME ...] [--report FILE]

Each row is one attempt of the product: a process of the fork server, in its sandbox, with small synthetic data. The
peak is of RssAnon, the memory that the kernel cannot take back, looked at every 2 ms; of several ranks the largest.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

from app.admission.memory_estimate import estimate  # noqa: E402
from app.catalogue.model_folders import resolved  # noqa: E402
from core.contracts.dataset_spec import Features  # noqa: E402
from core.contracts.job_spec import JobSpec  # noqa: E402
from core.contracts.slots import PartSlots  # noqa: E402
from core.parts.part_files import save_part  # noqa: E402
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart, Texts  # noqa: E402
from core.privacy.numerics import PublicSizes, numerics_of  # noqa: E402
from tests.hf.tiny import write  # noqa: E402
from tests.worker.support import Supervisor, forks, spec, start_of  # noqa: E402
from worker.attempt.fork_server import ForkServer  # noqa: E402
from worker.channel import Channel  # noqa: E402
from worker.messages import TO_SUPERVISOR, Failed, Finished  # noqa: E402

POLL_S = 0.002
TITLE = """# Memory of an attempt

What a quote estimates (`memory.process_bytes`, app/admission/memory_estimate.py) and what attempts take
(`python benchmarks/bench_memory.py`). Each row is one attempt of the product, in its sandbox, on a processor, with
DP-Adam where no other optimizer is named. *Peak* is of memory that the kernel cannot take back (RssAnon), of the rank
that needs most.
"""
HEAD = "| job | rows a pass | estimate, MiB | peak, MiB | off by |\n|---|---:|---:|---:|---:|"
NOTES = """
* 205 MiB are Python, torch and the libraries; models from Hugging Face folders take 140 MiB more. What else there is
  follows from public numbers: parameters, totals, noise, the optimizer's state (`OptimizerSettings.kept`), a pass
  (`ModelSettings.held`), and the declared number of records where they are in memory.
* Some factors are not derived, but fitted to these very rows: 1.12 for what the allocator keeps, 5 and 9 for a linear
  model's products over words, and `ModelSettings.peak` of recommenders (1.35 or 2) and causal language models
  (4.5), which hold more at once than `held` counts.
* Few shapes of each kind were measured, on a loaded machine, in more than one run. Peaks of one job differ between runs
  by a few per cent, but once the second row had 384 MiB instead of 552. So the estimate only warns. A job is refused by
  a lower bound: parameters and totals.
* On a GPU all but the base and the records lies in the GPU's memory, whose size admission does not know.
"""
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A job on synthetic data.

    Attributes:
        model, optimizer: their settings.
        records, features, outputs: public sizes.
        kind: of the features.
        more: further settings of the job.
        limit_mib: what its process may have; 0: nine tenths of the machine's.
        words: of each text.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    records: int = 2000
    features: int = 784
    outputs: int = 10
    kind: str = "tensor"
    more: dict[str, Any] = field(default_factory=dict)
    limit_mib: int = 0
    words: int = 600


SGD: dict[str, Any] = {"kind": "dp_sgd", "learning_rate": 0.1}
ADAM: dict[str, Any] = {"kind": "dp_adam", "learning_rate": 0.001}
MOMENTUM = SGD | {"momentum": 0.9}
ADAMBC = {"kind": "dp_adambc", "learning_rate": 0.001}
RMS = {"kind": "dp_rmsprop", "learning_rate": 0.001}
ADAGRAD = {"kind": "dp_adagrad", "learning_rate": 0.001}
DP2 = {
    "kind": "dp2_rmsprop",
    "learning_rate": 0.1,
    "learning_rate_adaptive": 0.001,
    "max_grad_norm_adaptive": 1.0,
    "delay": 2,
}
SCALED = {"kind": "scale_then_privatize", "learning_rate": 0.001}
AVERAGED = ADAM | {"averaging": {"kind": "tail"}}
WIDE = {"kind": "mlp", "hidden": [3072, 2048]}
SMALL = {"kind": "mlp", "hidden": [256]}
CONV2, CONV5 = {"kind": "cnn", "preset": "conv2"}, {"kind": "cnn", "preset": "conv5"}
WRN = {"kind": "cnn", "preset": "wrn16_4"}
TRANSFORMER = {"kind": "transformer_rec", "dim": 64, "max_length": 50}
GRU = {"kind": "gru_rec", "dim": 64, "max_length": 50, "loss_positions": "last"}
RATINGS = {"kind": "matrix_factorization", "dim": 16}
LANGUAGE = {"kind": "hf", "path": "gpt2", "tuning": "lora", "max_length": 64}
ENCODER = {"kind": "hf", "path": "bert", "tuning": "last_block", "max_length": 64}
BERT: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
BERT |= {"max_position_embeddings": 512, "vocab_size": 8000}
GPT2 = {"n_positions": 512, "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8000}
FULL = {"sampling": {"kind": "full_batch"}}
IMAGES = {"features": 3072}
CORRELATED = {"sampling": {"kind": "cyclic", "batches": 10}, "noise": {"kind": "correlated", "decay": 0.5}}
ITEMS, USERS = 10_000, 100_000


def poisson(batch: int) -> dict[str, Any]:
    return {"sampling": {"kind": "poisson", "expected_batch_size": batch}}


def ranks(count: int, shard: str = "none") -> dict[str, Any]:
    return poisson(256) | {"runtime": {"processes": count, "shard": shard}}


CASES: dict[str, Case] = {
    "linear 784, full batch": Case({"kind": "linear"}, MOMENTUM, records=60_000, more=FULL),
    "linear 784, Poisson": Case({"kind": "linear"}, ADAM, records=60_000, more=poisson(1024)),
    "linear 2^17 words": Case({"kind": "linear"}, ADAM, features=2**17, outputs=20, kind="words", more=poisson(256)),
    "linear 2^14 words": Case({"kind": "linear"}, ADAM, features=2**14, outputs=20, kind="words", more=poisson(256)),
    "linear 2^17 words, 2 classes": Case(
        {"kind": "linear"}, ADAM, features=2**17, outputs=2, kind="words", more=poisson(256)
    ),
    "linear 2^20 words, 2 classes": Case(
        {"kind": "linear"}, ADAM, features=2**20, outputs=2, kind="words", more=poisson(256)
    ),
    "linear 2^17 words, full batch": Case(
        {"kind": "linear"}, MOMENTUM, records=20_000, features=2**17, outputs=20, kind="words", more=FULL
    ),
    "linear 2^17 words, DP²": Case(
        {"kind": "linear"}, DP2, features=2**17, outputs=20, kind="words", more=poisson(256)
    ),
    "mlp 256": Case(SMALL, ADAM, more=poisson(256)),
    "mlp 256, 1.6 GB of records, limit 400 MiB": Case(SMALL, ADAM, records=540_000, more=poisson(256), limit_mib=400),
    **{
        f"mlp 3072-2048, {name}": Case(WIDE, optimizer, more=poisson(256))
        for name, optimizer in {
            "dp_sgd": SGD,
            "momentum": MOMENTUM,
            "dp_adam": ADAM,
            "dp_adambc": ADAMBC,
            "dp_rmsprop": RMS,
            "dp_adagrad": ADAGRAD,
            "dp2_rmsprop": DP2,
            "scale_then_privatize": SCALED,
            "dp_adam, averaging": AVERAGED,
        }.items()
    },
    "mlp 3072-2048, correlated": Case(WIDE, SGD, more=CORRELATED),
    "mlp 3072-2048, 2 ranks": Case(WIDE, ADAM, more=ranks(2)),
    "mlp 3072-2048, 2 ranks, sharded": Case(WIDE, ADAM, more=ranks(2, "optimizer")),
    "mlp 3072-2048, 4 ranks, sharded": Case(WIDE, ADAM, more=ranks(4, "optimizer")),
    "conv2": Case(CONV2, ADAM, more=poisson(512)),
    "conv5": Case(CONV5, ADAM, **IMAGES, more=poisson(256)),
    "wrn16_4": Case(WRN, ADAM, **IMAGES, records=500, more=poisson(24)),
    "transformer_rec": Case(TRANSFORMER, ADAM, kind="items", more=poisson(128)),
    "gru_rec": Case(GRU, ADAM, kind="items", more=poisson(256)),
    "lstm_rec": Case(GRU | {"kind": "lstm_rec"}, ADAM, kind="items", more=poisson(256)),
    "gpt2 of 4 blocks, LoRA": Case(LANGUAGE, ADAM, kind="texts", features=1, more=poisson(48)),
    "gpt2 of 4 blocks, full": Case(LANGUAGE | {"tuning": "full"}, ADAM, kind="texts", features=1, more=poisson(48)),
    "bert of 4 blocks, last block": Case(ENCODER, ADAM, kind="labelled texts", features=1, more=poisson(48)),
    **{
        f"bert of 4 blocks, {tuning}, {tokens} tokens": Case(
            ENCODER | {"tuning": tuning, "max_length": tokens},
            ADAM,
            kind="labelled texts",
            features=1,
            more=poisson(48),
        )
        for tuning, tokens in (("lora", 32), ("lora", 128), ("lora", 512), ("full", 128), ("last_block", 512))
    },
    **{
        f"gpt2 of 4 blocks, LoRA, {tokens} tokens": Case(
            LANGUAGE | {"max_length": tokens}, ADAM, kind="texts", features=1, more=poisson(48)
        )
        for tokens in (32, 128, 512)
    },
    "conv5, 1.7 GB of images, limit 420 MiB": Case(
        CONV5, ADAM, **IMAGES, records=140_000, more=poisson(256), limit_mib=420
    ),
    "transformer_rec, 3.2 GB of items, limit 800 MiB": Case(
        TRANSFORMER, ADAM, records=16_000_000, kind="items", more=poisson(128), limit_mib=800
    ),
    "gpt2 of 4 blocks, LoRA, 128 tokens, 5.2 GB of texts, limit 1300 MiB": Case(
        LANGUAGE | {"max_length": 128},
        ADAM,
        records=38_000,
        kind="texts",
        features=1,
        more=poisson(48),
        limit_mib=1300,
        words=36_000,
    ),
    "matrix_factorization": Case(RATINGS, DP2, records=200_000, kind="ratings", more=poisson(4096)),
    "matrix_factorization, full batch": Case(RATINGS, SGD, records=200_000, kind="ratings", more=FULL),
}


def data(case: Case) -> StoredPart:
    """Synthetic records of the case's kind."""
    generator, n = np.random.default_rng(0), case.records
    y = generator.integers(0, case.outputs, n)
    match case.kind:
        case "words":
            width = 80
            drawn = np.sort(generator.integers(0, case.features - width, (n, width)), axis=1)
            indices = (drawn + np.arange(width)).astype(np.int32)  # each word once
            ends = np.arange(0, (n + 1) * width, width, dtype=np.int64)
            csr = Csr(ends, indices.reshape(-1), np.full(n * width, 0.1, np.float32), (n, case.features))
            return StoredPart(csr, y)
        case "items":
            ends = np.arange(50, 50 * (n + 1), 50, dtype=np.int64)
            items = generator.integers(0, ITEMS, 50 * n).astype(np.int32)
            return StoredPart(Sequences(items, ends, ITEMS), np.zeros(n), user=np.arange(n))
        case "labelled texts":
            return StoredPart(Texts.of([" ".join(f"w{word % 28}" for word in range(case.words))] * n), y)
        case "texts":
            return StoredPart(Texts.of([" ".join(f"w{word % 28}" for word in range(case.words))] * n), np.zeros(n))
        case "ratings":
            users, items = generator.integers(0, USERS, n), generator.integers(0, ITEMS, n)
            pairs = Pairs(users.astype(np.int32), items.astype(np.int32), (USERS, ITEMS))
            return StoredPart(pairs, generator.integers(1, 6, n).astype(np.float64))
    return StoredPart(generator.standard_normal((n, case.features), dtype=np.float32), y)


def facts(case: Case) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The shape, the task and the features of the case."""
    shape: dict[str, Any] = {"records_train": case.records, "records_holdout": 0, "sparse": case.kind != "tensor"}
    shape |= {"features": case.features, "outputs": case.outputs, "slots": {"train": places(case).model_dump()}}
    task: dict[str, Any] = {"kind": "classification", "label": "y", "classes": list(range(case.outputs))}
    features: dict[str, Any] = {"kind": "tensor", "array": "x"}
    lists = {"items": {"kind": "numbered", "count": ITEMS}}
    if case.kind == "words":
        features = {"kind": "hashed_text", "column": "text", "buckets": case.features}
    elif case.kind == "labelled texts":
        shape, features = shape | {"sparse": False}, {"kind": "text", "column": "text"}
    elif case.kind == "texts":
        shape |= {"outputs": 1, "sparse": False}
        task, features = {"kind": "language_model"}, {"kind": "text", "column": "text"}
    elif case.kind == "items":
        shape |= {"features": ITEMS, "outputs": 1}
        task, features = {"kind": "next_item"}, {"kind": "interactions", "layout": "inter", **lists}
    elif case.kind == "ratings":
        shape |= {"features": USERS + ITEMS, "outputs": 1}
        lists["users"] = {"kind": "numbered", "count": USERS}
        task = {"kind": "rating", "scale": [1, 5]}
        features = {"kind": "interactions", "layout": "inter", **lists}
    return shape, task, features


def places(case: Case) -> PartSlots:
    """The slots of a data set whose owner states none (docs/data.md, "Slots"), without a split."""
    count = case.records + case.records // 20 + 64
    return PartSlots(units=count, rows=count)


@dataclass
class Watch:
    """Peaks of the memory of a process and of its children, in KiB."""

    pid: int
    anonymous: dict[int, int] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Looks until the process has ended."""
        while not self.ended.wait(POLL_S):
            for pid in (self.pid, *self._children()):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                found = {name: int(size) for name, size in re.findall(r"(RssAnon):\s+(\d+)", status)}
                self.anonymous[pid] = max(self.anonymous.get(pid, 0), found.get("RssAnon", 0))

    def _children(self) -> list[int]:
        try:
            return [int(each) for each in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []


def measured(folder: Path, case: Case) -> tuple[float, float, int]:
    """Runs one attempt. Returns the estimate and the peak of the largest rank in MiB, and the rows of a pass."""
    shape, task, features = facts(case)
    length = {"steps": 4 if case.more.get("sampling", {}).get("kind") == "full_batch" else 12}
    job = spec(model=case.model, optimizer=case.optimizer, length=length, evaluation=None, **case.more)
    if "texts" in case.kind:
        kind = case.model["path"]
        write(folder / kind, kind, **(GPT2 if kind == "gpt2" else BERT))
        asked = JobSpec.model_validate(job)
        pinned = asked.model_copy(update={"model": resolved(asked.model, folder, shape["outputs"])})
        job["model"] = pinned.model.model_dump(mode="json")
    part = folder / "train.arrow"
    parts = {"train": {"path": str(part), "sha256": save_part(part, data(case))}}
    out = Path(tempfile.mkdtemp(dir=folder))
    start = start_of(job, shape, parts=parts, output_dir=out) | {"task": task, "features": features}
    start["models_root"] = str(folder)
    wanted = job.get("runtime", {}).get("processes", 1)
    if case.kind == "items":
        start["mechanism"]["unit"] = "user"
    supervisor = Supervisor(start | {"processes": wanted})
    limited = ForkServer(case.limit_mib * MIB) if case.limit_mib else forks
    try:
        peaks = attempt(supervisor, limited)
    finally:
        if limited is not forks:
            limited.close()
    asked, known = JobSpec.model_validate(job), TypeAdapter(Features).validate_python(features)
    sizes = PublicSizes(case.records, 1, shape["features"], shape["outputs"], shape["sparse"], places(case))
    numerics = numerics_of(asked, sizes, known)
    found = estimate(asked, sizes, known.rows, numerics)
    return found.process_bytes / MIB, peaks, numerics.rows_per_pass


def attempt(supervisor: Supervisor, fork_server: ForkServer = forks) -> float:
    """Runs an attempt to its end. Returns the peak of its largest rank in MiB."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = fork_server.start(theirs.fileno())
    fdinfo = Path(f"/proc/self/fdinfo/{process._handle}").read_text()
    watch = Watch(int(re.search(r"Pid:\s+(\d+)", fdinfo)[1]))  # type: ignore[index]
    thread = threading.Thread(target=watch.run)
    thread.start()
    channel = Channel(ours, TO_SUPERVISOR)
    try:
        channel.send(supervisor.message())
        while not isinstance(message := channel.receive(), Finished):
            if isinstance(message, Failed):
                raise SystemExit(f"the attempt failed: {message}")
            if (answer := supervisor.answer(message)) is not None:
                channel.send(answer)
    finally:
        watch.ended.set()
        thread.join()
        channel.close()
        process.kill()
        process.close()
    return max(watch.anonymous.values()) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--report", type=Path, default=None)
    asked = parser.parse_args()
    rows = [HEAD]
    print(HEAD, flush=True)
    for name in asked.only:
        folder = Path(tempfile.mkdtemp())
        try:
            guess, peak, per_pass = measured(folder, CASES[name])
            rows.append(f"| {name} | {per_pass} | {guess:.0f} | {peak:.0f} | {guess / peak - 1:+.0%} |")
            print(rows[-1], flush=True)
        finally:
            shutil.rmtree(folder)
    if asked.report is not None:
        asked.report.write_text("\n".join([TITLE, *rows, NOTES]))


if __name__ == "__main__":
    main()
