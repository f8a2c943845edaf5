"""Re-Attention: how the noise's variance goes through layers, what attention makes of it, and what it may know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.contracts.dataset_spec import Interactions
from core.contracts.job_spec import JobSpec, ReAttention, TransformerRecModel
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from tests.by_night import but
from tests.worker.support import Supervisor, assert_released_once, key, plan_of, run_thread, spec, start_of
from tests.worker.test_next_item import ITEMS, LENGTH, SHAPE, features, records, stored
from worker.messages import Shape
from worker.models.initial import keyed_normals
from worker.models.next_item import NextItem
from worker.models.re_attention import Errors, corrected, exponents, through_linear, through_relu
from worker.models.recommenders import Block, TransformerRec
from worker.statistics.base import Job, Noise
from worker.statistics.frequencies import ItemFrequencies

KEY = bytes(range(32))


def errors(mode: str = "logits", scale: float = 1.0, items: int = 20, **changes: Any) -> Errors:
    """Of σ = 1 and L = 100, with items from common to rare."""
    made = Errors(ReAttention.model_validate({"mode": mode, "scale": scale} | changes))
    made.instantiate(1.0, 100, torch.linspace(1.0, 0.02, items), 0.01)
    return made


def encoder(of: Errors | None, dim: int = 32, heads: int = 1, length: int = 8) -> TransformerRec:
    module = TransformerRec(21, dim, heads, 2, length, errors=of).double()
    for parameter, value in zip(module.parameters(), keyed_normals(module, KEY).values(), strict=True):
        parameter.data.copy_(value)
    module.embedding.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    return module


@pytest.mark.parametrize(("std", "variance"), [(0.01, 3.408e-5), (0.1, 3.408e-3), (1.0, 0.3408)])
def test_the_golden_variances_of_relu(std: float, variance: float) -> None:
    mean, found = through_relu(torch.zeros(1, dtype=torch.float64), torch.full((1,), std**2, dtype=torch.float64))
    assert float(found) == pytest.approx(variance, rel=1e-3)
    assert float(mean) == pytest.approx(std * 0.39894, rel=1e-4)


def test_relu_far_from_its_kink() -> None:
    """Far above it is the identity, far below zero; and a variance of 0 stays."""
    mean, variance = through_relu(torch.tensor([50.0, -50.0, 3.0, -3.0]), torch.tensor([4.0, 4.0, 0.0, 0.0]))
    torch.testing.assert_close(mean, torch.tensor([50.0, 0.0, 3.0, 0.0]))
    torch.testing.assert_close(variance, torch.tensor([4.0, 0.0, 0.0, 0.0]), atol=1e-4, rtol=1e-4)


def test_effective_errors() -> None:
    of = errors(scale=0.5)
    assert of.blocks == pytest.approx(0.005)
    assert of.items[0] == 0.0 and of.items[1] == pytest.approx(0.005) and of.items[20] == pytest.approx(0.25)
    rare = Errors(ReAttention(mode="logits"))
    rare.instantiate(2.0, 10, torch.tensor([0.0, -3.0, 0.5]), 0.01)
    assert rare.items.tolist() == pytest.approx([0.0, 20.0, 20.0, 0.4]), "the floor of p_i"
    with pytest.raises(PrivacyError):
        TransformerRec(5, 4, 1, 1, 3, errors=Errors(ReAttention(mode="paper")))(torch.tensor([[1, 2, 0]]))


def test_a_linear_layer_s_variance_is_that_of_samples() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 8).double()
    mean, variance, error, n = torch.randn(16).double(), torch.rand(16).double(), 0.3, 40_000
    x = mean + variance.sqrt() * torch.randn(n, 16).double()
    w, b = (each + error * torch.randn(n, *each.shape).double() for each in (layer.weight, layer.bias))
    sampled = (torch.einsum("nqd,nd->nq", w, x) + b).var(dim=0)
    torch.testing.assert_close(through_linear(layer, mean, variance, error), sampled.detach(), rtol=0.05, atol=0.0)


# Of a layer's mean variance, how far propagation may be from what is sampled, relatively; the table in
# docs/recommenders.md. `merge` is attention's output: its weights are taken for known, so that their noise is missing.
TOLERANCES = {"attention_norm": 0.2, "key": 0.15, "merge": 0.4, "norm": 0.2, "widen": 0.2, "narrow": 0.2, "out": 0.3}


def sampled_and_propagated(of: Errors, heads: int, samples: int) -> dict[tuple[int, str], tuple[float, float]]:
    """The mean variance of each layer's outputs, of both blocks: from samples of all weights, and as propagated."""
    torch.manual_seed(0)
    module, ids = encoder(of, heads=heads), torch.randint(1, 21, (4, 8))
    propagated: list[dict[str, Tensor]] = []
    original = Block.propagated

    def watched(self: Block, attended: Tensor, variances: dict[str, Tensor]) -> dict[str, Tensor]:
        propagated.append(original(self, attended, variances))
        return propagated[-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Block, "propagated", watched)
        module(ids)
    means = {name: value.detach().clone() for name, value in module.named_parameters()}
    seen: dict[tuple[int, str], Tensor] = {}
    for number, block in enumerate(module.blocks):
        for name in TOLERANCES:
            layer = block if name == "out" else getattr(block, name)

            def note(_: Any, __: Any, output: Any, to: tuple[int, str] = (number, name)) -> None:
                seen[to] = output[0] if isinstance(output, tuple) else output

            layer.register_forward_hook(note)
    sums: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    for _ in range(samples):
        for name, value in module.named_parameters():
            error = of.items[:, None] if name == "embedding.weight" else torch.tensor(of.blocks)
            value.data.copy_(means[name] + error * torch.randn_like(value))
        with torch.no_grad():
            module(ids)
        for place, x in seen.items():
            one, two = sums.get(place, (torch.zeros_like(x), torch.zeros_like(x)))
            sums[place] = one + x, two + x.square()
    return {
        (number, name): (
            float((two / samples - (one / samples).square()).mean()),
            float(propagated[number][name].mean()),
        )
        for (number, name), (one, two) in sums.items()
    }


@pytest.mark.parametrize(("scale", "heads"), but([(0.3, 1), (4.0, 1), (1.0, 2)], lambda case: case == (1.0, 2)))
def test_variances_go_through_whole_blocks_as_samples_say(scale: float, heads: int) -> None:
    found = sampled_and_propagated(errors(scale=scale), heads, 250)
    off = {place: propagated / sampled - 1.0 for place, (sampled, propagated) in found.items()}
    wrong = {place: value for place, value in off.items() if abs(value) > TOLERANCES[place[1]]}
    assert len(off) == 2 * len(TOLERANCES) and not wrong, wrong


def test_attention_turns_away_from_what_is_uncertain() -> None:
    seen = torch.ones(3, 3, dtype=torch.bool).tril()[None]
    queries, variance = torch.ones(1, 1, 3, 4), torch.tensor([0.1, 0.5, 2.0])[:, None].expand(1, 1, 3, 4)
    exponent = exponents(queries, variance)
    torch.testing.assert_close(exponent[0, 0, 2], torch.tensor([0.05, 0.25, 1.0]))
    logits = torch.randn(1, 1, 3, 3)
    plain = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=3)
    inside, paper = (corrected(logits, seen, exponent, errors(mode)) for mode in ("logits", "paper"))
    torch.testing.assert_close(paper, plain * torch.exp(-exponent) * seen)
    torch.testing.assert_close(inside.sum(dim=3), torch.ones(1, 1, 3))
    torch.testing.assert_close(inside, paper / paper.sum(dim=3, keepdim=True))
    capped = corrected(logits, seen, 1000 * exponent, errors("paper", max_exponent=2.0))
    torch.testing.assert_close(capped, plain * np.exp(-2.0), msg="the cap")
    same = corrected(logits, seen, torch.full_like(exponent, 1e6), errors("logits"))
    torch.testing.assert_close(same, plain, msg="what all keys have in common is no difference")


@pytest.mark.parametrize("mode", ["logits", "paper"])
def test_more_noise_changes_outputs_and_none_does_not(mode: str) -> None:
    ids = torch.tensor([[3, 20, 7, 15, 0, 0, 0, 0]])
    off, small, large = (encoder(of) for of in (None, errors(mode, 1e-6), errors(mode, 30.0)))
    torch.testing.assert_close(small(ids), off(ids))
    assert float((large(ids) - off(ids)).detach().norm()) > 0.01
    torch.testing.assert_close(large(ids[:, :3])[0, :3], large(ids)[0, :3], msg="what comes later is not seen")


# --- Frequencies ---


def model(**changes: Any) -> NextItem:
    re_attention = {"mode": "logits"} | changes
    asked = TransformerRecModel.model_validate({"dim": 4, "max_length": LENGTH, "re_attention": re_attention})
    return NextItem(ITEMS, asked, dtype=torch.float64)


def mechanism(noise_mu: float | None) -> MechanismConfig:
    made = start_of(spec(evaluation=None), SHAPE)["mechanism"] | {"unit": "user"}
    frequencies = None if noise_mu is None else {"noise_mu": noise_mu, "max_items": LENGTH}
    return MechanismConfig.model_validate(made | {"frequencies": frequencies})


def job(of: NextItem, charged: MechanismConfig | None, declared: Interactions) -> Job:
    return Job(JobSpec.model_validate(spec()), charged, of, declared, Shape.model_validate(SHAPE))


def told(noise_mu: float | None, *, data_public: bool, declared: list[float] | None = None, salt: str = "a") -> Tensor:
    """1 / p_i up to σ/L, as the model is told."""
    asked = {"frequencies": "noisy", "noise_mu": noise_mu} if noise_mu else {}
    of = Interactions.model_validate(features() | {"item_frequencies": declared})
    made = ItemFrequencies.of(job(model(**asked), mechanism(noise_mu), of))
    assert made is not None
    made.release(records(40), Noise(bytes.fromhex(key(salt, "release")), 0), data_public=data_public)
    return made.errors.items[1:] / made.errors.blocks


def test_counts_are_of_users_and_bounded() -> None:
    some = records(40)
    counts = some.item_counts(ITEMS, LENGTH)
    inputs = some.windows(LENGTH)[0]
    wanted = [sum(1 for row in inputs.tolist() if item + 1 in row) for item in range(ITEMS)]
    assert counts.tolist() == wanted
    for removed in range(0, 40, 5):
        fewer = some.select(np.delete(np.arange(40), removed)).item_counts(ITEMS, LENGTH)
        assert float((counts - fewer).norm()) <= LENGTH**0.5 and float((counts - fewer).min()) >= 0.0


def test_frequencies_are_declared_or_paid_for() -> None:
    counts = records(40).item_counts(ITEMS, LENGTH)
    torch.testing.assert_close(told(None, data_public=True), 40 / counts.clamp(min=1.0))
    declared = [0.5] * (ITEMS - 1) + [0.0]
    assert told(None, data_public=False, declared=declared).tolist() == pytest.approx([2.0] * (ITEMS - 1) + [40.0])
    with pytest.raises(PrivacyError):
        told(None, data_public=False)
    with pytest.raises(PrivacyError, match="no"):
        ItemFrequencies.of(job(model(), None, Interactions.model_validate(features())))
    again = told(5.0, data_public=False)
    assert torch.equal(again, told(5.0, data_public=False)), "the same key, the same noise"
    assert not torch.equal(again, told(5.0, data_public=False, salt="b"))


def test_the_histogram_s_noise_is_what_was_charged() -> None:
    """Counts of half the users, far from floor and ceiling, over many keys."""
    half = [sum(row) for row in records(40).item_counts(ITEMS, LENGTH)[:, None].tolist()]
    inside = [at for at, count in enumerate(half) if 10 <= count <= 30]
    drawn = torch.stack([40 / told(5.0, data_public=False, salt=f"{salt}") for salt in range(400)])[:, inside]
    off = (drawn - torch.tensor(half, dtype=torch.float64)[inside]) / (LENGTH**0.5 / 5.0)
    assert inside and abs(float(off.mean())) < 0.1 and float(off.std()) == pytest.approx(1.0, abs=0.06)


def attempt(tmp_path: Path, re_attention: dict[str, Any], declared: list[float] | None = None) -> Supervisor:
    asked = {"kind": "transformer_rec", "dim": 4, "max_length": LENGTH, "re_attention": re_attention}
    parts = {"train": stored(tmp_path / "train", 40)}
    start = start_of(spec(model=asked, evaluation=None), SHAPE, parts=parts, output_dir=tmp_path)
    start["mechanism"] |= {"unit": "user"}
    if "noise_mu" in re_attention:
        start["mechanism"]["frequencies"] = {"noise_mu": re_attention["noise_mu"], "max_items": LENGTH}
    return Supervisor(start | {"task": {"kind": "next_item"}, "features": features() | {"item_frequencies": declared}})


@pytest.mark.parametrize("mode", ["logits", "paper"])
def test_an_attempt_counts_replays_and_counts_once(tmp_path: Path, mode: str) -> None:
    supervisor = attempt(tmp_path, {"mode": mode, "frequencies": "noisy", "noise_mu": 1.0})
    ended = run_thread(supervisor)
    assert_released_once(supervisor, ended)


def test_what_was_charged_is_what_is_counted(tmp_path: Path) -> None:
    noisy = attempt(tmp_path, {"mode": "logits", "frequencies": "noisy", "noise_mu": 1.0})
    for wrong in (None, {"noise_mu": 2.0, "max_items": LENGTH}, {"noise_mu": 1.0, "max_items": 1}):
        noisy.start["mechanism"]["frequencies"] = wrong
        with pytest.raises(PrivacyError):
            plan_of(noisy.start)
    (tmp_path / "public").mkdir()
    declared = attempt(tmp_path / "public", {"mode": "logits"}, [0.3] * ITEMS)
    assert run_thread(declared).status == 0
