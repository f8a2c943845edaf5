"""The noise step of GPUs releases the processor's bits. Its kernel runs here on the processor, and NVRTC compiles all.

Tests that need a GPU: test_gpu.py, test_noise_ahead.py, benchmarks/gpu_hour.py.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from core.contracts.devices import Device
from core.errors import PrivacyError, TransientError
from core.native import nvrtc
from tests.worker.native import gpu_kernels
from tests.worker.support import key
from tests.worker.test_native import OFFSETS, boundary_sums
from worker.attempt.device_survey import processor, visible
from worker.native import cuda_driver, gpu
from worker.native.cuda_driver import Module
from worker.noise import on_device
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import STEPS, TENSORS, WORDS, KeyedStream, gaussians
from worker.noise.on_device import DOUBTS, SPANS, Step, noised_on_device
from worker.noise.release import Address
from worker.noise.rounding import add_noise, grid

KEY = bytes.fromhex(key("noise"))
STREAM = KeyedStream(KEY)
SIZES = (70, 1, 130, 0, 1025)
STD, STEP, DIVISOR = 3.7, 5, 7
LARGEST_GPU = 192  # multiprocessors
STREAM_OF_DRIVER = 0x123456789ABC  # wider than an int
REQUIRE = on_device._require_same_bits.__wrapped__  # each time anew


def runs(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, blocks: int = 3) -> None:
    """Puts this build of the kernel in the GPU's place."""

    def launch(name: str, step: Step, _items: int, _device: torch.device) -> None:
        library.run(name.encode(), ctypes.addressof(step), blocks)

    monkeypatch.setattr(gpu, "launch", launch)
    monkeypatch.setattr(on_device, "_require_same_bits", REQUIRE)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    library = gpu_kernels()
    runs(library, monkeypatch)
    return library


def addresses_of(sums: Sequence[Tensor], first: int = 0, step: int = STEP, tensor: int = 3) -> list[Address]:
    return [Address(STREAM, step, tensor + at, first) for at in range(len(sums))]


def wanted(sums: Sequence[Tensor], addresses: Sequence[Address], std: float = STD) -> list[Tensor]:
    """By the reference in Python."""
    found = []
    for value, at in zip(sums, addresses, strict=True):
        words = torch.from_numpy(at.stream.words(at.step, at.tensor, 0, at.first, value.numel()))
        z = gaussians(words >> 11).view(value.shape)
        found.append(add_noise(value, z, std, at.stream, at.step, at.tensor, at.first).div_(DIVISOR))
    return found


def sums_of(scale: float, sizes: Sequence[int] = SIZES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def require_same(sums: Sequence[Tensor], addresses: Sequence[Address], std: float = STD) -> None:
    expected = wanted(sums, addresses, std)
    found = noised_on_device([each.clone() for each in sums], std, DIVISOR, addresses)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.view(torch.int64), other.view(torch.int64))  # the sign of 0 too


# --- Its bits ---


@pytest.mark.parametrize("std", [STD, 1.0, math.nextafter(2.0, 0.0), 1e-90, 1e90])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e6, 1e13, 1e25])
def test_the_bits_are_the_same(kernel: ctypes.CDLL, scale: float, std: float) -> None:
    sums = sums_of(scale * std)
    require_same(sums, addresses_of(sums), std)


@pytest.mark.parametrize("first", [0, 1, 2, 7, 2**33 + 1, WORDS - 2000])
@pytest.mark.parametrize(("step", "tensor"), [(1, 0), (STEPS - 1, TENSORS - 5), (2**31, 2**23)])
def test_words_have_the_processor_s_addresses(kernel: ctypes.CDLL, first: int, step: int, tensor: int) -> None:
    """Numbers of a rank's own part, which may begin at either word of a cipher block."""
    sums = sums_of(1.0)
    require_same(sums, addresses_of(sums, first, step, tensor))


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_the_number_of_blocks_changes_no_bit(kernel: ctypes.CDLL, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(kernel, monkeypatch, blocks)
    sums = sums_of(1.0, (5000, 3))
    require_same(sums, addresses_of(sums))


def test_many_tensors_take_several_calls(kernel: ctypes.CDLL) -> None:
    sums = sums_of(1.0, [at % 4 for at in range(3 * SPANS)])
    require_same(sums, addresses_of(sums))


def test_it_is_the_release_of_processors(kernel: ctypes.CDLL) -> None:
    """Tensors of any shape; those in one piece become the result themselves."""
    release = GaussianRelease(KEY, noise_multiplier=1.5, max_grad_norm=2.0, expected_batch_size=DIVISOR)
    w, t = sums_of(1.0, (12, 12))
    total = {"w": w.view(3, 4), "t": t.view(4, 3).T, "b": torch.zeros(5, dtype=torch.float64)}
    expected = release.release({name: each.clone() for name, each in total.items()}, STEP, 1)
    std = math.nextafter(3.0, math.inf)
    found = noised_on_device(list(total.values()), std, DIVISOR, addresses_of(list(total.values())))
    assert all(torch.equal(one, other) for one, other in zip(expected.values(), found, strict=True))
    assert found[0].data_ptr() == total["w"].data_ptr() and noised_on_device([], std, DIVISOR, []) == []


# --- What is in doubt ---


@pytest.fixture(scope="module")
def boundaries() -> list[tuple[Tensor, Tensor]]:
    """Sums that end near a boundary between two cells, and their releases."""
    near = boundary_sums(STREAM.words(STEP, 3, 0, 0, 150), STD)
    sums = [near + off * grid(STD) for off in OFFSETS]
    return [(each, wanted([each], addresses_of([each]))[0]) for each in sums]


def wrong_near_boundaries(boundaries: list[tuple[Tensor, Tensor]]) -> int:
    found = [on_device._noised([each.clone()], STD, DIVISOR, addresses_of([each]))[0] for each, _ in boundaries]
    return sum(int((one != expected).sum()) for one, (_, expected) in zip(found, boundaries, strict=True))


def test_sums_near_a_boundary_are_settled_exactly(
    kernel: ctypes.CDLL, boundaries: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[float] = []
    exactly = on_device.settle_at
    monkeypatch.setattr(on_device, "settle_at", lambda value, *rest: settled.append(value) or exactly(value, *rest))
    assert wrong_near_boundaries(boundaries) == 0 and 150 <= len(settled) < 1000


def test_a_bound_that_is_too_small_is_found(
    boundaries: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(gpu_kernels("-DSECOND_ERROR=0.0", "-DSECOND_TAIL=0.0", "-DSECOND_ROUNDING=0.0"), monkeypatch)
    assert wrong_near_boundaries(boundaries) > 5


def test_numbers_in_doubt_are_found_in_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide bound: a fifth of the numbers is in doubt. More than have a place end the step."""
    runs(gpu_kernels("-DSECOND_ERROR=0x1p-14"), monkeypatch)
    sizes = (70, 1, 0, 130, 1, 200)
    monkeypatch.setattr(on_device, "_require_same_bits", lambda device: None)  # it has more numbers
    require_same(sums_of(3.0, sizes), addresses_of(sizes, first=3))  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="not finite"):
        require_same(sums_of(3.0, (20 * DOUBTS,)), addresses_of((1,)))  # type: ignore[arg-type]


def test_a_number_in_doubt_is_not_its_sum_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is private: whatever fails before the processor has decided, it is not what stands there."""
    runs(gpu_kernels("-DSECOND_ERROR=0x1p-14"), monkeypatch)
    monkeypatch.setattr(Tensor, "fill_", lambda tensor, _value: tensor)
    (sums,) = sums_of(3.0, (200,))
    (found,) = on_device._noised([sums.clone()], STD, DIVISOR, addresses_of([sums]))
    assert 20 < int(found.isnan().sum()) < 100 and not (found == sums).any()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("how_many", [1, 1025])
def test_a_sum_that_is_not_finite_is_refused(kernel: ctypes.CDLL, broken: float, how_many: int) -> None:
    """In cells: 1e300 divided by a small grid is infinite."""
    sums = sums_of(1.0)
    sums[4][:how_many] = broken
    with pytest.raises(PrivacyError, match="not finite"):
        noised_on_device(sums, 1e-50, DIVISOR, addresses_of(sums))


@pytest.mark.parametrize(
    "change", [{"step": STEPS}, {"step": -1}, {"tensor": TENSORS}, {"first": WORDS - 69}, {"first": -1}]
)
def test_an_address_outside_the_layout_is_refused(kernel: ctypes.CDLL, change: dict[str, int]) -> None:
    sums = sums_of(1.0, (70,))
    with pytest.raises(PrivacyError, match="layout"):
        noised_on_device(sums, STD, DIVISOR, [replace(addresses_of(sums)[0], **change)])


def test_two_streams_in_one_call_are_refused(kernel: ctypes.CDLL) -> None:
    sums = sums_of(1.0, (3, 3))
    for other in (Address(KeyedStream(bytes(range(32))), STEP, 1), Address(STREAM, STEP + 1, 1)):
        with pytest.raises(PrivacyError, match="one stream"):
            noised_on_device(sums, STD, DIVISOR, [Address(STREAM, STEP, 0), other])


def test_one_release_is_one_wait(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of tensors, and of calls: one list, of one size."""
    waits: list[int] = []
    arrives = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: waits.append(len(tensor)) or arrives(tensor))
    sums = sums_of(1.0, [3] * (SPANS + 1))
    on_device._noised(sums, STD, DIVISOR, addresses_of(sums))
    assert waits == [2 + 2 * DOUBTS]


def test_what_no_thread_reached_is_not_released(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later launch of a kernel that was compared does nothing: S stands where R should."""
    sums, launched = sums_of(1.0, [3] * (SPANS + 1)), gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda name, step, *of: launched(name, step, *of) if step.spans > 1 else None)
    with pytest.raises(PrivacyError, match="not reached"):
        on_device._noised(sums, STD, DIVISOR, addresses_of(sums))


# --- Faults that the comparison before the first release finds ---

FAULTS = {
    "a round key": ("4 * round;", "4 * (round - 1);"),
    "the key's last word": ("i < 8 ? key[i] : keys[i - 1]", "i < 7 ? key[i] : keys[i - 1]"),
    "a round fewer": ("round < ROUNDS;", "round < ROUNDS - 1;"),
    "an entry of the cipher's table": ("^ 0x63u", "^ (x == 7 ? 0x62u : 0x63u)"),
    "one lane's table": (
        "table[thread * COPIES + (thread + at) % COPIES] = entry",
        "table[thread * COPIES + at] = entry + (at == 9)",
    ),
    "a dropped bit of the counter": ("(uint32_t)block ^ keys[3]", "((uint32_t)block & ~64u) ^ keys[3]"),
    "a dropped upper bit of it": ("(uint32_t)(block >> 32)", "((uint32_t)(block >> 32) & 0x7fu)"),
    "the tensor": ("tensor << 8 ^", "0u ^"),
    "the step": ("step ^ keys[0]", "keys[0]"),
    "words in the other order": ("words[half])", "words[1 - half])"),
    "one word for two numbers": ("words[half])", "words[0])"),
    "the first position": ("span->position / 2 + (of", "(of"),
    "the divisor": ("/ step->divisor", ""),
    "an upper bit of the step": ("step ^ keys[0]", "(step & 0x7fffffffu) ^ keys[0]"),
    "an upper bit of the tensor": ("tensor << 8 ^", "(tensor & 0x7fffffu) << 8 ^"),
    "a doubt that is not counted": ("add_to(&step->doubts->count, 1)", "DOUBTS"),
    "a doubt in another's place": (".place = span->at + i", ".place = span->at"),
    "a doubt with another's sum": (".sum = sum", ".sum = 1.0"),
    "numbers beyond the threads": ("of += (int64_t)blocks * THREADS", "of += (int64_t)1 << 40"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_with_other_bits_releases_nothing(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = gpu.TEXTS["noise_step.h"]
    assert text.count(FAULTS[fault][0]) == 1
    shim = (Path(__file__).with_name("kernels_on_processor.c")).read_text()
    faulty = tmp_path / "faulty.c"
    faulty.write_text(shim.replace('#include "noise_step.h"', text.replace(*FAULTS[fault])))
    runs(gpu_kernels("-O1", source=faulty), monkeypatch, LARGEST_GPU * gpu.BLOCKS)
    sums = sums_of(1.0, (3,))
    with pytest.raises(PrivacyError, match=r"other bits|not reached"):
        noised_on_device(sums, STD, DIVISOR, addresses_of(sums))
    assert torch.equal(sums[0], sums_of(1.0, (3,))[0])


# --- The two sides of the call ---


def test_both_sides_have_one_layout(kernel: ctypes.CDLL) -> None:
    assert kernel.step_size() == ctypes.sizeof(Step) <= 4096  # a kernel's arguments
    assert (kernel.step_spans(), kernel.step_doubts()) == (SPANS, DOUBTS)
    assert kernel.threads() == gpu.THREADS


def test_the_key_is_the_cipher_s(kernel: ctypes.CDLL) -> None:
    """FIPS 197 has no vector in this layout; OpenSSL's words of a counter whose every byte counts."""
    step, found = Step(step=0x01234567), np.empty(2, dtype=np.int64)
    step.key[:] = np.frombuffer(KEY, dtype=">u4").tolist()
    block = 0x5A5A5A5A5A5A
    out = ctypes.c_void_p(found.ctypes.data)
    kernel.words(ctypes.byref(step), ctypes.c_uint32(0x89ABCD), ctypes.c_uint64(block), out)
    assert np.array_equal(found, STREAM.words(0x01234567, 0x89ABCD, 0, 2 * block, 2))


# --- The driver ---


@pytest.fixture
def module(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(cuda_driver, "DRIVER", kernel._name)
    return Module(b"processor")


def test_the_driver_s_calls_have_their_arguments(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that runs the kernel on the processor, and refuses what CUDA's would."""
    monkeypatch.setattr(gpu, "launch", lambda name, step, *_: module.launch(name, 2, 512, STREAM_OF_DRIVER, step))
    module.launch("scrimp_noise_tables", 1, 512, STREAM_OF_DRIVER, None)
    sums = sums_of(1.0, (5000, 3))
    require_same(sums, addresses_of(sums))


def test_the_driver_s_words_are_in_the_error(module: Module) -> None:
    with pytest.raises(TransientError, match="loads no kernel: device kernel image is invalid"):
        Module(b"of another GPU")
    with pytest.raises(TransientError, match="has no other: named symbol not found"):
        module.launch("other", 1, 512, STREAM_OF_DRIVER, None)
    with pytest.raises(TransientError, match="does not launch scrimp_noise_step: error 400"):
        module.launch("scrimp_noise_step", 1, 512, 0, Step())


# --- NVRTC ---


@pytest.fixture(scope="module")
def compiler() -> ctypes.CDLL:
    libraries = [library for major in ("13", "12") if (library := nvrtc.installed(major)) is not None]
    if not libraries:
        pytest.skip("there is no libnvrtc: pip install nvidia-cuda-nvrtc-cu12, which needs no GPU")
    return libraries[0]


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_it_compiles_for_gpus_without_contracting_an_operation(compiler: ctypes.CDLL, capability: str) -> None:
    assert nvrtc.compiled(compiler, gpu.TEXTS, capability).startswith(b"\x7fELF")
    assembly = nvrtc.compiled(compiler, gpu.TEXTS, capability, "PTX").decode()
    operations = set(re.findall(r"\b\w+(?:\.\w+)*\.f64\b", assembly))
    assert {"add.rn.f64", "mul.rn.f64", "div.rn.f64", "sub.rn.f64"} <= operations
    assert not [each for each in operations if "fma" in each or "approx" in each or "ftz" in each or each == "mul.f64"]
    operations = set(re.findall(r"\b\w+(?:\.\w+)*\.f32\b", assembly))
    assert {"add.rn.f32", "mul.rn.f32"} <= operations and not [each for each in operations if "fma" in each]
    _, *kernels = re.split(r"\.entry (?=scrimp_)", assembly)
    bodies = {body.partition("(")[0]: body for body in kernels}
    steps = ("noise_tables", "noise_step", "row_squares", "add_lengths", "clip_factors", "add_sums")
    assert set(bodies) == {f"scrimp_{step}" for step in steps}
    del bodies["scrimp_noise_tables"]
    assert bodies["scrimp_row_squares"].count("bar.sync") == 3 and "sqrt.rn.f64" in bodies["scrimp_clip_factors"]
    atomics = [len(re.findall(r"\b(?:atom|red)\.", bodies[f"scrimp_{step}"])) for step in steps[2:]]
    assert atomics == [0, 0, 1, 2]
    assert not [name for name, body in bodies.items() if ".local" in body]  # the argument is not copied
    assert all(re.search(r"\.maxntid\s+512", body) for body in bodies.values())


def test_what_does_not_compile_says_why(compiler: ctypes.CDLL) -> None:
    with pytest.raises(TransientError, match="expected a"):
        nvrtc.compiled(compiler, {"broken.cu": "void f( {"}, "9.0")


def test_without_nvrtc_a_gpu_s_attempt_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CODES", {})
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    with pytest.raises(TransientError, match=r"99\.1 comes without NVRTC"):
        gpu.machine_code("9.0")


def test_a_fork_that_ends_compiles_for_the_gpu_of_later_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC calls cuInit where it finds a driver: a process that did so has no fork that can use CUDA."""
    monkeypatch.setattr(gpu, "CODES", {})
    monkeypatch.setattr(nvrtc, "installed", lambda _major: ctypes.CDLL(None))
    monkeypatch.setattr(nvrtc, "compiled", lambda *of: f"{of[2]} {os.getpid()}".encode())
    h200 = Device(kind="cuda", index=0, name="H200", memory_bytes=1, capability="9.0")
    for device in (processor(), h200):
        assert not gpu.CODES
        with monkeypatch.context() as environment:
            environment.setattr(os, "environ", visible(device, {}))
            gpu.compile_ahead()
    capability, pid = gpu.machine_code("9.0").decode().split()
    assert capability == "9.0" and int(pid) != os.getpid()
