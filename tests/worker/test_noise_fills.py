"""Keyed first parameters and dropout masks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from core.errors import PrivacyError
from worker.noise.fills import KeyedDropout, KeyedInit
from worker.noise.generator import KeyedStream

KEY = bytes(range(32))


def test_first_parameters_replay_and_do_not_depend_on_each_other() -> None:
    init = KeyedInit(KEY)
    first = init.kaiming_uniform(3, (20, 30))
    assert first.dtype == torch.float64 and first.shape == (20, 30)
    assert torch.equal(first, init.kaiming_uniform(3, (20, 30)))
    assert torch.equal(first, KeyedInit(KEY).kaiming_uniform(3, (20, 30)))
    assert not torch.any(first == init.kaiming_uniform(4, (20, 30)))
    assert not torch.any(first == KeyedInit(bytes(range(1, 33))).kaiming_uniform(3, (20, 30)))
    assert torch.equal(init.normal(0, (5, 4), 2.0), init.normal(0, (20,), 1.0).view(5, 4) * 2)


def test_first_parameters_have_the_stated_distribution() -> None:
    init = KeyedInit(KEY)
    cases = [
        (init.normal(0, (100_000,), 0.02), scipy.stats.norm(0, 0.02)),
        (init.uniform(1, (100_000,), 0.3), scipy.stats.uniform(-0.3, 0.6)),
        (init.kaiming_uniform(4, (500, 200)), scipy.stats.uniform(-(200**-0.5), 2 * 200**-0.5)),
        (init.kaiming_uniform(5, (500, 200), 2**0.5), scipy.stats.uniform(-(0.03**0.5), 2 * 0.03**0.5)),
    ]
    for values, distribution in cases:
        assert scipy.stats.kstest(values.flatten().numpy(), distribution.cdf).pvalue > 1e-3
        wrong = scipy.stats.kstest(values.flatten().numpy() * 1.05, distribution.cdf).pvalue
        assert wrong < 1e-6
    assert float(init.uniform(1, (100_000,), 0.3).abs().max()) < 0.3


def test_empty_and_scalar_shapes() -> None:
    assert KeyedInit(KEY).normal(0, (0, 3), 1.0).shape == (0, 3)
    assert KeyedInit(KEY).uniform(0, (), 1.0).shape == ()
    assert KeyedDropout(KEY, 0.5).mask(1, 0, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_keeps_the_stated_share_and_the_mean(rate: float) -> None:
    mask = KeyedDropout(KEY, rate).mask(1, 0, (1000, 200), dtype=torch.float64)
    kept = mask > 0
    assert abs(float(kept.double().mean()) - (1 - rate)) < 5 * (rate * (1 - rate) / 200_000) ** 0.5 + 1e-9
    assert torch.allclose(mask[kept], torch.tensor(1 / (1 - rate), dtype=torch.float64), rtol=1e-8)
    if rate:
        rows = kept.double()
        assert abs(float(torch.corrcoef(torch.stack([rows[1:].flatten(), rows[:-1].flatten()]))[0, 1])) < 5 / 447
        assert abs(float(torch.corrcoef(torch.stack([rows[:, 1:].flatten(), rows[:, :-1].flatten()]))[0, 1])) < 5 / 446


def test_masks_replay_and_differ_by_step_call_and_key() -> None:
    dropout = KeyedDropout(KEY, 0.5)
    mask = dropout.mask(3, 1, (50, 7))
    assert mask.dtype == torch.float32 and torch.equal(mask, KeyedDropout(KEY, 0.5).mask(3, 1, (50, 7)))
    others = [dropout.mask(4, 1, (50, 7)), dropout.mask(3, 2, (50, 7))]
    others.append(KeyedDropout(bytes(range(1, 33)), 0.5).mask(3, 1, (50, 7)))
    assert all(80 < int((mask != other).sum()) < 270 for other in others)


@pytest.mark.parametrize("width", [(), (1,), (7,), (3, 5)])
@pytest.mark.parametrize("physical", [1, 2, 3, 50])
def test_a_record_s_mask_does_not_depend_on_how_a_batch_is_split(physical: int, width: tuple[int, ...]) -> None:
    dropout = KeyedDropout(KEY, 0.3)
    whole = dropout.mask(2, 0, (20, *width))
    parts = [dropout.mask(2, 0, (min(physical, 20 - at), *width), first_record=at) for at in range(0, 20, physical)]
    assert torch.equal(torch.cat(parts), whole)


def test_masks_are_the_stream_s_own_halves() -> None:
    """Pinned: two elements a word, the lower half first; dropped where a signed half is below the threshold."""
    words = KeyedStream(KEY).words(5, 2, 0, 0, 6)
    halves = np.stack(
        [(words & 0xFFFFFFFF).astype(np.uint32).view(np.int32), (words >> 32).astype(np.int32)], 1
    ).ravel()
    expected = (halves >= -(2**31) + 2**30).astype(np.float32) / np.float32(0.75)
    assert KeyedDropout(KEY, 0.25).mask(5, 2, (12,)).tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(PrivacyError):
        KeyedDropout(KEY, rate)


def test_fills_need_a_key() -> None:
    with pytest.raises(PrivacyError):
        KeyedInit(None)
    with pytest.raises(PrivacyError):
        KeyedDropout(bytes(32), 0.1)
