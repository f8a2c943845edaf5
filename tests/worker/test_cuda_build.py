"""torch for CUDA on a machine without a GPU: what precedes the first use of a card. `make nightly-cuda` installs it.

There it runs beside the tests of the fork server, of the sandbox and of what NVRTC makes of the kernels.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from app.sandbox.processes import ATTEMPT_ENVIRONMENT
from core.native.nvrtc import CAPABILITY
from tests.worker.support import ROOT, Supervisor, dense, run_child, spec, start_of, stored_part
from tests.worker.test_sandbox import SHAPE, standing_in
from worker.channel import Channel
from worker.messages import TO_SUPERVISOR, Failed, Finished

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is not for CUDA: make nightly-cuda"),
]

# What stands in the place of run_attempt in the fork server: the process has entered the sandbox. These functions of
# the libraries need no GPU.
ASKING = """
import ctypes, json, sys
from importlib.util import find_spec
from pathlib import Path
import worker.attempt.child as child
from worker.attempt import fork_server

FOLDERS = [Path(each) for each in find_spec("nvidia").submodule_search_locations]

def version(name, function):
    (path,) = [path for folder in FOLDERS for path in folder.glob(f"*/lib/{name}.so.*")]
    library = ctypes.CDLL(str(path))
    library[function].restype = ctypes.c_size_t
    return library[function]()

def run_attempt(channel, link, start, *_):
    from worker.native import gpu
    answers = {
        "cuBLAS": version("libcublas", "cublasGetCudartVersion"),
        "cuDNN": version("libcudnn", "cudnnGetVersion"),
        "kernels": {capability: code[:4].decode("latin-1") for capability, code in gpu.CODES.items()},
    }
    (Path(start.output_dir) / "answers.json").write_text(json.dumps(answers))
    raise RuntimeError

child.run_attempt = run_attempt
fork_server.main(int(sys.argv[1]), int(sys.argv[2]))
"""


def test_it_is_imported_with_one_thread() -> None:
    """Or a fork of the fork server could hang in a lock that another thread held. pyarrow's jemalloc has one more,
    and takes its locks before a fork."""
    names = "*(each.read_text() for each in pathlib.Path('/proc/self/task').glob('*/comm'))"
    code = f"import pathlib, worker.attempt.child; print({names})"
    environment = os.environ | ATTEMPT_ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"python", "jemalloc_bg_thd"} and done.stdout.count("python") == 1


def start(folder: Path) -> dict[str, Any]:
    x, y = dense(100, 5, 3)
    parts = {"train": stored_part(folder / "train.npz", x[:80], y[:80])}
    return start_of(spec(evaluation=None), SHAPE, parts=parts, output_dir=folder)


def test_an_attempt_opens_its_libraries_in_the_sandbox(tmp_path: Path) -> None:
    """The kernels were compiled before it was forked, for the GPU that its fork server was told."""
    supervisor, own_end = socket.socketpair()
    with (
        closing(Channel(supervisor, TO_SUPERVISOR)) as channel,
        standing_in(ASKING, {CAPABILITY: "9.0"}) as fork_server,
    ):
        with own_end:
            process = fork_server.start(own_end.fileno())
        try:
            channel.send(Supervisor(start(tmp_path)).message())
            last = channel.receive()
        finally:
            process.kill()
            process.close()
    assert isinstance(last, Failed) and last.code == "internal"
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers.pop("kernels") == {"9.0": "\x7fELF"}
    assert set(answers) == {"cuBLAS", "cuDNN"} and all(version > 0 for version in answers.values())


def test_a_job_for_processors_trains_with_it(tmp_path: Path) -> None:
    ended = run_child(Supervisor(start(tmp_path)))
    assert isinstance(ended.last, Finished), ended
