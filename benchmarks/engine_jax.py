"""jax_privacy 2.0 on the models of bench_engine_for_everyone.py: run by a Python that has jax_privacy, flax and optax.

    PYTHON benchmarks/engine_jax.py measure|nothing MODEL    # prints a JSON document
    PYTHON benchmarks/engine_jax.py traps

It imports nothing of this repository: the two sides share no environment.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from flax import nnx
from jax_privacy.batch_selection import PartitionType, pad_to_multiple_of  # noqa: F401 - CODE uses it
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

RECORDS, BATCH, STEPS = 2048, 128, 8
ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE

# What a user writes, given `apply(params, x)`, `params`, `x` and `y`.
CODE = """\
config = BandMFExecutionPlanConfig(
    iterations=STEPS, strategy=np.ones(1), epsilon=None, delta=None, noise_multiplier=1.0, normalize_by=BATCH,
    sampling_prob=BATCH / RECORDS, partition_type=PartitionType.INDEPENDENT, accountant=PLDAccountant(ADD_OR_REMOVE))
def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()
plan, optimizer = config.plan, optax.sgd(0.1)
gradient = jax.jit(plan.clipped_grad(loss, batch_argnums=(1, 2)))
noise, state = plan.noise_addition_transform.init(params), optimizer.init(params)
for indices in plan.batch_selection_strategy.batch_iterator(RECORDS):
    indices = pad_to_multiple_of(indices, 32)
    total = gradient(params, x[indices], y[indices], is_padding_example=indices < 0)
    noisy, noise = plan.noise_addition_transform.update(total, noise)
    updates, state = optimizer.update(noisy, state)
    params = optax.apply_updates(params, updates)
epsilon = PLDAccountant(ADD_OR_REMOVE).compose(plan.dp_event).get_epsilon(1e-5)
"""


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, width: int = 64) -> None:
        self.words = nnx.Embed(2000, width, rngs=rngs)
        self.norm, self.last = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.q, self.k, self.v = (nnx.Linear(width, width, rngs=rngs) for _ in range(3))
        self.wide, self.narrow = nnx.Linear(width, 256, rngs=rngs), nnx.Linear(256, width, rngs=rngs)
        self.out = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        h = self.words(ids)
        n = self.norm(h)
        scores = self.q(n) @ self.k(n).swapaxes(-1, -2) / 8.0
        h = h + jax.nn.softmax(scores) @ self.v(n)
        h = h + self.narrow(jax.nn.gelu(self.wide(self.last(h)), approximate=False))
        return self.out(h.mean(1))


class Cell(nnx.Module):
    """A gated recurrent unit of linear layers."""

    def __init__(self, rngs: nnx.Rngs, inputs: int = 16, width: int = 64) -> None:
        self.own, self.state = nnx.Linear(inputs, 3 * width, rngs=rngs), nnx.Linear(width, 3 * width, rngs=rngs)
        self.out = nnx.Linear(width, 10, rngs=rngs)
        self.width = width

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jnp.zeros((len(x), self.width))
        for at in range(x.shape[1]):
            reset, update, new = jnp.split(self.own(x[:, at]), 3, axis=1)
            of_reset, of_update, of_new = jnp.split(self.state(h), 3, axis=1)
            gate = jax.nn.sigmoid(update + of_update)
            h = gate * h + (1 - gate) * jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
        return self.out(h)


def flat(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)


def mlp(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Sequential(nnx.Linear(784, 256, rngs=rngs), jax.nn.relu, nnx.Linear(256, 10, rngs=rngs))


def cnn(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Sequential(
        nnx.Conv(1, 16, (8, 8), strides=2, padding=[(3, 3), (3, 3)], rngs=rngs),
        *(jnp.tanh, lambda x: nnx.max_pool(x, (2, 2), (2, 2))),
        nnx.Conv(16, 32, (4, 4), strides=2, padding="VALID", rngs=rngs),
        *(jnp.tanh, flat, nnx.Linear(128, 32, rngs=rngs), jnp.tanh, nnx.Linear(32, 10, rngs=rngs)),
    )


def grouped(rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Sequential(
        *(nnx.Conv(3, 32, (3, 3), padding=1, rngs=rngs), nnx.GroupNorm(32, num_groups=8, rngs=rngs), jax.nn.relu),
        lambda x: nnx.avg_pool(x, (4, 4), (4, 4)),
        *(nnx.Conv(32, 64, (3, 3), padding=1, rngs=rngs), nnx.GroupNorm(64, num_groups=8, rngs=rngs), jax.nn.relu),
        *(lambda x: nnx.avg_pool(x, (8, 8), (8, 8)), flat, nnx.Linear(64, 10, rngs=rngs)),
    )


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((RECORDS, *shape)), dtype=jnp.float32)


MODELS: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], Callable[[], jax.Array]]] = {
    "mlp 784-256-10": (mlp, lambda: numbers(784)),
    "cnn (28 × 28)": (cnn, lambda: numbers(28, 28, 1)),
    "cnn with GroupNorm (32 × 32)": (grouped, lambda: numbers(32, 32, 3)),
    "attention, 32 words": (Block, lambda: jnp.asarray(np.random.default_rng(0).integers(0, 2000, (RECORDS, 32)))),
    "gru of linear layers, 12 steps": (Cell, lambda: numbers(12, 16)),
}


def taken_apart(model: nnx.Module) -> tuple[Callable[..., Any], Any]:
    """A pure function of parameters, and the parameters."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return lambda params, x: nnx.merge(graph, params, rest)(x), params


def measured(who: str, name: str) -> dict[str, float]:
    make, draw = MODELS[name]
    apply, params = taken_apart(make(nnx.Rngs(0)))
    labels = jnp.asarray(np.random.default_rng(1).integers(0, 10, RECORDS))
    scope: dict[str, Any] = globals() | {"apply": apply, "params": params, "x": draw(), "y": labels}
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    begin = time.process_time()
    if who == "measure":
        exec(CODE, scope)  # noqa: S102 - the very code whose lines are counted
        jax.block_until_ready(scope["params"])
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak": peak, "epsilon": scope.get("epsilon", 0.0), "numbers": count}


# --- What goes wrong ---


X = jnp.asarray(np.random.default_rng(2).standard_normal((64, 10)), dtype=jnp.float32)
Y = jnp.asarray(np.random.default_rng(3).integers(0, 2, 64))


def plain() -> nnx.Module:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(10, 10, rngs=rngs), jnp.tanh, nnx.Linear(10, 2, rngs=rngs))


def loss_of(apply: Callable[..., Any], reduce: Callable[[jax.Array], jax.Array] = jnp.mean) -> Callable[..., Any]:
    return lambda params, x, y: reduce(optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y))


def total(loss: Callable[..., Any], params: Any, clip: float = 1e6) -> Any:
    return jax_privacy.clipped_grad(loss, l2_clip_norm=clip, batch_argnums=(1, 2))(params, X, Y)


def apart(one: Any, other: Any) -> float:
    """How far two gradients are apart, in shares of the second."""
    return float(optax.global_norm(jax.tree.map(jnp.subtract, one, other)) / optax.global_norm(other))


def against_sum(model: nnx.Module) -> str:
    """The sum of clipped gradients, where nothing is clipped, against the gradient of the whole batch's sum."""
    apply, params = taken_apart(model)
    whole = jax.grad(loss_of(apply, jnp.sum))(params, X, Y)
    far = apart(total(loss_of(apply), params), whole)
    return "right" if far < 1e-3 else f"silently another model: its gradient is {far:.0%} off the batch's"


def batch_norm() -> str:
    rngs = nnx.Rngs(0)
    norm = nnx.BatchNorm(10, rngs=rngs)
    return against_sum(nnx.Sequential(nnx.Linear(10, 10, rngs=rngs), norm, nnx.Linear(10, 2, rngs=rngs)))


def centred() -> str:
    rngs = nnx.Rngs(0)
    first, last = nnx.Linear(10, 10, rngs=rngs), nnx.Linear(10, 2, rngs=rngs)
    return against_sum(nnx.Sequential(first, lambda x: x - x.mean(0), last))


class ByHand(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.one, self.out = nnx.Linear(10, 10, rngs=rngs), nnx.Linear(10, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jnp.tanh(self.one(x)) @ self.one.kernel[...].T)


class Recurrent(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.rnn, self.out = nnx.RNN(nnx.OptimizedLSTMCell(5, 4, rngs=rngs)), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.rnn(x.reshape(len(x), 2, 5), rngs=nnx.Rngs(0))[:, -1])


def running_mean() -> str:
    """A state that a pass returns: `has_aux` is how jax_privacy takes it."""
    apply, params = taken_apart(plain())
    with_state = lambda params, x, y: (loss_of(apply)(params, x, y), x.mean(0))  # noqa: E731
    gradient = jax_privacy.clipped_grad(with_state, has_aux=True, l2_clip_norm=1.0, batch_argnums=(1, 2))
    _, extra = gradient(params, X, Y)
    leaves = np.asarray(extra.aux)
    is_there = leaves.shape[0] == len(X) and np.allclose(leaves.reshape(len(X), -1), X)
    return "documented as the caller's: `aux` is each record's own state, without noise" if is_there else "right"


def added_up() -> str:
    apply, params = taken_apart(plain())
    far = apart(total(loss_of(apply, jnp.sum), params), total(loss_of(apply), params))
    return "right" if far < 1e-3 else f"silently {far:.0%} off"


def plan_of() -> Any:
    return BandMFExecutionPlanConfig(
        iterations=4, strategy=np.ones(1), epsilon=None, delta=None, noise_multiplier=1.0, sampling_prob=0.25,
        partition_type=PartitionType.INDEPENDENT, accountant=PLDAccountant(ADD_OR_REMOVE),
    ).plan  # fmt: skip


def in_order() -> str:
    """Batches in order, with the plan's event."""
    apply, params = taken_apart(plain())
    plan = plan_of()
    gradient = plan.clipped_grad(loss_of(apply), batch_argnums=(1, 2))
    noise = plan.noise_addition_transform.init(params)
    for start in range(0, 64, 16):
        _, noise = plan.noise_addition_transform.update(
            gradient(params, X[start : start + 16], Y[start : start + 16]), noise
        )
    epsilon = PLDAccountant(ADD_OR_REMOVE).compose(plan.dp_event).get_epsilon(1e-5)
    return f"silently priced as Poisson samples: ε = {epsilon:.2f} for batches in order"


def without_noise() -> str:
    """A loop that leaves out one line."""
    apply, params = taken_apart(plain())
    optimizer = optax.sgd(0.1)
    updates, _ = optimizer.update(
        plan_of().clipped_grad(loss_of(apply), batch_argnums=(1, 2))(params, X, Y), optimizer.init(params)
    )
    moved = apart(optax.apply_updates(params, updates), params) > 0
    return "silently moved by gradients without noise" if moved else "nothing moved"


def two_plans() -> str:
    _, params = taken_apart(plain())
    for plan in (plan_of(), plan_of()):
        plan.noise_addition_transform.init(params)
    return "silently accepted: two events that know nothing of each other"


def evaluated() -> str:
    model = plain()
    model.eval()
    return against_sum(model)


TRAPS: dict[str, Callable[[], str]] = {
    "BatchNorm": batch_norm,
    "a mean over the batch in `forward`": centred,
    "a layer's weight used by hand too": lambda: against_sum(ByHand()),
    "a running mean in a buffer": running_mean,
    "a loss that adds up otherwise": added_up,
    "batches that were not drawn": in_order,
    "the plain optimizer's `step()`": without_noise,
    "a second engine on the same parameters": two_plans,
    "a model in evaluation mode": evaluated,
    "`nn.LSTM`": lambda: against_sum(Recurrent()),
}


def outcome(trap: Callable[[], str]) -> str:
    """What the library made of it, in a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return trap()
        except Exception as error:  # whatever is raised is a refusal
            text = " ".join(str(error).split()).replace("|", "/")
            return f"refused: {text[:110]}{'…' if len(text) > 110 else ''}"


if __name__ == "__main__":
    if sys.argv[1] == "traps":
        versions = f"jax_privacy {jax_privacy.__version__}, jax {jax.__version__}"
        print(
            json.dumps({"versions": versions, "code": CODE, "traps": {n: outcome(each) for n, each in TRAPS.items()}})
        )
    else:
        print(json.dumps(measured(*sys.argv[1:])))
