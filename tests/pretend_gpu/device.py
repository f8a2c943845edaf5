"""A CUDA device that pretends: its tensors' numbers are on the processor, on a build of torch without CUDA.

Autograd, the engine and whole attempts run on it. It raises where CUDA would: tensors of two devices in one
operation, products of integers, operations without a deterministic kernel, cuBLAS without its workspace. It warns of
what the host waits for, if it is told to. And it imitates two ways of CUDA's kernels that change bits: a quotient by
a number on the host is a product with its reciprocal (BinaryDivTrueKernel.cu), and a softmax over more than 1,024
columns adds in an order that depends on each row's alignment (SoftMax.cu). Where torch's switches allow it, factors of
products are rounded as TF32 does.

The project's own kernels are their source, compiled for the processor.

Left out: sparse tensors, other kernels' rounding, races of streams, other processes, a limit of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.pretend_gpu import tf32

CUDA = torch.device("cuda", 0)
NAME, MEMORY_BYTES = "Pretend H200", 141 * 2**30
PROJECT = ("worker", "core", "app")
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "_addmm_activation"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"}
# Operations that CUDA refuses in deterministic mode, of those that a model may use.
NOT_DETERMINISTIC = {
    *("put", "histc", "kthvalue", "bincount", "_ctc_loss_backward", "nll_loss2d_forward", "cumsum of floats"),
    *("adaptive_max_pool2d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool3d_backward"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *("replication_pad1d_backward", "replication_pad3d_backward", "grid_sampler_2d_backward"),
    *("upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "upsample_linear1d_backward"),
}
WIDE_SOFTMAX = 1024  # columns of float32; half as many of float64
SCATTERS = {"scatter", "scatter_add", "index_add"}
NO_KERNEL = {
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "_reshape_alias",
}

equal_indices: Counter[str] = Counter()  # of a deterministic scatter, by line: CUDA adds them one by one
kernels: Counter[str] = Counter()  # by line
counts: Counter[str] = Counter()  # kernels; waits of the host; copies from pageable memory; waits of streams
_debug = {"sync": "default"}
_pinned: set[int] = set()
_kept: list[Any] = []  # storages whose addresses are in `_pinned`


class Token:
    """A tensor's share of the memory. The tensor itself must have no weak references, or modules cannot swap it."""


class Memory:
    """The bytes of the tensors that are there, and the most that there were."""

    def __init__(self) -> None:
        self.held, self.peak = 0, 0
        self._views: Counter[int] = Counter()  # of each storage, by its address

    def take(self, numbers: Tensor) -> Token:
        """Counts a tensor's storage, until the tokens of all of its views are gone."""
        storage, token = numbers.untyped_storage(), Token()
        self._views[storage.data_ptr()] += 1
        if self._views[storage.data_ptr()] == 1:
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
        weakref.finalize(token, self._drop, storage.data_ptr(), storage.nbytes())
        return token

    def _drop(self, address: int, size: int) -> None:
        self._views[address] -= 1
        self.held -= 0 if self._views[address] else size


memory = Memory()


class Gpu(Tensor):
    """A tensor of the device."""

    numbers: Tensor
    token: Token

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Gpu:
        made: Gpu = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=CUDA,
            requires_grad=False,
        )
        made.numbers = numbers
        made.token = memory.take(numbers)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatched(function, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def untyped_storage(self) -> Any:
        return self.numbers.untyped_storage()

    def record_stream(self, _stream: Any) -> None:
        pass

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    def __deepcopy__(self, _memo: Any) -> Any:
        made = Gpu(self.numbers.clone())
        return torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made


def dispatched(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the host or on the device."""
    name, device = function._schema.name.removeprefix("aten::"), kwargs.get("device")
    target = None if device is None else torch.device(device).type
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    here = [each for each in tensors if not isinstance(each, Gpu)]
    there = [each for each in tensors if isinstance(each, Gpu)]
    if kwargs.get("pin_memory"):
        return _pin(function(*args, **kwargs | {"pin_memory": False}))
    if not there and target != "cuda":
        return function(*args, **kwargs)
    if name == "_to_copy" and target is not None:
        return _to_copy(function, args, kwargs, target)
    if name == "copy_" and here and there:
        return _copied(function, args)
    _require_one_device(name, function, here, there)
    _require_determinism(name, args, there)
    _note(name, args)
    if not (_is_view(function) or name in NO_KERNEL):
        counts["kernels"] += 1
        kernels[line()] += 1
    host = kwargs | ({"device": torch.device("cpu")} if target == "cuda" else {})
    arguments = tf32.multiplied(name, _on_host(args))
    found = _imitated(name, arguments, _on_host(host), args)
    if found is None:
        found = function(*arguments, **_on_host(host))
    return found if target in ("cpu", "meta") else _wrapped(function, found, args, kwargs)


def _is_view(function: Any) -> bool:
    """It shares its argument's numbers, and changes none."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in function._schema.returns)


def _on_host(values: Any) -> Any:
    return tree_map_only(Gpu, lambda each: each.numbers, values)


def _wrapped(function: Any, found: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result as tensors of the device; an operation in place returns what it was given."""
    if any(each.alias_info is not None and each.alias_info.is_write for each in function._schema.returns):
        if "out" in kwargs:
            return kwargs["out"]
        for at, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                return args[at] if at < len(args) else kwargs[argument.name]
    if function._schema.name.startswith("aten::_foreach") and function._schema.name.endswith("_"):
        return None
    return tree_map_only(Tensor, lambda each: each if isinstance(each, Gpu) else Gpu(each), found)


def _to_copy(function: Any, args: Any, kwargs: dict[str, Any], target: str) -> Any:
    source = args[0]
    host = kwargs | {"non_blocking": False} | ({"device": torch.device("cpu")} if target == "cuda" else {})
    found = function(_on_host(source), **host)
    if isinstance(source, Gpu) and target == "cpu":
        _wait("a copy to the host")
    if not isinstance(source, Gpu) and not (_is_pinned(source) and kwargs.get("non_blocking")):
        counts["pageable copies"] += 1
        _wait("a copy to the device")
    own = found.clone() if found is _on_host(source) else found
    return Gpu(own) if target == "cuda" else own


def _copied(function: Any, args: Any) -> Any:
    target, source = args[:2]
    if not (isinstance(target, Gpu) and _is_pinned(source) and len(args) > 2 and args[2]):
        _wait("a copy between devices")
    function(_on_host(target), _on_host(source))
    return target


def _require_one_device(name: str, function: Any, here: list[Tensor], there: list[Gpu]) -> None:
    """Numbers of no dimension may come from the host, and so may indices: the host waits for their copy."""
    others = [each for each in here if each.dim() > 0 and each.device.type != "meta"]
    if others and not name.rstrip("_").endswith(("index", "index_put", "index_put_impl")):
        raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0 and cpu: {function} at {line()}")
    if others and there:
        _wait("indices on the host")


def _require_determinism(name: str, args: Any, there: list[Gpu]) -> None:
    plain = name.rstrip("_")
    if plain in PRODUCTS and any(not each.is_floating_point() for each in there):
        raise RuntimeError(f'"addmm_cuda" not implemented for integers at {line()}')
    if not torch.are_deterministic_algorithms_enabled():
        return
    if plain in NOT_DETERMINISTIC or (plain == "cumsum" and args[0].is_floating_point()):
        raise RuntimeError(f"{name} does not have a deterministic implementation at {line()}")
    if plain in PRODUCTS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise RuntimeError(f"cuBLAS needs CUBLAS_WORKSPACE_CONFIG to be deterministic, at {line()}")


def _note(name: str, args: Any) -> None:
    """Counts waits of the host, and equal indices that CUDA adds one by one."""
    masks = [each for each in (args[1] or () if name == "index" else ()) if each is not None]
    if name in WAITS or any(each.dtype in (torch.bool, torch.uint8) for each in masks):
        _wait(name)
    if name.rstrip("_") in SCATTERS and torch.are_deterministic_algorithms_enabled():
        indices = _on_host(args[2]).flatten()
        most = int(torch.bincount(indices).max()) if args[2].dim() == 1 and indices.numel() else 0
        equal_indices[line()] = max(equal_indices[line()], most)


def _imitated(name: str, args: Any, kwargs: dict[str, Any], given: Any) -> Tensor | None:
    """What CUDA's own kernels make otherwise; None: nothing."""
    if name in ("div", "div_") and len(args) == 2 and not isinstance(given[1], Gpu) and args[0].is_floating_point():
        one, other = torch.ones((), dtype=args[0].dtype), torch.as_tensor(args[1], dtype=args[0].dtype)
        into = {"out": args[0]} if name == "div_" else {key: kwargs[key] for key in ("out",) if key in kwargs}
        return torch.mul(args[0], float(one / other), **into)
    if name not in ("_softmax", "_log_softmax", "softmax", "log_softmax"):
        return None
    x, columns = args[0], args[0].shape[-1]
    if x.dim() - 1 != args[1] % x.dim() or x.element_size() < 4 or columns <= WIDE_SOFTMAX * 4 // x.element_size():
        return None
    made = softmax_of_rows(x.reshape(-1, columns), log="log" in name).view(x.shape)
    return kwargs["out"].copy_(made) if "out" in kwargs else made


def softmax_of_rows(x: Tensor, *, log: bool) -> Tensor:
    """Softmax of float32 or float64 rows, whose exponentials are added in the order of cunn_SoftMaxForward."""
    rows, columns = x.shape
    lanes, kind = 16 // x.element_size(), np.float32 if x.dtype == torch.float32 else np.float64
    numbers = x.contiguous().numpy()
    most = numbers.max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        powers = np.exp((numbers - most).astype(kind)).astype(kind)
    shifts = (int(x.storage_offset()) + np.arange(rows) * columns) % lanes  # off a line of 16 bytes
    total = np.zeros(rows, kind)
    for shift in np.unique(shifts):
        which = np.flatnonzero(shifts == shift)
        total[which] = _block_sum(powers[which], int(shift), lanes)
    with np.errstate(all="ignore"):
        made = numbers - most - np.log(total)[:, None] if log else powers / total[:, None]
    return torch.from_numpy(made.astype(kind))


def _block_sum(rows: NDArray[Any], shift: int, lanes: int) -> NDArray[Any]:
    """Each row's sum: by threads, which take lines of 16 bytes in turn, then by halves of a warp, then over warps."""
    columns = rows.shape[1]
    block = -(-min(columns, 1024) // 32) * 32
    padded = np.concatenate([rows, np.zeros((len(rows), 1), rows.dtype)], axis=1)
    thread, sums, size, at = np.arange(block), np.zeros((len(rows), block), rows.dtype), columns, 0

    def add(index: NDArray[np.int64]) -> None:
        nonlocal sums
        sums = sums + padded[:, np.where((index >= 0) & (index < columns), index, columns)]

    if shift:
        add(np.where(thread >= shift, thread - shift, -1))
        size, at = columns + shift - block, block - shift
    last, offset = size % (lanes * block), thread.copy()
    while (offset * lanes < size - last).any():
        for lane in range(lanes):
            add(np.where(offset * lanes < size - last, at + offset * lanes + lane, -1))
        offset = offset + block
    offset = size - last + thread
    while (offset < size).any():
        add(np.where(offset < size, at + offset, -1))
        offset = offset + block
    warps = _by_halves(sums.reshape(len(rows), block // 32, 32))
    found: NDArray[Any] = _by_halves(np.pad(warps, ((0, 0), (0, 32 - block // 32))))
    return found


def _by_halves(lanes: NDArray[Any]) -> NDArray[Any]:
    for step in (16, 8, 4, 2, 1):
        lanes = lanes + np.concatenate([lanes[..., step:], np.zeros_like(lanes[..., :step])], axis=-1)
    first: NDArray[Any] = lanes[..., 0]
    return first


def _wait(what: str) -> None:
    """The host waits for the device: as loud as set_sync_debug_mode says."""
    counts["waits"] += 1
    if _debug["sync"] != "default":
        warnings.warn(f"called a synchronizing CUDA operation: {what} at {line()}", stacklevel=2)


def line() -> str:
    """The line of the project that made the operation."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename.removeprefix(f"{Path.cwd()}/")
        if path.split("/")[0] in PROJECT:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "a backward pass or a library"


def _pin(tensor: Tensor) -> Tensor:
    _pinned.add(tensor.untyped_storage().data_ptr())
    _kept.append(tensor.untyped_storage())
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in _pinned


class Mode(TorchDispatchMode):
    """Each thread that makes tensors of the device enters one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Mode:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(function, args, kwargs or {})


class Stream:
    """A stream on which everything is done at once."""

    cuda_stream = 0x123456789ABC

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _other: Any) -> None:
        counts["waits of streams"] += 1

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


def start(guard: str) -> None:
    """Puts the device in torch.cuda's place, for the rest of this process.

    Args:
        guard: the library of guard.cpp, which was loaded before torch.
    """
    ctypes.CDLL(guard).pretend()
    torch.__future__.set_swap_module_params_on_conversion(True)
    properties = types.SimpleNamespace(total_memory=MEMORY_BYTES, name=NAME, major=9, minor=0, multi_processor_count=2)
    members: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda _device: contextlib.nullcontext(),
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: stream,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: NAME,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: None,
        "set_sync_debug_mode": lambda mode: _debug.update(sync=mode),
    }
    for name, member in members.items():
        setattr(torch.cuda, name, member)
    Tensor.pin_memory = lambda self, *_: _pin(self.clone())  # type: ignore[method-assign]
    Mode().__enter__()
    _run_kernels_here()


def _run_kernels_here() -> None:
    """Puts the processor's build of the project's own kernels in their place, and a driver that runs them."""
    from tests.worker.native import gpu_kernels
    from worker.native import cuda_driver, gpu

    launch = gpu.launch

    def counted(name: str, *of: Any) -> None:
        counts["kernels"] += 1
        launch(name, *of)

    cuda_driver.DRIVER = gpu_kernels()._name
    gpu.launch, gpu.machine_code = counted, lambda _capability: b"processor"
