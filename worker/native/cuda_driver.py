"""Machine code on a GPU, by CUDA's driver. torch has initialized CUDA."""

from __future__ import annotations

import ctypes

from core.errors import TransientError

DRIVER = "libcuda.so.1"


class Module:
    """Loaded machine code, whose kernels it launches from any thread: in the context of the one that loads it.

    Args:
        code: for this GPU (core.native.nvrtc).

    Raises:
        TransientError: the driver refuses, in its own words.
    """

    def __init__(self, code: bytes) -> None:
        self._driver, self._module = ctypes.CDLL(DRIVER), ctypes.c_void_p()
        self._context = ctypes.c_void_p()
        self._require(self._driver.cuCtxGetCurrent(ctypes.byref(self._context)), "has no context")
        self._require(self._driver.cuModuleLoadData(ctypes.byref(self._module), code), "loads no kernel")

    def launch(self, name: str, blocks: int, threads: int, stream: int, argument: ctypes.Structure | None) -> None:
        """Launches a kernel; nothing waits for it.

        Args:
            blocks, threads: how many of the first, and in each.
            stream: the driver's.
            argument: the kernel's only one; the driver copies it.

        Raises:
            TransientError: the driver refuses.
        """
        kernel = ctypes.c_void_p()
        self._require(
            self._driver.cuModuleGetFunction(ctypes.byref(kernel), self._module, name.encode()), f"has no {name}"
        )
        self._require(self._driver.cuCtxSetCurrent(self._context), "has no context")
        arguments = None if argument is None else (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        shape = [ctypes.c_uint(each) for each in (blocks, 1, 1, threads, 1, 1, 0)]
        launched = self._driver.cuLaunchKernel(kernel, *shape, ctypes.c_void_p(stream), arguments, None)
        self._require(launched, f"does not launch {name}")

    def _require(self, result: int, failure: str) -> None:
        if result:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(words))
            reason = words.value.decode() if words.value else f"error {result}"
            raise TransientError(f"the GPU's driver {failure}: {reason}")
