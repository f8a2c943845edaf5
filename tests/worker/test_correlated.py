"""Correlated noise where it is made: its law, its bits, and what replays and fresh keys do to it."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from tests.worker.support import Supervisor, dense, records, run_direct, spec, start_of
from tests.worker.test_loop import tamper
from worker.data.shards import Span
from worker.noise import correlated
from worker.noise.batch_sampling import CyclicSampler
from worker.noise.gaussian import CorrelatedRelease, GaussianRelease
from worker.noise.generator import GaussianGenerator, KeyedStream
from worker.noise.rounding import Digits, grid

KEY = bytes(range(32))
SIZE = 40_000
SHAPE = {"records_train": 90, "records_holdout": 0, "features": 3, "outputs": 2, "sparse": False}
TRAIN = records(*dense(90, 3))
CYCLIC: dict[str, Any] = {"sampling": {"kind": "cyclic", "batches": 5}, "evaluation": None, "length": {"steps": 20}}
CORRELATED: dict[str, Any] = CYCLIC | {"noise": {"kind": "correlated", "decay": 0.75}}


def release(decay: float = 0.5, first_step: int = 1, std: float = 1.0) -> CorrelatedRelease:
    return CorrelatedRelease(
        KEY,
        decay=decay,
        first_step=first_step,
        noise_multiplier=std,
        max_grad_norm=1.0,
        expected_batch_size=1,
    )


def noise(made: CorrelatedRelease, steps: int, size: int = SIZE) -> NDArray[np.float64]:
    """What is added to sums of 0, for each step: (steps, size)."""
    zeros = {"w": torch.zeros(size, dtype=torch.float64)}
    return np.stack([made.release(dict(zeros), step)["w"].numpy() for step in range(1, steps + 1)])


def test_a_step_takes_back_a_part_of_the_last_one_s_noise() -> None:
    found, generator = noise(release(0.5), 3), GaussianGenerator(KEY)
    z = [generator.noise(step, 0, SIZE).numpy() for step in range(1, 4)]
    for step, wanted in enumerate([z[0], z[1] - 0.5 * z[0], z[2] - 0.5 * z[1]]):
        assert np.abs(found[step] - wanted).max() <= grid(1.0)
    independent = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    first = independent.release({"w": torch.zeros(SIZE, dtype=torch.float64)}, 1)["w"].numpy()
    assert np.array_equal(found[0], first)


def whitened(steps: NDArray[np.float64], decay: float) -> NDArray[np.float64]:
    """W_t = Σ_j λ^{t−j} Y_j: independent standard Gaussians if λ is that of the noise."""
    found = [steps[0]]
    for each in steps[1:]:
        found.append(decay * found[-1] + each)
    return np.stack(found)


@pytest.mark.parametrize(("planted", "fine"), [(0.6, True), (0.55, False), (0.65, False), (0.0, False)])
def test_the_noise_has_the_charged_covariance_and_no_other(planted: float, fine: bool) -> None:
    """Whitened by the λ of the price, noise of eight steps is standard and independent. Noise with another λ is found,
    by its distribution (KS) and by the correlation of steps in a row."""
    made = release(planted) if planted else None
    if made is None:
        steps = GaussianGenerator(KEY)
        found = np.stack([steps.noise(step, 0, SIZE).numpy() for step in range(1, 9)])
    else:
        found = noise(made, 8)
    white = whitened(found, 0.6)
    standard = scipy.stats.kstest(white[1:].ravel(), "norm").pvalue > 1e-3
    lags = [float(np.corrcoef(one, two)[0, 1]) for one, two in itertools.pairwise(white)]
    independent = max(map(abs, lags)) < 5 / SIZE**0.5
    assert bool(standard and independent) is fine


@pytest.mark.parametrize("decay", [0.25, 0.9375])
def test_a_doubtful_number_is_settled_as_many_digits_say(decay: float) -> None:
    """Sums built to end within 2⁻⁴⁰ of a boundary: float64 is doubtful, and the exact way finds the side."""
    stream, generator, g = KeyedStream(KEY), GaussianGenerator(KEY), grid(1.0)
    for position in range(6):
        with mpmath.workprec(600):
            z = []
            for step in (2, 1):
                u = mpmath.mpf(Digits(stream, step, 0, position).leading(4)) / mpmath.mpf(2) ** 256
                z.append(mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1))
            total = z[0] - mpmath.mpf(decay) * z[1]
            value = float(mpmath.mpf(5) * g + g / 2 - total)  # a boundary, but for the float's rounding
            wanted = float(mpmath.floor((value + total) / g + mpmath.mpf(1) / 2)) * g
        digits = (Digits(stream, 2, 0, position), Digits(stream, 1, 0, position))
        assert correlated.settled(value, 1.0, decay, *digits) == wanted
        sums = torch.zeros(position + 1, dtype=torch.float64)
        sums[position] = value
        found = correlated.correlated_mean(
            sums, generator, 1.0, decay, 1, step=2, span=Span(0, 0, len(sums)), first_step=1
        )
        assert float(found[position]) == wanted


def test_the_fast_way_and_the_exact_way_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = torch.linspace(-1e3, 1e3, 300, dtype=torch.float64)
    arguments: dict[str, Any] = {"step": 2, "span": Span(3, 0, len(sums)), "first_step": 1}
    fast = correlated.correlated_mean(sums, GaussianGenerator(KEY), 2.5, 0.7, 1, **arguments)
    monkeypatch.setattr(correlated, "TAIL", -1.0)  # every number is doubtful
    assert torch.equal(fast, correlated.correlated_mean(sums, GaussianGenerator(KEY), 2.5, 0.7, 1, **arguments))


def test_numbers_in_the_tail_are_settled() -> None:
    """|z| > 4.85 in one of two million numbers: the exact way gives what 60 digits give."""
    generator, stream, g = GaussianGenerator(KEY), KeyedStream(KEY), grid(1.0)
    z = generator.noise(1, 0, 2_000_000)
    position = int(z.abs().argmax())
    assert abs(float(z[position])) > correlated.TAIL
    with mpmath.workprec(400):
        parts = [mpmath.mpf(Digits(stream, step, 0, position).leading(3)) / mpmath.mpf(2) ** 192 for step in (2, 1)]
        now, before = (mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1) for u in parts)
        wanted = float(mpmath.floor((now - mpmath.mpf(0.5) * before) / g + mpmath.mpf(1) / 2)) * g
    digits = (Digits(stream, 2, 0, position), Digits(stream, 1, 0, position))
    assert correlated.settled(0.0, 1.0, 0.5, *digits) == wanted


def test_what_is_not_priced_is_not_released() -> None:
    made, sums = release(), {"w": torch.zeros(3, dtype=torch.float64)}
    for unpriced in ({"query": 1}, {"max_grad_norm": 2.0}):
        with pytest.raises(PrivacyError, match="one query"):
            made.release(dict(sums), 1, **unpriced)  # type: ignore[arg-type]
    made.release(dict(sums), 1)
    with pytest.raises(PrivacyError, match="already used"):
        made.release(dict(sums), 1)
    with pytest.raises(PrivacyError, match="already used"):
        release(first_step=4).release(dict(sums), 3)
    with pytest.raises(PrivacyError, match="float64"):
        made.release({"w": torch.zeros(3)}, 2)
    with pytest.raises(PrivacyError, match="not finite"):
        made.release({"w": torch.full((3,), torch.nan, dtype=torch.float64)}, 2)
    with pytest.raises(PrivacyError, match="decay"):
        release(decay=1.0)
    assert made.noise_variance(1.0) == pytest.approx(1.25, rel=1e-12)


def test_groups_are_a_partition_that_no_other_record_changes() -> None:
    sampler = CyclicSampler(KEY, 7, 1000)
    drawn = [sampler.draw(step) for step in range(1, 8)]
    assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(1000))
    assert all(np.array_equal(sampler.draw(step + 7), each) for step, each in enumerate(drawn, start=1))
    more = CyclicSampler(KEY, 7, 1001)
    assert all(np.array_equal(more.draw(s + 1)[: len(each)], each) for s, each in enumerate(drawn))
    assert scipy.stats.chisquare([len(each) for each in drawn]).pvalue > 1e-3
    with pytest.raises(PrivacyError, match="groups"):
        CyclicSampler(KEY, 1, 10)


# --- In a job ---


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def job(**changes: Any) -> Supervisor:
    return Supervisor(start_of(spec(**(CORRELATED | changes)), SHAPE))


def attempt(record: Supervisor) -> dict[str, torch.Tensor]:
    return run_direct(record, TRAIN, None)[0].parameters


def test_a_killed_attempt_goes_on_to_the_same_weights_bit_for_bit() -> None:
    straight = job()
    weights = attempt(straight)
    for step in (1, 7, 13, 20):
        record = job()
        record.die_at = step
        with pytest.raises(ConnectionError):
            attempt(record)
        record.die_at = None
        assert same(attempt(record), weights)
        assert record.digests() == straight.digests() and (record.started, record.resalts) == (20, 0)


def test_fresh_keys_begin_without_noise_to_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a replay that differs, the first step under fresh keys has fresh noise alone: its last step's noise under
    the old key has met another state."""
    asked: list[tuple[int, int]] = []
    original = correlated.correlated_mean

    def watched(*args: Any, step: int, first_step: int, **rest: Any) -> torch.Tensor:
        asked.append((step, first_step))
        return original(*args, step=step, first_step=first_step, **rest)

    monkeypatch.setattr("worker.noise.gaussian.correlated_mean", watched)
    record = job()
    record.hold = 60
    attempt(record)
    tamper(record, 20)
    asked.clear()
    attempt(record)
    assert record.resalts == 1 and record.segments[1]["from_step"] == 20
    assert asked == [*((step, 1) for step in range(1, 21)), (20, 20)]


def test_correlated_noise_changes_the_model_and_cyclic_batches_alone_do_too() -> None:
    found = [
        attempt(job()),
        attempt(Supervisor(start_of(spec(**CYCLIC), SHAPE))),
        attempt(job(sampling={"kind": "full_batch"})),
    ]
    assert not same(found[0], found[1]) and not same(found[0], found[2])


def test_a_mechanism_with_another_decay_does_not_run() -> None:
    start = start_of(spec(**CORRELATED), SHAPE)
    start["mechanism"]["training"]["noise"]["decay"] = 0.5
    with pytest.raises(PrivacyError, match="differ"):
        attempt(Supervisor(start))
