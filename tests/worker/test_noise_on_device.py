"""The noise step for GPUs releases the same bits as the processor's. Its arithmetic runs here on the processor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.errors import PrivacyError
from tests.worker.support import key
from worker.data.shards import Span
from worker.noise import on_device
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import GaussianGenerator
from worker.noise.noise_prefetch import StepNoise
from worker.noise.on_device import add_noise_flat, room
from worker.noise.release import takes_words
from worker.noise.rounding import add_noise

KEY = bytes.fromhex(key("noise"))
SIZES = (70, 1, 130)
STD, STEP, FIRST = 1.7, 5, 3


def both(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The release of each tensor on the processor, and that of one flat array, both flat."""
    generator = GaussianGenerator(KEY)
    noise = [generator.noise(STEP, FIRST + at, len(value)) for at, value in enumerate(values)]
    flat, z = torch.cat(values), torch.cat(noise)
    sizes = [len(value) for value in values]
    got = add_noise_flat(flat, z, STD, generator.stream, STEP, FIRST, sizes)
    wanted = [
        add_noise(value, part.clone(), STD, generator.stream, STEP, FIRST + at)
        for at, (value, part) in enumerate(zip(values, noise, strict=True))
    ]
    return torch.cat(wanted), got


def sums(scale: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(size, generator=generator, dtype=torch.float64) for size in SIZES]


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1.0, 1e6, 1e13, 1e25])
def test_the_bits_are_the_same(scale: float) -> None:
    wanted, got = both(sums(scale))
    assert torch.equal(wanted, got)


@pytest.mark.parametrize("piece", [1, 64, 200])
def test_a_large_model_s_pieces_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(on_device, "PIECE", piece)
    monkeypatch.setattr(on_device, "TOLERANCE", 0.025)
    wanted, got = both(sums(3.0))
    assert torch.equal(wanted, got)


@pytest.mark.parametrize("most", [64, 3])
def test_doubtful_numbers_are_settled_exactly(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A twentieth of the numbers is called doubtful; if more are found than were packed, all are asked for."""
    monkeypatch.setattr(on_device, "TOLERANCE", 0.025)
    monkeypatch.setattr(on_device, "room", lambda numbers: most)
    settled: list[float] = []
    exactly = on_device._settled_sum

    def noted(value: float, *rest: object) -> float:
        settled.append(value)
        return exactly(value, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(on_device, "_settled_sum", noted)
    wanted, got = both(sums(3.0))
    assert torch.equal(wanted, got) and len(settled) > 3


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_sum_that_is_not_finite_is_refused(broken: float) -> None:
    values = sums(1.0)
    values[2][7] = broken
    generator = GaussianGenerator(KEY)
    z = torch.cat([generator.noise(STEP, FIRST + at, size) for at, size in enumerate(SIZES)])
    with pytest.raises(PrivacyError, match="not finite"):
        add_noise_flat(torch.cat(values), z, STD, generator.stream, STEP, FIRST, SIZES)


def test_one_release_is_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of tensors: the doubtful numbers of all of them come in one copy."""
    waits: list[int] = []
    arrives = Tensor.cpu

    def counted(tensor: Tensor) -> Tensor:
        waits.append(len(tensor))
        return arrives(tensor)

    monkeypatch.setattr(Tensor, "cpu", counted)
    both(sums(1.0))
    assert waits == [1 + 3 * room(sum(SIZES))]


def test_a_release_uses_it_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient release, told that its tensors are not on the processor."""
    here, there = (
        GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8) for _ in range(2)
    )
    total = {f"t{at}": value.view(-1, 1) for at, value in enumerate(sums(2.0))}
    # As on a GPU: the noise is Gaussians there, never words for the compiled step.
    spans = [Span(len(SIZES) + at, 0, size) for at, size in enumerate(SIZES)]
    noise = StepNoise(there._generator, STEP, spans, "cpu")
    got = there._on_device(total, noise, 1.0000000000000002)
    wanted = here.release({name: value.clone() for name, value in total.items()}, STEP, 1)
    assert all(torch.equal(wanted[name], got[name]) for name in total)


def test_words_are_not_for_other_devices() -> None:
    assert not takes_words(torch.device("cuda", 0)) and not takes_words(torch.device("meta"))
