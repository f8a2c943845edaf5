"""Single steps of a job as it is shipped: planned, priced and trained by the service's own code, and plain torch's.

A benchmark takes the job's own loop (`scrimp_server.inline` builds it) and runs it step by step, so that its steps can
take turns with others in one process.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scrimp_server import inline
from scrimp_server.inline import Data
from worker.data.records import DenseRecords
from worker.data.sequence_records import SequenceRecords
from worker.models.modules import ModuleModel
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan
from worker.training.position import Position

Step = Callable[[], None]


class Job(Training):
    """A job's loop, held before its first step. Calling it makes one step; a block's end comes with its last step."""

    plan: Plan
    position: Position
    passes: int  # of the last step

    def run(self) -> Outcome:
        """Trains nothing."""
        self.plan, self.position = self._plan, self._close_block(self._initial())
        self._end = 0
        return Outcome(0, {}, ())

    def __call__(self) -> None:
        step, passes = self.position.step + 1, self._batches.private_passes
        if step > self._end:
            _, self._end = self._block(self.position.step)
        self.position = self._step(step, self.position)
        if step == self._end:
            self.position = self._close_block(self.position)
        self.passes = self._batches.private_passes - passes

    def _block(self, step: int) -> tuple[int, int]:
        found = self._replay.next_block(step)
        if found is None:
            raise ValueError("the job has too few steps for this benchmark")
        return found


def job_of(data: Data, model: dict[str, Any], batch: int, **changes: Any) -> Job:
    """A private job with DP-SGD and Poisson sampling, before its first step."""
    made: list[Job] = []

    def held(*arguments: Any, **named: Any) -> Job:
        made.append(Job(*arguments, **named))
        return made[0]

    inline.run(data, private_job(model, batch) | changes, training=held)
    return made[0]


def private_job(model: dict[str, Any], batch: int) -> dict[str, Any]:
    """Its specification."""
    return {
        "model": model,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.01},
        "privacy": {"target_epsilon": 8.0, "target_delta": 1e-5},
        "clipping": {"kind": "flat", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": batch},
        "length": {"steps": 10_000},
        "evaluation": {"points": 1},
    }


def plain(
    job: Job, batch: int, losses: Callable[[nn.Module, Any], Tensor] | None = None, *, fresh: bool = False
) -> Step:
    """The same module's step in plain torch, float32, on the first records: autograd and torch's SGD.

    Args:
        losses: each record's; None: the model's own.
        fresh: every step takes other records, drawn uniformly.
    """
    model = job.plan.model
    if not isinstance(model, ModuleModel):
        raise TypeError("only torch modules have a step in plain torch")
    module, losses = model.module(), losses or model.record_losses
    with torch.no_grad():
        values = model.init(bytes(range(32)))
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])
    drawn: Any = job._batches.train
    first, draws = drawn.piece(np.arange(batch), model.dtype), np.random.default_rng(0)
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=0.01)

    def step() -> None:
        records = drawn.piece(draws.integers(0, len(drawn), batch), model.dtype) if fresh else first
        optimizer.zero_grad(set_to_none=True)
        losses(module, records).mean().backward()
        optimizer.step()

    return step


def images(features: int, records: int = 2000) -> Data:
    """Random images of ten classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, features, generator=generator)
    found = DenseRecords(x, torch.randint(0, 10, (records,), generator=generator))
    task = {"kind": "classification", "label": "y", "classes": list(range(10))}
    return Data(task, {"kind": "tensor", "array": "x"}, found, found, features, 10)


def texts(root: Path, kind: str, config: dict[str, Any], length: int, records: int = 2000) -> Data:
    """Random texts of `length` + 1 tokens, and a model's folder, `kind` under the root, made of a configuration."""
    vocabulary = int(config["vocab_size"])
    _write_model(root / kind, kind, config)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocabulary, records * (length + 1)).astype(np.int32)
    ends = np.arange(1, records + 1, dtype=np.int64) * (length + 1)
    found = SequenceRecords(tokens, ends - length - 1, ends)
    features = {"kind": "text", "column": "text"}
    return Data({"kind": "language_model"}, features, found, found, 1, 1, models_root=root)


def _write_model(folder: Path, kind: str, config: dict[str, Any]) -> None:
    import safetensors.torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    made.config.architectures = [type(made).__name__]
    made.config.save_pretrained(folder)
    tied = made.config.tie_word_embeddings
    kept = {name: each for name, each in made.state_dict().items() if not (tied and name == "lm_head.weight")}
    safetensors.torch.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    words = {f"w{at}": at for at in range(int(config["vocab_size"]))}
    words["<unk>"] = words.pop("w0")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106 - no password
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str())))


def in_turns(steps: dict[str, Step], rounds: int, warm: int = 3) -> dict[str, list[float]]:
    """Milliseconds of processor time of each kind's steps, which take turns. A job's step counts if it draws records:
    the least time would be that of an empty draw."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm + rounds):
        for name, step in steps.items():
            began = time.process_time()
            step()
            taken = 1000 * (time.process_time() - began)
            if number >= warm and (not isinstance(step, Job) or step.passes):
                times[name].append(taken)
    return times


class Parts:
    """Processor time by part: what a function takes without the parts that it calls.

    >>> parts = Parts({})
    >>> parts.seconds
    {}
    """

    def __init__(self, of: dict[str, list[tuple[Any, str]]]) -> None:
        self._of, self.seconds = of, dict.fromkeys(of, 0.0)
        self._inside: list[float] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """While the functions are measured."""
        kept = [(holder, name, _attribute(holder, name)) for of in self._of.values() for holder, name in of]
        try:
            for part, of in self._of.items():
                for holder, name in of:
                    setattr(holder, name, self._wrapped(part, _attribute(holder, name)))
            yield
        finally:
            for holder, name, before in kept:
                setattr(holder, name, before)

    def _wrapped(self, part: str, function: Any) -> Any:
        static = isinstance(function, staticmethod)
        called = function.__func__ if static else function

        @functools.wraps(called)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            began = time.process_time()
            try:
                return called(*arguments, **named)
            finally:
                taken = time.process_time() - began
                self.seconds[part] += taken - self._inside.pop()
                if self._inside:
                    self._inside[-1] += taken

        return staticmethod(timed) if static else timed


def _attribute(holder: Any, name: str) -> Any:
    return vars(holder)[name] if isinstance(holder, type) else getattr(holder, name)


def machine() -> str:
    """The processor, and the versions."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    load = Path("/proc/loadavg").read_text().split()[0]
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{len(names)} × {names[0]}, Python {version}, torch {torch.__version__}, one thread, load average {load}"
