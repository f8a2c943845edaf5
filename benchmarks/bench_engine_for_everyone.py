"""`scrimp.engine` beside Opacus and jax_privacy on five models: lines, memory, time, and what each gets silently wrong.

    python benchmarks/bench_engine_for_everyone.py PYTHON    # writes reports/engine-for-everyone.md

PYTHON is one of another environment, with jax_privacy, flax and optax: it runs engine_jax.py.

Each measurement is a process of its own with one thread. Time is the process' own (`time.process_time`), as the machine
may be busy; memory is the peak that the kernel counted, less that of a process which only makes model and data.
"""

from __future__ import annotations

import copy
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opacus
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from scrimp import engine  # noqa: E402
from tests.engine.models import Cell, Centred  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "engine-for-everyone.md"
JAX = str(ROOT / "benchmarks" / "engine_jax.py")
RECORDS, BATCH, STEPS = 2048, 128, 8
LOSS = nn.CrossEntropyLoss(reduction="none")


class Block(nn.Module):
    """Words, an attention layer of linear layers, a feed-forward layer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(2000, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.wide, self.narrow, self.out = nn.Linear(width, 256), nn.Linear(256, width), nn.Linear(width, 10)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        n = self.norm(h)
        h = h + F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n))
        h = h + self.narrow(F.gelu(self.wide(self.last(h))))
        return self.out(h.mean(1))  # type: ignore[no-any-return]


def numbers(*shape: int) -> Tensor:
    return torch.randn(RECORDS, *shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp 784-256-10": (
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
        lambda: numbers(784),
    ),
    "cnn (28 × 28)": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 4, stride=2)),
            *(nn.Tanh(), nn.Flatten(), nn.Linear(32 * 4, 32), nn.Tanh(), nn.Linear(32, 10)),
        ),
        lambda: numbers(1, 28, 28),
    ),
    "cnn with GroupNorm (32 × 32)": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.AvgPool2d(4)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.AvgPool2d(8)),
            *(nn.Flatten(), nn.Linear(64, 10)),
        ),
        lambda: numbers(3, 32, 32),
    ),
    "attention, 32 words": (Block, lambda: torch.randint(0, 2000, (RECORDS, 32))),
    "gru of linear layers, 12 steps": (lambda: Cell(16, 64, 10), lambda: numbers(12, 16)),
}

# What a user writes, given `model`, `x` and `y`.
OPACUS = """\
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy = opacus.PrivacyEngine()
model, optimizer, loader = privacy.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0)
criterion, taken = nn.CrossEntropyLoss(), 0
while taken < STEPS:
    for inputs, labels in loader:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        taken += 1
        if taken == STEPS:
            break
epsilon = privacy.get_epsilon(1e-5)
"""
OURS = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.CrossEntropyLoss(reduction="none")
optimizer, step = engine.make_private(
    model, loss, optimizer, sample_rate=BATCH / RECORDS, noise_multiplier=1.0)
for _ in range(STEPS):
    step((x, y))
epsilon = step.epsilon(1e-5)
"""
CODE = {"Opacus": OPACUS, "scrimp.engine": OURS, "nothing": ""}


def measured(who: str, name: str) -> dict[str, float]:
    """Runs a user's code: in this process, which does nothing else."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, draw = MODELS[name]
    scope = globals() | {"model": make(), "x": draw(), "y": torch.randint(0, 10, (RECORDS,))}
    warnings.simplefilter("ignore")
    begin = time.process_time()
    exec(CODE[who], scope)  # noqa: S102 - the very code whose lines are counted
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak": peak, "epsilon": scope.get("epsilon", 0.0)}


def apart(*words: str, python: str = sys.executable, script: str = __file__) -> dict[str, Any]:
    """What a process of its own prints: `measured`, or of jax_privacy what engine_jax.py measures."""
    done = subprocess.run([python, script, *words], check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# --- What goes wrong ---


class ByHand(nn.Module):
    """Uses a layer's weight twice, once by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = nn.Linear(10, 10), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.one(x)) @ self.one.weight)  # type: ignore[no-any-return]


class Running(nn.Module):
    """Keeps a running mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 2))


X, Y = torch.randn(64, 10), torch.randint(0, 2, (64,))


def with_opacus(model: nn.Module, **how: Any) -> tuple[Any, Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | how
    made = opacus.PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, **given)
    return made[0], made[1], made[2]


def with_ours(model: nn.Module, loss: Any = LOSS) -> engine.Private:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return engine.make_private(model, loss, optimizer, sample_rate=0.25, noise_multiplier=1.0)


def opacus_step(model: nn.Module, loss: Any = None) -> None:
    wrapped, optimizer, _ = with_opacus(model)
    (loss or nn.CrossEntropyLoss())(wrapped(X), Y).backward()
    optimizer.step()


def ours_step(model: nn.Module, loss: Any = LOSS) -> None:
    with_ours(model, loss).step((X, Y))


def opacus_gradients(model: nn.Module) -> str:
    """Are Opacus' per-record gradients autograd's?"""
    reference = copy.deepcopy(model)
    wrapped, _, _ = with_opacus(model)
    nn.CrossEntropyLoss()(wrapped(X), Y).backward()
    for name, each in reference.named_parameters():
        found = dict(model.named_parameters())[name].grad_sample  # type: ignore[attr-defined]
        alone = torch.autograd.grad(LOSS(reference(X[:1]), Y[:1]).sum(), each)[0]
        if float((found[0] - alone).norm()) > 1e-3 * max(1e-9, float(alone.norm())):
            return f"silently wrong: the gradient of {name} is not its record's"
    return "right"


def two_hands(make: Callable[[nn.Module], Any]) -> str:
    """A second engine on the same parameters."""
    model = plain()
    held = make(model)
    make(model)
    del held
    return "silently accepted: two accounts that know nothing of each other"


def opacus_shuffled() -> str:
    """Batches in order, priced as Poisson samples."""
    optimizer = torch.optim.SGD((model := plain()).parameters(), lr=0.1)
    privacy = opacus.PrivacyEngine()
    loader = DataLoader(TensorDataset(X, Y), batch_size=16)
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": False}
    wrapped, optimizer, loader = privacy.make_private(module=model, optimizer=optimizer, data_loader=loader, **given)
    for x, y in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(wrapped(x), y).backward()
        optimizer.step()
    found = privacy.get_epsilon(1e-5)
    return f"silently priced as Poisson samples: ε = {found:.2f} for batches in order"


def opacus_other_loss() -> str:
    """A second loss, on the plain optimizer's `.grad`."""
    model = plain()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16)
    wrapped, _, _ = opacus.PrivacyEngine().make_private(
        module=model, optimizer=inner, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    nn.CrossEntropyLoss()(wrapped(X), Y).backward()
    before = model[0].weight.detach().clone()  # type: ignore[union-attr]
    inner.step()
    moved = not torch.equal(before, model[0].weight)  # type: ignore[union-attr]
    return "silently moved by gradients without noise" if moved else "nothing moved"


def ours_plain_optimizer() -> str:
    model = plain()
    optimizer, _ = with_ours(model)
    LOSS(model(X), Y).mean().backward()
    optimizer.step()
    return "silently moved"


def opacus_buffer() -> str:
    model = nn.Sequential(Running(), nn.Linear(10, 2))
    opacus_step(model)
    return "silently leaves: the buffer holds the records' mean" if bool(model[0].mean.any()) else "right"  # type: ignore[union-attr]


def opacus_sum() -> str:
    """A sum where the default takes a mean."""
    lengths = []
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")):
        torch.manual_seed(0)
        wrapped, _, _ = with_opacus(plain(), max_grad_norm=1e6)
        loss(wrapped(X), Y).backward()
        lengths.append(float(torch.cat([p.grad_sample[0].flatten() for p in wrapped.parameters()]).norm()))
    ratio = lengths[1] / lengths[0]
    return "right" if abs(ratio - 1) < 1e-3 else f"silently {ratio:.0f} times as long before the clip"


TRAPS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "BatchNorm": (
        lambda: opacus_step(nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 2))),
        lambda: ours_step(nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 2))),
    ),
    "a mean over the batch in `forward`": (
        lambda: opacus_step(nn.Sequential(nn.Linear(10, 10), Centred(), nn.Linear(10, 2))),
        lambda: ours_step(nn.Sequential(nn.Linear(10, 10), Centred(), nn.Linear(10, 2))),
    ),
    "a layer's weight used by hand too": (lambda: opacus_gradients(ByHand()), lambda: ours_step(ByHand())),
    "a running mean in a buffer": (opacus_buffer, lambda: ours_step(nn.Sequential(Running(), nn.Linear(10, 2)))),
    "a loss that adds up otherwise": (opacus_sum, lambda: ours_step(plain(), nn.CrossEntropyLoss(reduction="sum"))),
    "batches that were not drawn": (opacus_shuffled, lambda: with_ours(plain()).step(DataLoader(TensorDataset(X, Y)))),
    "the plain optimizer's `step()`": (opacus_other_loss, ours_plain_optimizer),
    "a second engine on the same parameters": (lambda: two_hands(with_opacus), lambda: two_hands(with_ours)),
    "a model in evaluation mode": (lambda: opacus_step(plain().eval()), lambda: ours_step(plain().eval())),
    "`nn.LSTM`": (
        lambda: opacus_step(nn.Sequential(nn.Unflatten(1, (2, 5)), First(), nn.Linear(4, 2))),
        lambda: ours_step(nn.Sequential(nn.Unflatten(1, (2, 5)), First(), nn.Linear(4, 2))),
    ),
}


class First(nn.Module):
    """torch's LSTM, of which the last state goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0][:, -1]  # type: ignore[no-any-return]


def outcome(trap: Callable[[], Any]) -> str:
    """What an engine made of it, in a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            said = trap()
        except Exception as error:  # whatever is raised is a refusal
            text = " ".join(str(error).split()).replace("|", "/")
            return f"refused: {text[:110]}{'…' if len(text) > 110 else ''}"
    return said or "accepted"


def lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def main(python: str) -> None:
    of_jax = apart("traps", python=python, script=JAX)
    rows = []
    for name, (make, _) in MODELS.items():
        count = sum(p.numel() for p in make().parameters())
        base, jax_base = apart("nothing", name), apart("nothing", name, python=python, script=JAX)
        if jax_base["numbers"] != count:
            raise ValueError(f"{name} has {count} numbers here, and {jax_base['numbers']} there")
        cells = [name, f"{count:,}"]
        for figures, own in (
            (apart("Opacus", name), base),
            (apart("measure", name, python=python, script=JAX), jax_base),
            (apart("scrimp.engine", name), base),
        ):
            cells += [f"{1000 * figures['seconds'] / STEPS:.0f}", f"{figures['peak'] - own['peak']:.0f}"]
            cells += [f"{figures['epsilon']:.3f}"]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    traps = [
        f"| {name} | {outcome(theirs)} | {of_jax['traps'][name]} | {outcome(ours)} |"
        for name, (theirs, ours) in TRAPS.items()
    ]
    REPORT.write_text(
        TEXT.format(
            versions=f"Opacus {opacus.__version__}, torch {torch.__version__}, {of_jax['versions']}",
            records=RECORDS,
            batch=BATCH,
            steps=STEPS,
            theirs=lines(OPACUS),
            of_jax=lines(of_jax["code"]),
            ours=lines(OURS),
            opacus=OPACUS.rstrip(),
            jax=of_jax["code"].rstrip(),
            engine=OURS.rstrip(),
            rows="\n".join(rows),
            traps="\n".join(traps),
        )
    )


TEXT = """\
# scrimp.engine beside Opacus and jax_privacy

`python benchmarks/bench_engine_for_everyone.py PYTHON`; {versions}, one thread. {records} records, mean batch {batch},
{steps} steps of SGD at σ = 1, C = 1. The machine was busy, so time is the process' own: checks and compilation before
the first step and ε at the end included, over the steps. Memory is the peak beyond a process that makes model and data.
ε is at δ = 1e-5 after these steps, by each one's own default accountant (of jax_privacy its PLD accountant, of add or
remove one).

| model | trained numbers | Opacus, ms | MiB | ε | jax_privacy, ms | MiB | ε | scrimp.engine, ms | MiB | ε |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{rows}

scrimp.engine computes R rows in every step, drawn or empty, so that no duration tells how many were drawn; rounds its
noise exactly; and tries the model against autograd first. The others do none of these. Where convolutions have many
places and few channels, Opacus took half of our time. jax_privacy compiles its step anew for each size of a padded
batch, which is part of its time here and was not measured apart: of thousands of steps it is a small one. It pads to a
multiple of 32, so a step's time tells the size to within 32.

## Lines

What a user writes, beyond imports, model and data: {theirs} lines with Opacus, {of_jax} with jax_privacy, {ours} here.

```python
# Opacus
{opacus}
```

```python
# jax_privacy, of a pure function `apply(params, x)`
{jax}
```

```python
# scrimp.engine
{engine}
```

## What each refuses, or gets silently wrong

Each cell is what happened when the command ran it. Records never meet in jax_privacy: it maps the loss over them. So a
model that mixes them becomes another one, without a word.

| | Opacus | jax_privacy | scrimp.engine |
|---|---|---|---|
{traps}
"""


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measured(*sys.argv[1:])))
    else:
        main(sys.argv[1])
