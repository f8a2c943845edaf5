"""The project's own kernels on a GPU. They are CUDA C (core/native), compiled by NVRTC and launched by the driver.

The fork server compiles them before an attempt sees data: its forks inherit the code, and open no files for it.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache

import torch

from core.errors import TransientError
from core.native import nvrtc
from core.native.build import FOLDER
from worker.native.cuda_driver import Module

KERNELS, HEADERS = ("noise_step.h", "clipping_pass.h"), ("gaussians.h", "two_compilers.h")
# At import: an attempt's process can open no files once it sees data.
TEXTS = {"kernels.cu": "".join(f'#include "{name}"\n' for name in KERNELS)}
TEXTS |= {name: (FOLDER / name).read_text() for name in (*KERNELS, *HEADERS)}
THREADS = 512  # of a block, as in two_compilers.h
BLOCKS = 2  # that a multiprocessor has room for
CODES: dict[str, bytes] = {}  # the kernels, by the GPU's capability
logger = logging.getLogger(__name__)


def machine_code(capability: str) -> bytes:
    """The kernels for GPUs of this capability, such as "9.0". Compiled once: forks of this process have it, too.

    Raises:
        TransientError: they cannot be compiled here.
    """
    if capability not in CODES:
        library = nvrtc.installed((torch.version.cuda or "").partition(".")[0])
        if library is None:
            raise TransientError(f"torch for CUDA {torch.version.cuda} comes without NVRTC, which compiles for GPUs")
        CODES[capability] = nvrtc.compiled(library, TEXTS, capability)
    return CODES[capability]


def compile_ahead() -> None:
    """Compiles for the GPU of this process's forks, if the environment names its capability. It cannot: this is logged.

    A process that ends does it, as NVRTC initializes CUDA where it finds a driver: no fork of this one could use it.
    """
    capability = os.environ.get(nvrtc.CAPABILITY)
    if not capability:
        return
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(machine_code(capability))
            os._exit(0)
        except Exception as error:  # attempts end as the device's, and are silent
            logger.error("%s", error)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        code = pipe.read()
    if os.waitpid(pid, 0)[1] == 0:
        CODES[capability] = code


@cache
def _module(device: torch.device) -> Module:
    properties = torch.cuda.get_device_properties(device)
    module = Module(machine_code(f"{properties.major}.{properties.minor}"))
    module.launch("scrimp_noise_tables", 1, THREADS, torch.cuda.current_stream(device).cuda_stream, None)
    return module


def launch(name: str, argument: ctypes.Structure, items: int, device: torch.device) -> None:
    """Launches a kernel on torch's stream. Tests put a processor in its place.

    Args:
        argument: the kernel's only one.
        items: what its threads take one by one, at least 1.

    Raises:
        TransientError: the kernel cannot be compiled or launched here.
    """
    with torch.cuda.device(device):
        resident = torch.cuda.get_device_properties(device).multi_processor_count * BLOCKS
        blocks = min(-(-items // THREADS), resident)
        stream = torch.cuda.current_stream(device).cuda_stream
        _module(device).launch(name, blocks, THREADS, stream, argument)
