"""The keyed generator: addresses, replay, distribution, and the noise step that is built on it."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from app.errors import PrivacyError
from worker.noise import generator as module
from worker.noise.gaussian import GaussianRelease, PublicRelease
from worker.noise.generator import GaussianGenerator, KeyedStream
from worker.noise.keys import derive_key, public_key_of_seed

KEY = bytes(range(32))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def block_words(step: int, tensor: int, lane: int, block: int) -> list[int]:
    """The two words of a counter block, by AES alone, from the layout in the module's docstring."""
    counter = step.to_bytes(4, "big") + tensor.to_bytes(3, "big") + lane.to_bytes(1, "big") + block.to_bytes(8, "big")
    stream = Cipher(AES(KEY), ECB()).encryptor().update(counter)  # noqa: S305 - one block: CTR by hand
    return [int.from_bytes(stream[at : at + 8], "little", signed=True) for at in (0, 8)]


@pytest.mark.parametrize("address", [(0, 0, 0, 0), (1, 0, 0, 5), (7, 3, 2, 1), (2**32 - 1, 2**24 - 1, 255, 2**47 - 1)])
def test_words_follow_the_stated_layout(address: tuple[int, int, int, int]) -> None:
    step, tensor, lane, block = address
    words = KeyedStream(KEY).words(step, tensor, lane, 2 * block, 2)
    assert words.tolist() == block_words(step, tensor, lane, block)


def test_words_are_addressed_by_position() -> None:
    stream = KeyedStream(KEY)
    whole = stream.words(3, 1, 0, 0, 101)
    for start, count in [(0, 0), (0, 1), (1, 1), (1, 2), (2, 7), (99, 2), (100, 1)]:
        assert stream.words(3, 1, 0, start, count).tolist() == whole[start : start + count].tolist()


@pytest.mark.parametrize(
    "address",
    [
        (-1, 0, 0, 0, 1),
        (2**32, 0, 0, 0, 1),
        (0, 2**24, 0, 0, 1),
        (0, 0, 256, 0, 1),
        (0, 0, 0, 2**48, 1),
        (0, 0, 0, 0, -1),
    ],
)
def test_an_address_outside_the_layout_is_refused(address: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(PrivacyError):
        KeyedStream(KEY).words(*address)


@pytest.mark.parametrize("bad", [None, b"", bytes(16), bytes(32), b"x" * 33])
def test_there_is_no_default_key(bad: bytes | None) -> None:
    with pytest.raises(PrivacyError):
        GaussianGenerator(bad)
    with pytest.raises(PrivacyError):
        GaussianRelease(bad, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)


def test_known_answers() -> None:
    """Pinned: a change of layout or arithmetic would give old jobs other noise on resume."""
    plain = GaussianGenerator(KEY, sum_of_four=False).noise(1, 0, 3)
    words = KeyedStream(KEY).words(1, 0, 0, 0, 3)
    with mpmath.workprec(200):
        exact = [mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf(2 * (int(w) >> 11) + 1) / 2**53) for w in words]
    np.testing.assert_allclose(plain.numpy(), [float(value) for value in exact], rtol=1e-13)
    pinned = [1.384018427377723, -1.6054561085515728, 0.38952913829518243]
    np.testing.assert_allclose(plain.numpy(), pinned, rtol=1e-12)
    lanes = [KeyedStream(KEY).words(1, 0, lane, 0, 3) >> 11 for lane in range(4)]
    four = sum(scipy.stats.norm.ppf((lane + 2.0**52 + 0.5) * 2.0**-53) for lane in lanes) / 2
    np.testing.assert_allclose(GaussianGenerator(KEY).noise(1, 0, 3).numpy(), four, rtol=1e-12)


def test_extreme_words_give_finite_symmetric_numbers() -> None:
    out = np.empty(4)
    module._centred_uniforms(np.array([2**63 - 1, -(2**63), 0, -1], dtype=np.int64), out)
    assert out.tolist() == [1 - 2.0**-53, -(1 - 2.0**-53), 2.0**-53, -(2.0**-53)]
    z = torch.erfinv(torch.from_numpy(out)) * 2**0.5
    assert z[0] == -z[1] and 8.2 < float(z[0]) < 8.3 and z[2] == -z[3]


@pytest.mark.parametrize("four", [True, False])
def test_noise_replays_bit_for_bit_whatever_the_chunks_and_threads(
    four: bool, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    size = 70_001
    first = GaussianGenerator(KEY, sum_of_four=four).noise(5, 2, size)
    for chunk, count in [(2**15, 1), (2**14, 4), (1000, 2), (999, 3), (2**20, 2)]:
        monkeypatch.setattr(module, "CHUNK", chunk)
        torch.set_num_threads(count)
        again = GaussianGenerator(KEY, sum_of_four=four).noise(5, 2, size)
        assert torch.equal(first, again)
    assert torch.equal(GaussianGenerator(KEY, sum_of_four=four).noise(5, 2, 10), first[:10])


def test_streams_do_not_share_noise() -> None:
    """Other step, tensor, lane or key: independent numbers."""
    size, base = 100_000, GaussianGenerator(KEY).noise(1, 0, 100_000)
    others = [
        GaussianGenerator(KEY).noise(2, 0, size),
        GaussianGenerator(KEY).noise(1, 1, size),
        GaussianGenerator(KEY).noise(3, 0, size),
        GaussianGenerator(derive_key(bytes(range(1, 33)), "k1", b"s" * 16, "noise")).noise(1, 0, size),
        GaussianGenerator(derive_key(bytes(range(1, 33)), "k1", b"t" * 16, "noise")).noise(1, 0, size),
        torch.cat([base[1:], base[:1]]),
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([base, other]))[0, 1])) < 5 / size**0.5


@pytest.mark.parametrize("four", [True, False])
def test_moments_of_a_standard_gaussian(four: bool) -> None:
    size = 1_000_000
    z = GaussianGenerator(KEY, sum_of_four=four).noise(9, 0, size)
    moments = [float((z**power).mean()) for power in (1, 2, 3, 4)]
    for got, wanted, variance in zip(moments, (0.0, 1.0, 0.0, 3.0), (1.0, 2.0, 15.0, 96.0), strict=True):
        assert abs(got - wanted) < 5 * (variance / size) ** 0.5
    assert float(z.abs().max()) > 4.5


def released_noise(sigma: float, clip: float, batch: int, size: int = 300_000) -> np.ndarray:
    release = GaussianRelease(KEY, noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=batch)
    return release.release({"w": torch.zeros(size, dtype=torch.float64)}, 1)["w"].numpy() * batch


@pytest.mark.parametrize(("sigma", "clip"), [(1.0, 1.0), (26.38, 0.5)])
def test_the_noise_has_the_charged_scale_and_no_other(sigma: float, clip: float) -> None:
    """A KS and a variance test accept N(0, σ²C²) and reject 0.98 and 1.02 of it."""
    values = released_noise(sigma, clip, 7)
    for wrong, accepted in [(1.0, True), (0.98, False), (1.02, False)]:
        scale = sigma * clip * wrong
        ks = scipy.stats.kstest(values, "norm", args=(0.0, scale)).pvalue
        chi = float((values**2).sum()) / scale**2
        spread = abs(chi - len(values)) / (2 * len(values)) ** 0.5
        assert bool(ks > 1e-3) is accepted
        assert bool(spread < 4) is accepted


def test_the_noised_gradient_is_the_sum_plus_noise_over_the_public_divisor() -> None:
    total = {"weight": torch.arange(6, dtype=torch.float64).reshape(2, 3), "bias": torch.ones(2, dtype=torch.float64)}
    kept = {name: value.clone() for name, value in total.items()}
    noised = GaussianRelease(KEY, noise_multiplier=2.0, max_grad_norm=3.0, expected_batch_size=10).release(total, 4)
    for index, name in enumerate(total):
        z = GaussianGenerator(KEY).noise(4, index, total[name].numel()).reshape(total[name].shape)
        torch.testing.assert_close(noised[name], (total[name] + 6.0 * z) / 10, rtol=1e-14, atol=0)
        assert torch.equal(total[name], kept[name])


def test_noise_of_a_step_covers_one_gradient_only() -> None:
    """Physical batches are summed before the noise: a second release in one step is refused."""
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    total = {"w": torch.zeros(3, dtype=torch.float64)}
    release.release(total, 1)
    for step in (1, 0):
        with pytest.raises(PrivacyError):
            release.release(total, step)
    release.release(total, 2)


@pytest.mark.parametrize(
    "bad", [{"noise_multiplier": 0.0}, {"max_grad_norm": float("nan")}, {"expected_batch_size": 0}]
)
def test_a_mechanism_without_noise_or_sensitivity_is_refused(bad: dict[str, float]) -> None:
    good = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 1}
    with pytest.raises(PrivacyError):
        GaussianRelease(KEY, **(good | bad))  # type: ignore[arg-type]


def test_sums_in_single_precision_are_refused() -> None:
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    with pytest.raises(PrivacyError):
        release.release({"w": torch.zeros(3)}, 1)


def test_public_data_get_a_plain_mean() -> None:
    assert PublicRelease(4).release({"w": torch.full((2,), 8.0)}, 1)["w"].tolist() == [2.0, 2.0]


def test_keys_differ_by_salt_key_id_and_purpose() -> None:
    secret = bytes(range(1, 33))
    keys = {
        derive_key(secret, key_id, salt, purpose)
        for key_id in ("k1", "k2")
        for salt in (b"a" * 16, b"b" * 16)
        for purpose in ("noise", "sampler", "release")
    }
    assert len(keys) == 12 and all(len(each) == 32 for each in keys)
    assert derive_key(secret, "k1", b"a" * 16, "noise") in keys


def test_a_derived_key_is_rfc_5869() -> None:
    """Against HKDF written out: PRK = HMAC(salt, secret), OKM = HMAC(PRK, info ‖ 1)."""
    import hashlib
    import hmac

    secret, salt = bytes(range(1, 33)), b"a" * 16
    prk = hmac.new(salt, secret, hashlib.sha256).digest()
    okm = hmac.new(prk, b"scrimp/v1/k1/noise\x01", hashlib.sha256).digest()
    assert derive_key(secret, "k1", salt, "noise") == okm


@pytest.mark.parametrize(
    ("secret", "salt", "purpose"),
    [
        (b"", b"a" * 16, "noise"),
        (b"x" * 31, b"a" * 16, "noise"),
        (b"x" * 32, b"", "noise"),
        (b"x" * 32, b"a" * 16, "other"),
    ],
)
def test_a_key_is_never_made_of_nothing(secret: bytes, salt: bytes, purpose: str) -> None:
    with pytest.raises(PrivacyError):
        derive_key(secret, "k1", salt, purpose)


def test_seeds_give_repeatable_keys_for_public_data() -> None:
    assert public_key_of_seed(7, "sampler") == public_key_of_seed(7, "sampler")
    assert len({public_key_of_seed(seed, use) for seed in (7, 8) for use in ("sampler", "noise")}) == 4
