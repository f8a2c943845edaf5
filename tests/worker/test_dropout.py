"""Dropout: masks by record and step, whatever the physical batches; what runs replays; the model in use has none."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.contracts.job_spec import Clipping
from core.errors import PrivacyError
from tests.worker.layers import Tensors
from tests.worker.support import Supervisor, dense, key, plan_of, records, run_direct, spec, start_of
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine
from worker.clipping.plain import PlainGradient
from worker.models.dropout import Masks
from worker.models.initial import keyed_normals
from worker.models.recommenders import TransformerRec

KEY = bytes.fromhex(key("dropout"))
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
X, Y = dense(100, 5, 3)
TRAIN, HOLDOUT = records(X[:80], Y[:80]), records(X[80:], Y[80:])
MLP = {"kind": "mlp", "hidden": [8, 6], "dropout": 0.4}
POISSON = {"kind": "poisson", "expected_batch_size": 16}


def start(**changes: Any) -> dict[str, Any]:
    return start_of(spec(**{"model": MLP, "runtime": {"dtype": "float64"}, **changes}), SHAPE)


def flat(total: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in total.values()])


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_how_a_batch_is_split_changes_no_mask(engine: str) -> None:
    asked = Clipping(engine=engine, max_grad_norm=0.3)
    sums = []
    for step, rows in ((1, 96), (1, 1), (1, 7), (2, 96)):
        plan = plan_of(start(clipping=asked.model_dump()))
        model = replace(plan.model, rows_per_pass=rows)  # type: ignore[type-var]
        parameters, made = model.init(KEY), build_engine(model, asked, plan.mechanism.training)
        model.masks.begin(KEY, step)  # type: ignore[attr-defined]
        sums.append(flat(made.private_sum(parameters, TRAIN)))
    for other in sums[1:3]:
        torch.testing.assert_close(other, sums[0], rtol=1e-12, atol=1e-14)
    assert float((sums[3] - sums[0]).norm()) > 0.05 * float(sums[0].norm())  # another step, other masks


def test_a_pass_without_a_step_is_refused_and_a_model_in_use_drops_nothing() -> None:
    plan = plan_of(start())
    parameters = plan.model.init(KEY)
    with pytest.raises(PrivacyError):
        plan.engine.private_sum(parameters, TRAIN)
    plain = plan_of(start(model=MLP | {"dropout": 0.0})).model
    renamed = dict(zip(plain.init(KEY), parameters.values(), strict=True))
    assert torch.equal(plan.model.forward(parameters, HOLDOUT), plain.forward(renamed, HOLDOUT))


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
def test_a_killed_attempt_goes_on_to_the_same_bits(sampling: dict[str, Any]) -> None:
    straight = Supervisor(start(sampling=sampling))
    weights = flat(run_direct(straight, TRAIN, HOLDOUT)[0].parameters)
    for step in (1, 5, 10):
        record = Supervisor(start(sampling=sampling), die_at=step)
        with pytest.raises(ConnectionError):
            run_direct(record, TRAIN, HOLDOUT)
        record.die_at = None
        assert torch.equal(flat(run_direct(record, TRAIN, HOLDOUT)[0].parameters), weights)
        assert record.digests() == straight.digests() and record.resalts == 0


@pytest.mark.parametrize("positions", ["all", "last"])
def test_a_transformer_with_dropout_sums_what_one_record_at_a_time_gives(positions: str) -> None:
    masks = Masks(0.3)
    module = TransformerRec(11, 8, 2, 2, 6, positions=positions, masks=masks).double()
    parameters = keyed_normals(module, KEY)
    ids = torch.randint(1, 11, (9, 7), generator=torch.Generator().manual_seed(0))
    whole = (ids[:, :-1], ids[:, 1:])
    masks.begin(KEY, 3)
    one = PlainGradient(module, TransformerRec.record_losses, rows=1, dtype=torch.float64)
    wanted = flat(one.private_sum(parameters, Tensors(*whole)))
    for rows in (1, 9, 12):
        engine: Bookkeeping[Any] = Bookkeeping(
            copy.deepcopy(module), TransformerRec.record_losses, rows=rows, kind="flat", max_grad_norm=1e6
        )
        masks = engine._module.dropout.masks  # type: ignore[union-attr, assignment]
        masks.begin(KEY, 3)
        got = flat(engine.private_sum(parameters, Tensors(*whole)))
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
