"""The keyed generator: addresses, replay, distribution, and the noise step that is built on it."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from core.errors import PrivacyError
from worker.noise.attempt_keys import derive_key, public_key_of_seed
from worker.noise.gaussian import GaussianRelease, PublicRelease
from worker.noise.generator import CHUNK, GaussianGenerator, KeyedStream, gaussians

KEY = bytes(range(32))


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


def test_words_do_not_depend_on_how_much_is_encrypted_at_once() -> None:
    stream, count = KeyedStream(KEY), 2 * CHUNK + 5
    whole = stream.words(3, 1, 0, 0, count + 1)
    for start in (0, 1):
        out = np.zeros(count + 2, dtype=np.int64)
        stream.fill(out[1:-1], 3, 1, 0, start)
        assert np.array_equal(out[1:-1], whole[start : start + count]) and out[0] == out[-1] == 0


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
    plain = GaussianGenerator(KEY).noise(1, 0, 3)
    words = KeyedStream(KEY).words(1, 0, 0, 0, 3)
    with mpmath.workprec(200):
        exact = [mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf(2 * (int(w) >> 11) + 1) / 2**53) for w in words]
    np.testing.assert_allclose(plain.numpy(), [float(value) for value in exact], rtol=1e-13)
    pinned = [1.384018427377723, -1.6054561085515728, 0.38952913829518243]
    np.testing.assert_allclose(plain.numpy(), pinned, rtol=1e-12)


def test_extreme_words_give_finite_symmetric_numbers() -> None:
    z = gaussians(torch.tensor([2**52 - 1, -(2**52), 0, -1]))
    assert z[0] == -z[1] and 8.2 < float(z[0]) < 8.3 and z[2] == -z[3] and 0 < float(z[2]) < 2e-16


def test_noise_is_a_function_of_its_address() -> None:
    long = GaussianGenerator(KEY).noise(5, 2, 70_001)
    assert torch.equal(GaussianGenerator(KEY).noise(5, 2, 70_001), long)
    assert torch.equal(GaussianGenerator(KEY).noise(5, 2, 10), long[:10])
    for step, tensor in [(6, 2), (5, 3)]:
        assert not torch.any(GaussianGenerator(KEY).noise(step, tensor, 1000) == long[:1000])
    with pytest.raises(PrivacyError):
        GaussianGenerator(KEY).noise(5, 2, 2**48 + 1)


def test_the_noised_gradient_is_the_sum_plus_noise_over_the_public_divisor() -> None:
    total = {"weight": torch.arange(6, dtype=torch.float64).reshape(2, 3), "bias": torch.ones(2, dtype=torch.float64)}
    kept = {name: value.clone() for name, value in total.items()}
    noised = GaussianRelease(KEY, noise_multiplier=2.0, max_grad_norm=3.0, expected_batch_size=10).release(total, 4)
    for index, name in enumerate(total):
        z = GaussianGenerator(KEY).noise(4, index, total[name].numel()).reshape(total[name].shape)
        torch.testing.assert_close(noised[name], (total[name] + 6.0 * z) / 10, rtol=0, atol=6.0 * 2.0**-11 / 10)
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


def test_queries_of_a_step_have_noise_of_their_own() -> None:
    """Query k of two tensors has the streams 2k and 2k + 1, whether it was prepared or not, and its own C."""
    total = {"weight": torch.zeros(4, dtype=torch.float64), "bias": torch.zeros(2, dtype=torch.float64)}
    release = GaussianRelease(KEY, noise_multiplier=2.0, max_grad_norm=3.0, expected_batch_size=10)
    for query, C in ((0, 3.0), (1, 0.5)):
        if query == 0:
            release.prepare(total, 4)
        noised = release.release(total, 4, query, C if query else None)
        for index, (name, value) in enumerate(total.items()):
            z = GaussianGenerator(KEY).noise(4, 2 * query + index, value.numel())
            torch.testing.assert_close(noised[name], 2 * C * z / 10, rtol=0, atol=2 * C * 2.0**-11 / 10)
    for step, query in ((4, 1), (4, 0), (3, 5), (5, -1)):
        with pytest.raises(PrivacyError):
            release.release(total, step, query)
    with pytest.raises(PrivacyError):
        release.release(total, 5, 0, 0.0)


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
    with pytest.raises(PrivacyError):
        release.release({"w": torch.zeros(3, dtype=torch.complex64)}, 1)


def test_public_data_get_a_plain_mean() -> None:
    assert PublicRelease(4).release({"w": torch.full((2,), 8.0)}, 1)["w"].tolist() == [2.0, 2.0]


def test_keys_differ_by_salt_key_id_and_purpose() -> None:
    secret = bytes(range(1, 33))
    keys = {
        derive_key(secret, key_id, salt, purpose)
        for key_id in ("k1", "k2")
        for salt in (b"a" * 16, b"b" * 16)
        for purpose in ("noise", "sampler", "release", "init", "dropout")
    }
    assert len(keys) == 20 and all(len(each) == 32 for each in keys)
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
