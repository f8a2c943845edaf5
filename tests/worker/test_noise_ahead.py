"""Noise made ahead: the same bits as without, under no circumstances another step's or another key's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core.errors import PrivacyError
from tests.worker.support import Supervisor, dense, key, keys_of, records, run_direct, spec, start_of
from tests.worker.test_ranks import At
from worker.data.shards import Shards, Span
from worker.noise import gaussian, native, noise_prefetch
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import CHUNK, STEPS, GaussianGenerator
from worker.noise.noise_prefetch import WORD_CHUNK, StepNoise

KEY = bytes(range(32))
SIZES = (3, 70_001, 0, 40_000)
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(100, 3)
TRAIN, HOLDOUT = records(X[:80], Y[:80]), records(X[80:], Y[80:])
SAMPLINGS: list[dict[str, Any]] = [{"kind": "full_batch"}, {"kind": "poisson", "expected_batch_size": 16}]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def release_of(key: bytes = KEY) -> GaussianRelease:
    return GaussianRelease(key, noise_multiplier=1.5, max_grad_norm=2.0, expected_batch_size=10)


SPANS = [Span(at, 0, size) for at, size in enumerate(SIZES)]


def total(*sizes: int) -> dict[str, torch.Tensor]:
    return {f"t{index}": torch.full((size,), 0.25, dtype=torch.float64) for index, size in enumerate(sizes)}


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(("chunk", "count"), [(3 * 2**13, 1), (2**14, 4), (1000, 2), (999, 3), (2**20, 2)])
def test_noise_is_the_same_whatever_the_chunks_and_threads(
    chunk: int, count: int, begun: bool, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    generator = GaussianGenerator(KEY)
    monkeypatch.setattr(noise_prefetch, "CHUNK", chunk)
    torch.set_num_threads(count)
    noise = StepNoise(generator, 5, SPANS)
    if begun:
        noise.begin()
    for index, z in enumerate(noise.take()):
        assert torch.equal(z, generator.noise(5, index, SIZES[index]))


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


@pytest.mark.parametrize("rank", [None, 0, 1, 2, 3, 4], ids=str)
@pytest.mark.parametrize("on", [pytest.param("cuda", marks=GPU)])
def test_a_gpu_releases_the_same_bits(on: str, rank: int | None) -> None:
    """Of the whole, or of a rank's own part, which may begin at either word of a cipher block."""
    here, there = release_of(), release_of()
    values = total(*SIZES)
    shards = None if rank is None else Shards.of(values, At(rank, 5))
    values = values if shards is None else shards.views(values)
    on_gpu = {name: value.to(on) for name, value in values.items()}
    there.prepare(on_gpu, 1, 0, shards)
    got = there.release(on_gpu, 1, 0, shards=shards)
    for name, value in here.release(values, 1, 0, shards=shards).items():
        assert got[name].is_cuda and torch.equal(got[name].cpu(), value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_prepares_nothing_and_refuses_what_is_not_finite() -> None:
    release, values = release_of(), {name: value.cuda() for name, value in total(*SIZES).items()}
    release.prepare(values, 1)
    assert release._ahead is None
    values["t3"][39_999] = torch.inf
    with pytest.raises(PrivacyError, match="not finite"):
        release.release(values, 1)


def test_another_thread_makes_it() -> None:
    makers: list[int] = []
    generator = GaussianGenerator(KEY)
    original = generator.fill_bits

    def noted(*arguments: Any) -> None:
        makers.append(threading.get_ident())
        original(*arguments)

    generator.fill_bits = noted  # type: ignore[method-assign]
    noise = StepNoise(generator, 1, SPANS)
    noise.begin()
    noise._helpers[0].result(300)
    assert len(makers) > 4 and threading.get_ident() not in makers
    noise.take()
    assert threading.get_ident() not in makers


def test_what_is_no_more_than_a_chunk_wakes_no_other_thread() -> None:
    for size in (CHUNK, CHUNK + 1):
        noise = StepNoise(GaussianGenerator(KEY), 1, (Span(0, 0, size - 10), Span(1, 0, 10)))
        noise.begin()
        z = noise.take()
        assert bool(noise._helpers) == (size > CHUNK)
        assert torch.equal(z[1], GaussianGenerator(KEY).noise(1, 1, 10))


def test_one_thread_makes_all_words_itself(threads: None) -> None:
    made = []
    for count in (1, 2):
        torch.set_num_threads(count)
        noise = StepNoise(GaussianGenerator(KEY), 1, (Span(0, 0, 2 * WORD_CHUNK + 1), Span(1, 0, 10)), words=True)
        made.append(noise.take())
        assert bool(noise._helpers) == (count > 1)
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))


def test_the_other_threads_leave_the_number_of_threads_alone(threads: None) -> None:
    torch.set_num_threads(3)
    noise = StepNoise(GaussianGenerator(KEY), 1, SPANS)
    noise.begin()
    noise.take()
    seen: list[int] = [torch.get_num_threads()]
    new = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert seen == [3, 3]


def test_what_goes_wrong_on_the_other_thread_ends_the_step() -> None:
    release = release_of()
    release.prepare(total(5), STEPS)
    with pytest.raises(PrivacyError):
        release.release(total(5), STEPS)


# --- The release ---


def test_a_release_is_the_same_with_and_without_preparation() -> None:
    plain, prepared = release_of(), release_of()
    for step in (1, 2, 5):
        prepared.prepare(total(*SIZES), step)
        got, expected = prepared.release(total(*SIZES), step), plain.release(total(*SIZES), step)
        assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("prepared", [[(1, SIZES)], [(3, SIZES)], [(2, (3, 5))], [(2, SIZES), (2, (1,)), (1, SIZES)]])
def test_what_was_prepared_for_something_else_is_never_used(prepared: list[tuple[int, tuple[int, ...]]]) -> None:
    """A skipped step, other shapes, a preparation that is overtaken: the release has its own step's noise."""
    release = release_of()
    for step, sizes in prepared:
        release.prepare(total(*sizes), step)
    got, expected = release.release(total(*SIZES), 2), release_of().release(total(*SIZES), 2)
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert release._ahead is None


def test_noise_that_was_used_is_not_prepared_again() -> None:
    release = release_of()
    release.release(total(3), 4)
    for step in (4, 3):
        with pytest.raises(PrivacyError):
            release.prepare(total(3), step)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than one step's noise, and none ahead where that is large; its buffers become the noised gradient."""
    release = release_of()
    release.prepare(total(100, 100), 1)
    assert release._ahead is not None
    buffers = [each.data_ptr() for each in release._ahead._buffers]
    assert [each.data_ptr() for each in release.release(total(100, 100), 1).values()] == buffers
    wanted = release_of().release(total(*SIZES), 2)
    monkeypatch.setattr(gaussian, "LOOK_AHEAD", 199)
    release.prepare(total(*SIZES), 2)
    assert release._ahead is None
    given = total(*SIZES)
    assert all(torch.equal(each, wanted[name]) for name, each in release.release(given, 2).items())
    if native.NATIVE is not None:
        assert all(torch.equal(each, wanted[name]) for name, each in given.items())  # over the sums themselves


@pytest.mark.skipif(native.NATIVE is None, reason="no library was built")
@pytest.mark.parametrize("count", [1, 3])
def test_noise_in_place_is_the_same_on_any_number_of_threads(
    count: int, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    wanted = release_of().release(total(*SIZES), 7)
    monkeypatch.setattr(gaussian, "LOOK_AHEAD", 0)
    monkeypatch.setattr("worker.noise.release.PIECE", 9999)
    torch.set_num_threads(count)
    found = release_of().release(total(*SIZES), 7)
    assert torch.get_num_threads() == count
    assert all(torch.equal(found[name], each) for name, each in wanted.items())
    for broken in (torch.full((5,), torch.nan).double(), torch.full((20_000,), torch.inf).double()):
        with pytest.raises(PrivacyError):
            release_of().release({"w": broken}, 7)


# --- In the loop ---


def record_of(sampling: dict[str, Any]) -> Supervisor:
    return Supervisor(start_of(spec(sampling=sampling), SHAPE))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_jobs_with_and_without_look_ahead_are_one_job(
    sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, killed in any step on one side and resumed on the other, too. Nobody in a batch is no matter."""
    with_it = record_of(sampling)
    weights = run_direct(with_it, TRAIN, HOLDOUT)[0].parameters["weight"]
    for step in (1, 4, 10):
        record = record_of(sampling)
        record.die_at = step
        with pytest.raises(ConnectionError):
            run_direct(record, TRAIN, HOLDOUT)
        record.die_at = None
        with monkeypatch.context() as without:
            without.setattr(gaussian, "LOOK_AHEAD", 0)
            assert torch.equal(run_direct(record, TRAIN, HOLDOUT)[0].parameters["weight"], weights)
        assert record.digests() == with_it.digests() and record.resalts == 0
    nobody = records(X[:0], Y[:0])
    alone = run_direct(record_of(sampling), nobody, HOLDOUT)[0].parameters["weight"]
    monkeypatch.setattr(gaussian, "LOOK_AHEAD", 0)
    assert torch.equal(run_direct(record_of(sampling), nobody, HOLDOUT)[0].parameters["weight"], alone)


class Watched:
    """Notes each piece of noise: for which key and step it was begun, and with which it was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[bytes, int]] = []
        self.taken: list[tuple[bytes, int]] = []
        self.met: list[tuple[bytes, int]] = []
        begin, take, release = StepNoise.begin, StepNoise.take, GaussianRelease.release

        def address(noise: StepNoise) -> tuple[bytes, int]:
            return noise._generator.stream._cipher.key, noise.address[0]

        def noted_begin(noise: StepNoise) -> None:
            self.begun.append(address(noise))
            begin(noise)

        def noted_take(noise: StepNoise) -> Any:
            self.taken.append(address(noise))
            return take(noise)

        def noted_release(each: GaussianRelease, private_sum: dict[str, torch.Tensor], step: int, *more: Any) -> Any:
            self.met.append((each._generator.stream._cipher.key, step))
            return release(each, private_sum, step, *more)

        monkeypatch.setattr(StepNoise, "begin", noted_begin)
        monkeypatch.setattr(StepNoise, "take", noted_take)
        monkeypatch.setattr(GaussianRelease, "release", noted_release)


def tamper(record: Supervisor, step: int) -> None:
    for each in record.segments[-1]["recorded"]:
        if each["last_step"] == step:
            each["digest"] = key("tampered")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("damaged", [0, 1, 5, 10])
def test_after_a_mismatch_no_noise_of_the_old_key_meets_a_state(
    sampling: dict[str, Any], damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is begun in the step that takes it, under the key that rules it; none is left over in between."""
    record = record_of(sampling)
    record.hold = 30
    run_direct(record, TRAIN, HOLDOUT)
    tamper(record, damaged)
    watched = Watched(monkeypatch)
    run_direct(record, TRAIN, HOLDOUT)
    assert record.resalts == (1 if damaged in record.digests() else 0)
    assert watched.begun == watched.taken == watched.met
    fresh = bytes.fromhex(keys_of("s1")["noise_key"])
    old_after = [step for used, step in watched.met if used != fresh]
    if record.resalts:
        assert old_after == sorted(set(old_after))  # under the old key each step once: the replay that found out
        first_fresh = watched.met.index((fresh, min(step for used, step in watched.met if used == fresh)))
        assert all(used == fresh for used, _ in watched.met[first_fresh:])


def test_a_stop_or_an_error_leaves_nothing_behind_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the gradient: the noise begun for the step is not taken, and the next attempt makes the same."""
    record = record_of(SAMPLINGS[0])
    straight = run_direct(record_of(SAMPLINGS[0]), TRAIN, HOLDOUT)[0].parameters["weight"]
    with monkeypatch.context() as broken:
        watched = Watched(broken)

        def fail(*arguments: Any) -> Any:
            raise MemoryError

        broken.setattr("worker.clipping.linear_clipping.LinearClipping.private_sum", fail)
        with pytest.raises(MemoryError):
            run_direct(record, TRAIN, HOLDOUT)
        assert len(watched.begun) == 1 and watched.taken == watched.met == []
    assert torch.equal(run_direct(record, TRAIN, HOLDOUT)[0].parameters["weight"], straight)
