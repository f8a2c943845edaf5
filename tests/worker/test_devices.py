"""A worker finds its devices without touching CUDA itself, and an attempt runs on its device or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from core.contracts.devices import Device, kind_of
from tests.by_night import but
from tests.worker.support import Supervisor, dense, run_child, run_thread, spec, start_of, stored_part
from worker.attempt import device_survey, part_loading, prepare
from worker.attempt.child import visible_to
from worker.attempt.device_survey import DevicesError, chosen, driver_version, found, processor, visible
from worker.attempt.failure_codes import DataTooLargeError, TooLargeError
from worker.attempt.fork_server import ForkServer
from worker.data.ranks import ALONE
from worker.messages import BlockStart, Failed, Finished, Ready
from worker.training import self_test
from worker.training.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
GPUS = tuple(
    Device(kind="cuda", index=index, name="A GPU", memory_bytes=2**34, capability="9.0", driver="550.54", cuda="12.8")
    for index in (0, 1)
)
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
MLP = {"kind": "mlp", "hidden": [8]}
LIMIT_BYTES = 600 * 2**20


@pytest.mark.parametrize(
    ("setting", "gpus", "expected"),
    [
        ("auto", (), ["cpu"]),
        ("auto", GPUS, ["cuda:0", "cuda:1"]),
        ("cpu", GPUS, ["cpu"]),
        ("cuda:1", GPUS, ["cuda:1"]),
        ("cpu,cuda:0", GPUS, ["cpu", "cuda:0"]),
        ("cuda", GPUS, ["cuda:0", "cuda:1"]),
    ],
)
def test_the_setting_chooses_devices(setting: str, gpus: tuple[Device, ...], expected: list[str]) -> None:
    assert [each.label for each in chosen(setting, gpus)] == expected


def test_a_device_that_is_not_there_is_refused_and_nothing_is_used_in_its_place() -> None:
    with pytest.raises(DevicesError, match="this machine has no cuda:2"):
        chosen("cuda:2", GPUS)
    with pytest.raises(DevicesError, match="this machine has no cuda:0: torch can use cpu"):
        chosen("cuda:0", ())
    with pytest.raises(DevicesError, match="this machine has no cuda: torch can use cpu"):
        chosen("cuda", ())
    with pytest.raises(DevicesError, match="twice"):
        chosen("cuda:0,cuda:0", GPUS)


def test_a_process_sees_its_own_gpu_alone() -> None:
    assert visible(GPUS[1], {})["CUDA_VISIBLE_DEVICES"] == "1"
    assert visible(GPUS[1], {"CUDA_VISIBLE_DEVICES": "3, GPU-7a"})["CUDA_VISIBLE_DEVICES"] == "GPU-7a"
    assert visible(processor(), {"CUDA_VISIBLE_DEVICES": "3"})["CUDA_VISIBLE_DEVICES"] == ""


def test_each_rank_on_a_cluster_sees_its_own_gpu_alone() -> None:
    start = Supervisor(start_of(spec(), SHAPE) | {"device": "cuda", "processes": 2, "gpus": ["GPU-7b", "3"]}).message()
    assert [visible_to(start, rank) for rank in (0, 1)] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-7b"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert visible_to(start.model_copy(update={"gpus": ()}), 0) == {}, "the fork server's"
    assert visible_to(start.model_copy(update={"device": "cpu"}), 1) == {"CUDA_VISIBLE_DEVICES": ""}


def test_gpus_are_asked_for_in_a_process_that_ends(tmp_path: Path) -> None:
    said = json.dumps([each.model_dump() for each in GPUS])
    node = tmp_path / "nvidiactl"
    asking = [sys.executable, "-c", f"import os; assert os.environ['CUDA_DEVICE_ORDER']; print({said!r})"]
    assert found(asking, [node]) == (), "no node, no question"
    node.touch()
    assert found(asking, [node]) == GPUS
    for broken in (["false"], [sys.executable, "-c", "print('no')"], ["/there/is/no/such/program"]):
        with pytest.raises(DevicesError, match="cannot be asked for"):
            found(broken, [node])


def test_this_machine_answers() -> None:
    answer = subprocess.run(device_survey.COMMAND, cwd=ROOT, capture_output=True, check=True, text=True)
    assert len(json.loads(answer.stdout)) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert processor().memory_bytes and processor().label == "cpu"


def test_a_driver_has_a_version() -> None:
    open_kernel = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2"
    assert driver_version(open_kernel) == "580.65.06"
    assert driver_version("nothing") is None


def test_the_kind_of_device_is_the_plan_s() -> None:
    assert [kind_of(device, None) for device in ("cpu", "cuda")] == ["cpu", "cuda"]
    assert kind_of("auto", None) == "cpu", "a job of an earlier release has a processor's passes"
    assert [kind_of("auto", ready) for ready in ("cpu", "cuda")] == ["cpu", "cuda"]


# Every way to initialize CUDA, and every question that starts its driver.
TRAPS = """
import sys, torch
def refuse(*arguments, **named):
    raise SystemExit("a process that forks touched CUDA")
for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, refuse)
"""
SUPERVISOR = "import worker.tasks; assert not torch.cuda.is_initialized()"
SERVER = """
import os, socket, threading
from worker.attempt import fork_server
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel, other = socket.socketpair()
def ask():
    socket.send_fds(ours, [b"fork"], [other.fileno()])
    assert socket.recv_fds(ours, 32, 1)[0].startswith(b"forked")
    assert not torch.cuda.is_initialized()
    os.write(1, b"forked without CUDA")
    os._exit(0)  # its fork ends with it
threading.Thread(target=ask).start()
fork_server.main(theirs.fileno(), 2**33)
"""


@pytest.mark.parametrize(
    ("script", "says"), but([(SUPERVISOR, ""), (SERVER, "forked without CUDA")], lambda each: each[0] == SERVER)
)
def test_no_process_that_forks_touches_cuda(script: str, says: str) -> None:
    """The worker's supervisor loads its tasks; the fork server loads the attempt's program and forks one."""
    ran = subprocess.run([sys.executable, "-c", TRAPS + script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "touched CUDA" not in ran.stderr and says in ran.stdout, ran.stderr
    assert ran.returncode == 0, ran.stderr


def supervised(tmp_path: Path, **changes: Any) -> Supervisor:
    x, y = dense(100, 5, 3)
    tmp_path = Path(mkdtemp(dir=tmp_path))
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:], y[80:]),
    }
    start = start_of(spec(model=MLP), SHAPE, parts=parts, output_dir=tmp_path)
    return Supervisor(start | changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_attempt_whose_gpu_is_gone_ends_before_anything_ran(tmp_path: Path) -> None:
    supervisor = supervised(tmp_path, device="cuda")
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "device"
    assert not supervisor.of(Ready) and not supervisor.of(BlockStart)


def small_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Passes of more rows do not fit. Returns the sizes that were tried."""
    tried: list[int] = []
    holds = self_test.holds

    def limited(plan: Plan) -> bool:
        tried.append(plan.numerics.rows_per_pass)
        if plan.numerics.rows_per_pass > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return holds(plan)

    monkeypatch.setattr(self_test, "holds", limited)
    return tried


def test_passes_that_do_not_fit_are_made_smaller_before_the_first_private_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = small_memory(monkeypatch, 48)
    supervisor = supervised(tmp_path)
    assert isinstance(run_thread(supervisor).last, Finished) and tried == [224, 96, 48]
    (ready,) = supervisor.of(Ready)
    assert ready.fitted_rows == ready.numerics.rows_per_pass == 48
    again = supervised(tmp_path, fitted_rows=48, begun=True)
    assert isinstance(run_thread(again).last, Finished) and tried == [224, 96, 48, 48]
    first, second = ([each.digest for each in of.seen if each.kind == "digest"] for of in (supervisor, again))
    assert first == second, "the replay computes in the same passes"


def test_smaller_passes_are_tested_though_the_admitted_ones_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of the admitted passes is known, but they do not fit."""
    tested: list[int] = []

    def rehearsed(plan: Plan) -> None:
        if plan.numerics.rows_per_pass > 48:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def holds(plan: Plan) -> bool:
        tested.append(plan.numerics.rows_per_pass)
        return True

    monkeypatch.setattr(prepare, "rehearse", rehearsed)
    monkeypatch.setattr(self_test, "holds", holds)
    known = Supervisor(start_of(spec(model=MLP), SHAPE) | {"self_tested": True}).message()
    assert prepare.fitting_plan(known, torch.device("meta"), ALONE)[1:] == ("passed", 48) and tested == [48]
    again = known.model_copy(update={"fitted_rows": 48, "begun": True})
    assert prepare.fitting_plan(again, torch.device("meta"), ALONE)[1:] == ("passed", 48) and tested == [48]


def test_a_gpu_never_falls_to_passes_of_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a thousand times as long. A processor makes them; and nothing was charged yet."""
    monkeypatch.setattr(prepare, "rehearse", lambda plan: None)
    monkeypatch.setattr(self_test, "holds", lambda plan: plan.numerics.rows_per_pass == 1)
    message = Supervisor(start_of(spec(model=MLP), SHAPE)).message()
    with pytest.raises(self_test.NumericsError, match="on a GPU"):
        prepare.fitting_plan(message, torch.device("meta"), ALONE)
    assert prepare.fitting_plan(message, torch.device("cpu"), ALONE)[1] == "one_record"


@pytest.mark.parametrize("changes", [{"begun": True}, {"begun": True, "fitted_rows": 48}])
def test_the_size_of_passes_of_an_attempt_that_was_ready_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    small_memory(monkeypatch, 24)
    supervisor = supervised(tmp_path, **changes)
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "model-too-large"
    assert not supervisor.of(Ready)


def test_what_never_fits_ends_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = small_memory(monkeypatch, 0)
    ended = run_thread(supervised(tmp_path))
    assert isinstance(ended.last, Failed) and ended.last.code == "model-too-large"
    assert tried == [224, 96, 48, 24, 12, 6, 3, 1]


def test_memory_that_runs_out_once_records_are_read_has_no_public_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many records there are may be the cause: callers see `internal` (tests/lifecycle/test_failures.py)."""

    def load(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(part_loading, "load_stored", load)
    ended = run_thread(supervised(tmp_path))
    assert isinstance(ended.last, Failed) and ended.last.code == "out-of-memory"


def test_a_gpus_memory_has_no_public_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes may hold it, whose records are private."""

    def full(_: Plan) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(prepare, "rehearse", full)
    message = Supervisor(start_of(spec(model=MLP), SHAPE)).message()
    with pytest.raises(torch.OutOfMemoryError):
        prepare.agreed_plan(message, torch.device("meta"), ALONE)


@pytest.mark.parametrize("policy", ["0", "2"])
def test_memory_that_other_processes_have_has_no_public_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """A machine that promises no more than it has refuses it as others ask for more, whose records are private."""
    (tmp_path / "policy").write_text(f"{policy}\n")
    monkeypatch.setattr(prepare, "OVERCOMMIT", tmp_path / "policy")
    is_strict = policy == "2"
    with nullcontext() if is_strict else pytest.raises(DataTooLargeError):
        prepare._require_room(2**60)

    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(prepare, "fitting_plan", full)
    message = Supervisor(start_of(spec(model=MLP), SHAPE)).message()
    with pytest.raises(MemoryError if is_strict else TooLargeError):
        prepare.agreed_plan(message, torch.device("cpu"), ALONE)


@pytest.mark.parametrize(
    ("declared", "slots", "code"), [(150_000, 158_000, "data-too-large"), (80, 148, None), (80, 158_000, None)]
)
def test_more_declared_records_than_an_attempt_holds_have_a_public_code(
    tmp_path: Path, declared: int, slots: int, code: str | None
) -> None:
    """The kernel refuses the memory, before the part is opened: it is not even there. Empty slots take none."""
    x, y = dense(80, 784, 3)
    parts = {"train": stored_part(tmp_path / "train.npz", x, y)}
    shape: dict[str, Any] = SHAPE | {"records_train": declared, "records_holdout": 0, "features": 784}
    shape |= {"slots": {"train": {"units": slots, "rows": slots}}}
    job = spec(model=MLP, evaluation=None, sampling={"kind": "poisson", "expected_batch_size": 8})
    if code is not None:
        Path(parts["train"]["path"]).unlink()
    supervisor = Supervisor(start_of(job, shape, parts=parts, output_dir=tmp_path))
    limited = ForkServer(LIMIT_BYTES)
    try:
        ended = run_child(supervisor, limited)
    finally:
        limited.close()
    assert getattr(ended.last, "code", None) == code, ended
    assert bool(supervisor.of(Ready)) == (code is None)
