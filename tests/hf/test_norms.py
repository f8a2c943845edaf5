"""Per-record norms and clipped sums of Hugging Face models, for every kind and tuning, against autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from core.contracts.hf import HfModel
from core.contracts.job_spec import Clipping
from core.parts import model_folder
from core.privacy.mechanism import TrainingMechanism
from tests.hf.tiny import VOCABULARY
from tests.worker.support import key
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine, unclipped_engine
from worker.clipping.engine import ClippingKind
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.hf.hf_model import HfTuning

KEY = bytes.fromhex(key("init"))
LENGTH = 8
CASES = [
    *(("gpt2", tuning) for tuning in ("full", "head", "last_block", "bias", "lora")),
    *(("roberta", tuning) for tuning in ("full", "head", "last_block", "bias", "lora")),
    *(("bert", tuning) for tuning in ("full", "head", "last_block", "bias", "lora")),
    *(("llama", tuning) for tuning in ("full", "head", "last_block", "lora")),
    *(("llama-tied", tuning) for tuning in ("full", "head")),
]


def model(root: Path, path: str, dtype: torch.dtype = torch.float64, **asked: object) -> HfTuning:
    folder = model_folder.read(root, path)
    classes = ("a", "b", "c") if folder.architecture.task == "classification" else ()
    return HfTuning(folder, HfModel.model_validate({"path": path, "max_length": LENGTH} | asked), classes, dtype=dtype)


def records(n: int = 6, seed: int = 0) -> SequenceRecords:
    """Texts of 1, 2, … tokens, some twice in a text, some longer than what is read of them."""
    generator = np.random.default_rng(seed)
    ends = np.cumsum(1 + np.arange(n) * 2 % (LENGTH + 3))
    tokens = generator.integers(0, 9, ends[-1], dtype=np.int32)
    return SequenceRecords(tokens, np.append(0, ends)[:-1], ends, torch.from_numpy(generator.integers(0, 3, n)))


def some_parameters(m: HfTuning) -> Parameters:
    torch.manual_seed(2)
    return {name: value + 0.3 * torch.randn_like(value) for name, value in m.init(KEY).items()}


def training(C: float, kind: str = "flat") -> TrainingMechanism:
    return TrainingMechanism.model_validate(
        {"sampling": "full_batch", "sample_rate": 1.0, "steps": 1, "noise_multiplier": 1.0}
        | {"max_grad_norm": C, "clipping": kind, "expected_batch_size": 6}
    )


def one_at_a_time(m: HfTuning, parameters: Parameters, batch: SequenceRecords) -> list[dict[str, Tensor]]:
    """Autograd's gradient of each record alone."""
    engine = unclipped_engine(m)
    return [engine.private_sum(parameters, batch.select(np.array([at]))) for at in range(len(batch))]


def norm(gradient: dict[str, Tensor]) -> float:
    return float(torch.cat([each.flatten() for each in gradient.values()]).norm())


@pytest.mark.parametrize(("path", "tuning"), CASES)
def test_clipped_sums_are_those_of_autograd_record_by_record(models_root: Path, path: str, tuning: str) -> None:
    m, batch = model(models_root, path, tuning=tuning), records()
    parameters = some_parameters(m)
    alone = one_at_a_time(m, parameters, batch)
    norms = [norm(each) for each in alone]
    assert sum(each > 0 for each in norms) >= len(norms) - 1, "a text of one token has no next one"
    C = float(np.median(norms))
    engine = build_engine(m, Clipping(), training(C))
    found = engine.private_sum(parameters, batch)
    assert set(found) == set(m.folder.trained(m.spec, m.outputs)), "what a quote says is what is trained"
    wanted = {
        name: sum((each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)), torch.zeros(1))
        for name in found
    }
    difference = norm({name: found[name] - wanted[name] for name in found})
    assert difference <= 1e-10 * norm(wanted)
    # A bound that is below what any record has: each one's part is then C in truth, and its norm is read off exactly.
    tiny = build_engine(m, Clipping(), training(1e-6))
    for at, size in enumerate(norms):
        if size > 0:
            part = tiny.private_sum(parameters, batch.select(np.array([at])))
            assert norm(part) == pytest.approx(1e-6, rel=1e-10) and norm(part) <= 1e-6 * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["per_layer", "automatic"])
@pytest.mark.parametrize(
    ("path", "tuning"),
    [("gpt2", "full"), ("gpt2", "bias"), ("roberta", "head"), ("bert", "lora"), ("llama", "last_block")],
)
def test_clipped_by_layers_or_automatically_they_are_those_of_autograd(
    models_root: Path, path: str, tuning: str, kind: ClippingKind
) -> None:
    m, batch = model(models_root, path, tuning=tuning), records()
    parameters = some_parameters(m)
    alone = one_at_a_time(m, parameters, batch)
    C = float(np.median([norm(each) for each in alone]))
    found = build_engine(m, Clipping(kind=kind), training(C, kind)).private_sum(parameters, batch)
    groups = [[name for name in found if layer in (name.rpartition(".")[0], "")] for layer in layers_of(found, kind)]
    wanted: dict[str, Tensor] = {}
    for names in groups:
        sizes = [norm({name: each[name] for name in names}) for each in alone]
        share = C / len(groups) ** 0.5
        factors = [share / (size + 0.01) if kind == "automatic" else share / max(share, size) for size in sizes]
        for name in names:
            wanted[name] = sum((each[name] * f for each, f in zip(alone, factors, strict=True)), torch.zeros(1))
    assert norm({name: found[name] - wanted[name] for name in found}) <= 1e-10 * norm(wanted)


def layers_of(parameters: Parameters, kind: str) -> list[str]:
    """The modules whose parameters are clipped together; "" holds all."""
    return sorted({name.rpartition(".")[0] for name in parameters}) if kind == "per_layer" else [""]


@pytest.mark.parametrize(("path", "tuning"), [("gpt2", "full"), ("roberta", "lora"), ("llama", "last_block")])
def test_checkpointed_passes_give_the_same_sums(models_root: Path, path: str, tuning: str) -> None:
    plain, again = (model(models_root, path, tuning=tuning, gradient_checkpointing=each) for each in (False, True))
    parameters = some_parameters(plain)
    sums = [build_engine(m, Clipping(), training(0.5)).private_sum(parameters, records()) for m in (plain, again)]
    assert norm({name: sums[0][name] - sums[1][name] for name in sums[0]}) <= 1e-12 * norm(sums[0])


def test_frozen_layers_have_no_books_and_biases_need_no_inputs(models_root: Path) -> None:
    m = model(models_root, "gpt2", tuning="bias")
    engine = build_engine(m, Clipping(), training(0.5))
    assert isinstance(engine, Bookkeeping) and engine.fallbacks == ()
    opened = engine._run(next(iter(records().passes(m.rows_per_pass, m.dtype))).records)[1]
    assert set(opened.terms) == {id(value) for value in engine._trainable.values()}


def test_no_record_moves_the_sum_by_more_than_c_in_float32(models_root: Path) -> None:
    for path, tuning in (("gpt2", "lora"), ("roberta", "full"), ("llama", "full")):
        m, batch = model(models_root, path, torch.float32, tuning=tuning), records(5)
        parameters, engine = some_parameters(m), build_engine(m, Clipping(), training(0.01))
        whole = engine.private_sum(parameters, batch)
        for at in range(5):
            rest = engine.private_sum(parameters, batch.select(np.array([i for i in range(5) if i != at])))
            assert norm({name: whole[name] - rest[name] for name in whole}) <= 0.01 * (1 + 1e-5)


def test_what_fills_a_text_up_changes_nothing(models_root: Path) -> None:
    """The same text beside longer ones, and with another length to fill it up to."""
    batch = records()
    for path in ("gpt2", "roberta", "bert", "llama"):
        short, long = (model(models_root, path, tuning="head", max_length=length) for length in (LENGTH, LENGTH + 2))
        parameters = some_parameters(short)
        few = batch.select(np.array([0, 1, 2]))
        alone = short.forward(parameters, few.select(np.array([1])))
        assert torch.allclose(short.forward(parameters, few)[:, 1:2], alone, rtol=1e-12)
        assert torch.allclose(long.forward(parameters, few), short.forward(parameters, few), rtol=1e-12)
    assert VOCABULARY > 9


@pytest.mark.parametrize(
    ("path", "tuning"), [("gpt2", "lora"), ("gpt2", "full"), ("roberta", "full"), ("llama", "full")]
)
def test_in_bfloat16_a_record_s_part_does_not_depend_on_its_neighbours(
    models_root: Path, path: str, tuning: str
) -> None:
    """Bit for bit, of how the pass rounds; what is left is float64's own rounding of the sum."""
    m, batch, C = replace(model(models_root, path, torch.bfloat16, tuning=tuning), rows_per_pass=8), records(7), 0.01
    parameters, engine = some_parameters(m), build_engine(m, Clipping(), training(C))
    whole = engine.private_sum(parameters, batch)
    for at in range(7):
        rest = engine.private_sum(parameters, batch.select(np.array([i for i in range(7) if i != at])))
        assert norm({name: whole[name] - rest[name] for name in whole}) <= C * (1 + 1e-9)
    exact = replace(m, dtype=torch.float64)
    wanted = build_engine(exact, Clipping(), training(C)).private_sum(parameters, batch)
    assert norm({name: whole[name] - wanted[name] for name in whole}) <= 0.2 * norm(wanted)
