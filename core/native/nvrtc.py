"""Compiles CUDA C for a GPU by NVRTC, which comes with each CUDA build of torch: in this process, with neither a
compiler nor a GPU. Where there is a driver, compiling initializes CUDA: no later fork of this process can use a GPU.

No operation is contracted or approximated: the kernels' bounds are of operations that round one by one.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from core.errors import TransientError

CAPABILITY = "SCRIMP_GPU_CAPABILITY"  # of a process whose forks compute on such a GPU
FLAGS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


@cache
def installed(major: str) -> ctypes.CDLL | None:
    """NVRTC of this major version of CUDA: the registry's package, as torch's, or the system's. None: there is none."""
    name = f"libnvrtc.so.{major}"
    packages = importlib.util.find_spec("nvidia")
    folders = [] if packages is None else [Path(each) for each in packages.submodule_search_locations or ()]
    for path in [*(str(each) for folder in folders for each in sorted(folder.glob(f"*/lib/{name}"))), name]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def compiled(library: ctypes.CDLL, texts: Mapping[str, str], capability: str, kind: str = "CUBIN") -> bytes:
    """The machine code of a kernel.

    Args:
        texts: the source and then its headers, by the names that it includes.
        capability: the GPU's, such as "9.0".
        kind: "CUBIN", or "PTX" to read.

    Raises:
        TransientError: with the compiler's log.
    """
    program, (name, *headers) = ctypes.c_void_p(), texts
    header_texts = (ctypes.c_char_p * len(headers))(*(texts[each].encode() for each in headers))
    header_names = (ctypes.c_char_p * len(headers))(*(each.encode() for each in headers))
    create = library.nvrtcCreateProgram
    source = texts[name].encode(), name.encode(), len(headers), header_texts, header_names
    _require(library, create(ctypes.byref(program), *source), "")
    try:
        flags = [each.encode() for each in (*FLAGS, f"--gpu-architecture=sm_{capability.replace('.', '')}")]
        result = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        _require(library, result, "" if not result else _read(library, program, "ProgramLog").decode(errors="replace"))
        return _read(library, program, kind)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _require(library, library[f"nvrtcGet{kind}Size"](program, ctypes.byref(size)), "")
    text = ctypes.create_string_buffer(size.value)
    _require(library, library[f"nvrtcGet{kind}"](program, text), "")
    return text.raw


def _require(library: ctypes.CDLL, result: int, log: str) -> None:
    if result:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        reason = library.nvrtcGetErrorString(result).decode()
        raise TransientError(f"a kernel of the GPU does not compile: {reason}. {log[:2000]}".strip())
