"""What the engine computes, against autograd a record at a time, Opacus, torch.optim and dp_accounting."""

from __future__ import annotations

import copy
import doctest
import math
import warnings
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import scipy.stats
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from torch import Tensor, nn

from scrimp import engine
from scrimp.engine import draws, own_records, pure, training
from tests.engine.models import CASES, CROSS, Data, drawn, flat, mlp, one_by_one
from worker.noise.gaussian import GaussianRelease


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("norm", [0.1, 100.0])
def test_a_clipped_sum_is_autograd_s_a_record_at_a_time(name: str, norm: float) -> None:
    case = CASES[name]
    model, data = case.model().double(), tuple(x.double() if x.is_floating_point() else x for x in case.data(37))
    wanted = flat(one_by_one(model, case, data, norm))
    found = flat(engine.clipped_sum(model, case.loss, data, max_grad_norm=norm, rows=64).values)
    assert float((found - wanted).norm()) <= 1e-9 * float(wanted.norm())


@pytest.mark.parametrize("name", [name for name in CASES if name != "attention"])
def test_a_clipped_sum_is_opacus_s(name: str) -> None:
    """Opacus 1.6 forms each record's gradient. Its hooks know no bare vector of a layer's own in a cat: see below."""
    from opacus.grad_sample import GradSampleModule

    case = CASES[name]
    model, data = case.model(), case.data(37)
    found = flat(engine.clipped_sum(model, case.loss, data, max_grad_norm=0.5, rows=64).values)
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    *inputs, target = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.loss(wrapped(*inputs), target).sum().backward()
    of_each = torch.cat([_summed(p.grad_sample).double().flatten(1) for p in wrapped.parameters()], dim=1)
    wanted = (of_each * (0.5 / of_each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    assert float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())


def _summed(grad_sample: Any) -> Tensor:
    """A parameter that was used several times has a list."""
    return torch.stack(grad_sample).sum(0) if isinstance(grad_sample, list) else grad_sample


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_without_noise_and_clipping_a_loop_is_torch_s(kind: type[torch.optim.Optimizer]) -> None:
    """q = 1: every record in every step, so that both see the same gradients."""
    (data, private) = drawn(50, 10), mlp().double()
    data = data[0].double(), data[1]
    plain = copy.deepcopy(private)
    one, two = (kind(each.parameters(), lr=0.1) for each in (private, plain))  # type: ignore[call-arg]
    settings = engine.LoopSettings(max_grad_norm=1e6)
    _, step = engine.make_private(private, CROSS, one, sample_rate=1.0, noise_multiplier=1e-15, settings=settings)
    for _ in range(5):
        step(data)
        two.zero_grad()
        CROSS(plain(data[0]), data[1]).mean().backward()
        two.step()
    assert torch.allclose(flat(dict(private.named_parameters())), flat(dict(plain.named_parameters())), atol=1e-6)


def test_train_moves_as_its_optimizer_s_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a noise that cannot be seen, and C above every gradient: momentum on full batches."""
    noiseless = training.calibrate(1.0, 1e-5, 1.0, 6)._replace(noise_multiplier=1e-12)
    monkeypatch.setattr(training, "calibrate", lambda *_: noiseless)
    data, model = drawn(40, 10), mlp().double()
    data = data[0].double(), data[1]
    plain = copy.deepcopy(model)
    asked = engine.Settings(
        batch_size="all", optimizer=engine.DpSgd(learning_rate=0.2, momentum=0.9), max_grad_norm=1e4, progress=None
    )
    engine.train(model, CROSS, data, target_epsilon=1.0, delta=1e-5, steps=6, settings=asked)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        CROSS(plain(data[0]), data[1]).mean().backward()
        optimizer.step()
    assert torch.allclose(flat(dict(model.named_parameters())), flat(dict(plain.named_parameters())), atol=1e-6)


def test_the_noise_of_a_step_is_gaussian_and_of_the_stated_size() -> None:
    """A model of 20,000 numbers, and records without a gradient: what is left is noise."""
    model = nn.Linear(20_000, 1, bias=False).double()
    before = model.weight.detach().clone()
    data = torch.zeros(100, 20_000).double(), torch.zeros(100, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    _, step = engine.make_private(
        model, lambda output, target: (output - target)[:, 0], optimizer, sample_rate=0.1, noise_multiplier=1.5
    )
    step(data)
    slack = step.report(1e-5).sensitivity_slack
    noise = ((model.weight.detach() - before) * 10 / (1.5 * slack)).flatten().numpy()
    assert scipy.stats.kstest(noise, "norm").pvalue > 1e-3
    assert abs(float(np.corrcoef(noise[:-1], noise[1:])[0, 1])) < 0.03


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.01, 1.1, 500), (0.2, 3.0, 60), (1.0, 5.0, 20)])
def test_epsilon_is_dp_accounting_s(rate: float, sigma: float, steps: int) -> None:
    found = engine.account(engine.event_of(rate, sigma, steps), delta=1e-5).value
    one = pld.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    wanted = one.self_compose(steps).get_epsilon_for_delta(1e-5)
    assert math.isclose(found, wanted, rel_tol=2e-3)


def test_a_draw_is_poisson_over_the_records() -> None:
    """Counts of 400 steps, by a test that fixed keys make repeat."""
    data = own_records.TensorRecords((torch.arange(500.0), torch.zeros(500)))
    source = draws.Draws(draws.Keys(), draws.Places(500, 0.1))
    counts, rows = [], set()
    for step in range(1, 401):
        batch = source.rows(step, data)
        rows.add(len(batch))
        counts.append(int((np.asarray(batch.occupants[:]) >= 0).sum()))
    assert rows == {draws.Places(500, 0.1).rows}
    assert abs(np.mean(counts) - 50) < 4 * math.sqrt(45 / 400) and 30 < np.var(counts) < 62


@pytest.mark.parametrize("module", [pure, own_records, training])
def test_examples_in_the_text_hold(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_it_is_the_service_s_own_code() -> None:
    """No second loop: what takes a job's step takes these."""
    from worker.training import loop, steps

    assert training.take is loop.take is steps.take
    assert pure.GaussianRelease is GaussianRelease


def test_a_trained_model_predicts_and_its_report_is_whole(tmp_path: Any) -> None:
    x, _ = drawn(1500, 10)
    data: Data = (x, (x[:, 0] > 0).long())
    asked = engine.Settings(optimizer=engine.DpAdam(learning_rate=0.02), records=1400, progress=None)
    result = engine.train(mlp(), CROSS, data, target_epsilon=3.0, delta=1e-5, steps=60, settings=asked)
    assert float((result.model(x).argmax(1) == data[1]).double().mean()) > 0.9
    report = result.report
    assert report.epsilon.value <= 3.0 and not report.counted and report.places == 1534 and report.steps == 60
    assert engine.account(report.event, delta=1e-5) == report.epsilon
    report.save(tmp_path / "report.json")
    assert '"signed": false' in (tmp_path / "report.json").read_text() and "unsigned" in str(report)
