"""Models of every kind at their worst, and how far one unit moves what is summed over them.

Weights have a gain of 30, so that a last bit that depends on neighbours becomes a change of order 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.augmentation import Augmentation, Crop, DropWords, Erase, Flip
from core.contracts.cnn import ImageSize
from core.contracts.gcn import GcnModel
from core.contracts.job_spec import (
    Clipping,
    CnnModel,
    GruRecModel,
    LstmRecModel,
    MlpModel,
    Ranking,
    ReAttention,
    TransformerRecModel,
)
from core.privacy.mechanism import TrainingMechanism
from core.privacy.numerics import sensitivity_slack
from core.privacy.releases import SCORE, NoisyScore
from worker.clipping.build import build_engine
from worker.clipping.engine import Clip, GradientEngine
from worker.data.passes import EMPTY, Batch
from worker.data.records import Records
from worker.data.secret_slots import Slotted
from worker.metrics.scores import _private_sums, _ranked
from worker.models.base import Model, Parameters
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.next_item import NextItem
from worker.models.views import Views, stilled
from worker.training.self_test import random_parameters, random_records

C = 0.5
MOST = 33  # units
EVERY = tuple(range(1, MOST + 1))
NUMBERS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 20, 31, 32, 33)
FEW = (1, 2, 3, 4, 17)  # where a pass takes long
SCORES = {
    "accuracy": {"what": "accuracy"},
    "auc": {"what": "auc"},
    "loss": {"what": "loss", "sensitivity": 8.0},
}


@dataclass(frozen=True)
class Case:
    """A model of the catalogue at its worst.

    Attributes:
        positions: rows that a record has in one product.
        numbers: of units, in `make test`.
        slow: all numbers up to MOST are too many, in the nightly run too.
        per_unit: k, records of each unit.
        divided: gradients are divided, as by DP² and by scale-then-privatize, by numbers from 10⁻³ to 10³.
        views: of each record; neighbours' records keep theirs.
    """

    model: Model
    positions: int = 1
    sparse: bool = False
    numbers: tuple[int, ...] = NUMBERS
    slow: bool = False
    per_unit: int = 1
    divided: bool = False
    views: Views | None = None

    @property
    def slack(self) -> float:
        return sensitivity_slack(MOST * self.per_unit + 1, self.model.rows_per_pass, self.positions)


def network(spec: Any, features: int = 33, dtype: torch.dtype = torch.float32, **more: Any) -> Case:
    return Case(Network(features, 4, spec, dtype=dtype), **more)


def next_items(spec: Any, dtype: torch.dtype = torch.float32, **more: Any) -> Case:
    model = NextItem(300, spec, dtype=dtype)
    if model.effective_errors is not None:
        model.effective_errors.restore(0.01, torch.linspace(0.005, 0.25, model.items + 1))
    return Case(model, 2 * spec.max_length, **({"numbers": FEW} | more))


DEEP = MlpModel(hidden=[128] * 16)
ODD = MlpModel(hidden=[33, 7, 30, 3, 31, 65])
SMALL_IMAGE = ImageSize(height=4, width=4, channels=3)
VIEWED = CnnModel(preset="conv5", image=ImageSize(height=8, width=8, channels=2))
IMAGES = Augmentation(views=4, transforms=(Crop(padding=3), Flip(), Erase(side=3)))
WORDS = Augmentation(views=4, transforms=(DropWords(rate=0.5),))
SMALL: dict[str, Any] = {"dim": 16, "blocks": 3, "max_length": 12}
CASES = {
    "deep tanh": network(DEEP),
    "deep tanh, float64": network(DEEP, dtype=torch.float64),
    "deep tanh, odd widths": network(ODD),
    "deep relu": network(MlpModel(hidden=[64] * 12, activation="relu")),
    "conv2": network(CnnModel(preset="conv2"), 784, positions=196, numbers=FEW, slow=True),
    "gru, length 200": next_items(
        GruRecModel(dim=16, layers=8, max_length=200, loss_positions="last"), numbers=(2, 4), slow=True
    ),
    "lstm": next_items(LstmRecModel(dim=16, layers=4, max_length=50), slow=True),
    "transformer": next_items(TransformerRecModel(dim=32, blocks=8, max_length=30), slow=True),
    "transformer, last": next_items(
        TransformerRecModel(dim=32, heads=2, blocks=4, max_length=30, loss_positions="last", tied=False)
    ),
    "graph": network(GcnModel(hops=2, neighbours=3, hidden=(33, 7)), 35, positions=4),
    "linear": Case(Linear(33, 5, bias=True)),
    "linear, sparse": Case(Linear(500, 3), sparse=True),
    "regression": Case(Linear(7, 1)),
    "ratings": Case(MatrixFactorization(20, 30, 7, (1.0, 5.0))),
}
# Of the nightly run alone: millions of parameters.
LARGE = {
    "wrn16_4": network(
        CnnModel(preset="wrn16_4", activation="relu", weight_standardization=True, image=SMALL_IMAGE),
        SMALL_IMAGE.numbers,
        positions=16,
        numbers=(2,),
        slow=True,
    ),
}
MORE = {
    "conv5": network(CnnModel(preset="conv5"), 3072, positions=1024, numbers=(2,), slow=True),
    "deep tanh, bfloat16": network(DEEP, dtype=torch.bfloat16, numbers=FEW),
    "transformer, bfloat16": next_items(TransformerRecModel(**SMALL), torch.bfloat16, numbers=(1, 2, 3)),
    "re-attention, logits": next_items(
        TransformerRecModel(**SMALL, re_attention=ReAttention(mode="logits")), numbers=(1, 2, 3)
    ),
    "re-attention, paper": next_items(
        TransformerRecModel(**SMALL, re_attention=ReAttention(mode="paper")), numbers=(1, 2, 3)
    ),
    "gru, float64": next_items(GruRecModel(dim=16, layers=4, max_length=20), torch.float64, numbers=(1, 3, 4)),
    "users, deep tanh": network(DEEP, per_unit=3, numbers=FEW),
    "users, linear": Case(Linear(33, 5, bias=True), per_unit=4),
    "views, conv5": network(VIEWED, 128, positions=4 * 64, numbers=FEW, views=Views(IMAGES, VIEWED.pixels())),
    "views, sparse": Case(Linear(500, 3), sparse=True, positions=4, views=Views(WORDS, None)),
    "divided, odd widths": network(ODD, divided=True),
    "divided, transformer": next_items(TransformerRecModel(**SMALL), divided=True, numbers=(1, 2, 3)),
    "divided, linear": Case(Linear(33, 5, bias=True), divided=True),
    "divided, sparse": Case(Linear(500, 3), sparse=True, divided=True),
    "divided, ratings": Case(MatrixFactorization(20, 30, 7, (1.0, 5.0)), divided=True),
}


def engine_of(model: Model, kind: str = "flat", name: str = "bookkeeping", **more: Any) -> GradientEngine:
    """Args: as build_engine's `positions`, `views`, `group` and `grid`; `per_unit`, k; `reach`."""
    training = {
        "sampling": "full_batch",
        "sample_rate": 1.0,
        "steps": 1,
        "noise_multiplier": 1.0,
        "max_grad_norm": C,
        "clipping": kind,
        "expected_batch_size": 32,
        "records_per_unit": more.get("per_unit", 1),
        "reach": more.get("reach", 1),
    }
    clipping = Clipping.model_validate({"kind": kind, "max_grad_norm": C, "engine": name})
    mechanism = TrainingMechanism.model_validate(training)
    settings = {key: value for key, value in more.items() if key not in ("per_unit", "reach")}
    return build_engine(model, clipping, mechanism, **settings)


def flat(parts: Parameters) -> Tensor:
    return torch.cat([each.flatten() for each in parts.values()])


def drawn(case: Case) -> tuple[Parameters, Records]:
    generator = torch.Generator().manual_seed(1)
    parameters = random_parameters(case.model, generator)
    return parameters, random_records(case.model, (MOST + 1) * case.per_unit, generator, sparse=case.sparse)


def slotted(records: Records, units: NDArray[np.int64], per_unit: int = 1) -> Slotted[Any]:
    """These units in rows of their own, which are the same whoever else is there; the other rows are empty."""
    rows = np.random.default_rng(0).permutation(len(records))
    numbers = (per_unit * units[:, None] + np.arange(per_unit)).flatten()
    occupants = np.full(len(records), EMPTY)
    occupants[rows[numbers]] = numbers
    return Slotted(records, occupants)


def neighbours(records: Records, n: int, per_unit: int = 1) -> Iterator[tuple[Slotted[Any], Slotted[Any]]]:
    """The first n units, with and without the last one, and with and without the first one."""
    everyone = np.arange(n)
    whole = slotted(records, everyone, per_unit)
    for at in sorted({n - 1, 0}):
        yield whole, slotted(records, np.delete(everyone, at), per_unit)


def moves(
    of: Callable[[Batch[Any]], Tensor], records: Records, numbers: tuple[int, ...], per_unit: int = 1
) -> Iterator[Tensor]:
    """f(D) − f(D′) for neighbours of these numbers of units."""
    for n in numbers:
        pairs = list(neighbours(records, n, per_unit))
        whole = of(pairs[0][0])
        yield from (whole - of(fewer) for _, fewer in pairs)


def largest_change(
    case: Case, engine: GradientEngine, parameters: Parameters, records: Records, numbers: tuple[int, ...] | None = None
) -> float:
    """max ‖S − S′‖ / C over pairs of neighbours."""
    clip = Clip(C, _divisors(parameters)) if case.divided else None

    def summed(some: Batch[Any]) -> Tensor:
        return flat(engine.private_sum(parameters, some, clip))

    with stilled(case.views):
        return max(float(each.norm()) / C for each in moves(summed, records, numbers or case.numbers, case.per_unit))


def _divisors(parameters: Parameters) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    return {name: 10 ** (6 * torch.rand(p.shape, generator=generator).double() - 3) for name, p in parameters.items()}


def worst_sum(case: Case, numbers: tuple[int, ...] | None = None) -> float:
    """max ‖S − S′‖ / C of a case."""
    parameters, records = drawn(case)
    engine = engine_of(case.model, positions=case.positions, per_unit=case.per_unit, views=case.views)
    return largest_change(case, engine, parameters, records, numbers)


def scores(case: Case, what: str) -> bool:
    """Whether this kind of model has this score."""
    return what == "loss" or (case.model.classification and (what == "accuracy" or case.model.outputs == 2))


def sums_of(release: NoisyScore, model: Model, parameters: Parameters, records: Batch[Any]) -> Tensor:
    """A score's sums, before their noise."""
    return torch.tensor(_private_sums(release, model, parameters, records), dtype=torch.float64)


def worst_score(case: Case, what: str, numbers: tuple[int, ...] | None = None) -> float:
    """How far one record moves a score's sums, in parts of their sensitivity."""
    release = SCORE.validate_python({"account": "holdout", "noise_mu": 0.5, "records": 34} | SCORES[what])
    parameters, records = drawn(case)

    def summed(some: Batch[Any]) -> Tensor:
        return sums_of(release, case.model, parameters, some)

    return max(float(each.norm()) / release.sensitivity for each in moves(summed, records, numbers or case.numbers))


def worst_ranking(case: Case, numbers: tuple[int, ...] | None = None) -> float:
    """How far one user moves NDCG's and HIT's sums."""
    parameters, records = drawn(case)

    def ranked(some: Batch[Any]) -> Tensor:
        sums = torch.zeros(2, dtype=torch.float64)
        for gains, hits, of in _ranked(Ranking(k=200), case.model, parameters, some):
            sums += torch.stack([gains[of.present].sum(), hits[of.present].sum()])
        return sums

    return max(float(each.abs().max()) for each in moves(ranked, records, numbers or case.numbers))
