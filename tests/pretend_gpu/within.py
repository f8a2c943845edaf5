"""Runs a module on the pretended GPU: `python -m tests.pretend_gpu.within benchmarks.gpu_hour --tiny`.

The process starts itself again with the device's libraries, which must be loaded before torch.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

from tests.worker.kept import kept
from tests.worker.native import gpu_kernels

FOLDER = Path(__file__).resolve().parent
NAMES = ("guard", "hooks")


def built() -> list[Path]:
    """The device's compiled libraries."""
    import torch

    home, made = Path(torch.__file__).parent, []
    for name in NAMES:
        source = FOLDER / f"{name}.cpp"
        command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{home}/include", f"-L{home}/lib", str(source)]
        command += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home}/lib"]

        def compile_to(path: Path, command: list[str] = command) -> bool:
            return subprocess.run([*command, "-o", str(path)], check=True, timeout=1700).returncode == 0

        found = kept(f"{name}.so", [*command, torch.__version__], [source], compile_to)
        assert found is not None
        made.append(found)
    gpu_kernels()  # kept: a compiler that the device's libraries are loaded into takes long
    return made


def environment(libraries: list[Path]) -> dict[str, str]:
    """Of a process with the device."""
    return os.environ | {
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "PRETEND_GUARD": str(libraries[0]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",
    }


def main() -> None:
    if "PRETEND_GUARD" in os.environ:
        from tests.pretend_gpu import device

        device.start(os.environ["PRETEND_GUARD"])
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    command = [sys.executable, "-m", "tests.pretend_gpu.within", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=environment(built()), check=False).returncode)


if __name__ == "__main__":
    main()
