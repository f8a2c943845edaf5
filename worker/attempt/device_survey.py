"""Finds what a worker may compute on, without initializing CUDA in a process that forks.

CUDA cannot be used in a fork of a process that has initialized it. So a short-lived child process asks torch:
`python -m worker.attempt.device_survey` prints one JSON array of devices. A machine without NVIDIA's driver has no
child.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.sandbox.processes import plain_environment
from core.contracts.devices import Device
from core.native.nvrtc import CAPABILITY

DRIVER = Path("/proc/driver/nvidia/version")
# NVIDIA's driver, whose node is not there before a program has used it once; the one under Windows.
NODES = (Path("/dev/nvidiactl"), DRIVER, Path("/dev/dxg"))
PROBE_S = 180.0  # loading torch and starting a driver take a minute on a slow, busy machine
# GPUs are numbered as nvidia-smi numbers them, in every process of the service.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
COMMAND = (sys.executable, "-m", "worker.attempt.device_survey")
ROOT = Path(__file__).resolve().parents[2]


class DevicesError(Exception):
    """The devices that the operator named cannot be used; the message says why."""


def processor() -> Device:
    """This machine's processor, by the kernel's name for it."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return Device(kind="cpu", index=0, name=name, memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def found(command: Sequence[str] = COMMAND, nodes: Sequence[Path] = NODES) -> tuple[Device, ...]:
    """The GPUs that torch can use here, asked in a process that ends; () without NVIDIA's driver.

    Raises:
        DevicesError: the process that asks failed.
    """
    if not any(node.exists() for node in nodes):
        return ()
    environment = plain_environment("CUDA_VISIBLE_DEVICES") | ORDER
    try:
        listing = subprocess.run(
            list(command), cwd=ROOT, env=environment, capture_output=True, timeout=PROBE_S, check=True, text=True
        )
        return tuple(Device.model_validate(each) for each in json.loads(listing.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise DevicesError(f"the GPUs cannot be asked for: {type(error).__name__}") from error


def chosen(setting: str, gpus: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that SCRIMP_DEVICES names, in its order. One process works on each of them.

    Args:
        setting: `auto` (every GPU, or the processor if there is none), `cuda` (every GPU), or names such as
            `cpu,cuda:0`.

    Raises:
        DevicesError: a named GPU is not there, or a device is named twice.
    """
    if setting == "auto":
        return tuple(gpus) or (processor(),)
    if setting == "cuda" and gpus:
        return tuple(gpus)
    names = setting.split(",")
    if len(set(names)) < len(names):
        raise DevicesError(f"SCRIMP_DEVICES names a device twice: {setting}")
    by_label = {each.label: each for each in (processor(), *gpus)}
    missing = [name for name in names if name not in by_label]
    if missing:
        raise DevicesError(f"this machine has no {', '.join(missing)}: torch can use {', '.join(by_label)}")
    return tuple(by_label[name] for name in names)


def on_this_machine(setting: str) -> tuple[Device, ...]:
    """The same as `chosen`, with this machine's GPUs. Asks for them only if they may be used.

    Raises:
        DevicesError: see `found` and `chosen`.
    """
    return chosen(setting, () if setting == "cpu" else found())


def visible(device: Device, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which a process sees this device and no other GPU, and knows for what it compiles.

    Args:
        environment: its CUDA_VISIBLE_DEVICES may already hide GPUs or renumber them.
    """
    if device.kind == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "", **ORDER}
    listed = [each.strip() for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    capability = {} if device.capability is None else {CAPABILITY: device.capability}
    return {"CUDA_VISIBLE_DEVICES": listed[device.index] if listed else str(device.index), **ORDER, **capability}


def driver_version(text: str) -> str | None:
    """The driver's version in the text of /proc/driver/nvidia/version; None if it has none.

    >>> driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024")
    '550.54.15'
    """
    match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else None


def _ask_torch() -> list[Device]:
    """The GPUs of this process. It initializes CUDA, so this process must never fork."""
    import torch  # noqa: PLC0415 - only the child loads it

    if not torch.cuda.is_available():
        return []
    driver = None
    with contextlib.suppress(OSError):
        driver = driver_version(DRIVER.read_text())
    devices, cudnn = [], torch.backends.cudnn.version()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            Device(
                kind="cuda",
                index=index,
                name=properties.name,
                memory_bytes=properties.total_memory,
                capability=f"{properties.major}.{properties.minor}",
                driver=driver,
                cuda=torch.version.cuda,
                cudnn=None if cudnn is None else str(cudnn),
            )
        )
    return devices


if __name__ == "__main__":
    sys.stdout.write(json.dumps([each.model_dump(mode="json") for each in _ask_torch()]))
