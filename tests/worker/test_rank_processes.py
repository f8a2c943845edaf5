"""The processes of one attempt: what they say, how they end, and that a lost one costs nothing."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from core.errors import PrivacyError
from core.privacy.numerics import fewer_rows
from tests.by_night import but
from tests.worker.gang import together
from tests.worker.support import Supervisor, dense, forks, run_child, spec, start_of, stored_part
from worker.attempt.child import threads_of
from worker.attempt.failure_codes import TooLargeError
from worker.attempt.prepare import agreed_plan
from worker.attempt.rank_processes import Unheard
from worker.data.placed import CPU
from worker.data.ranks import ALONE, Ranks, RanksError
from worker.messages import BlockStart, Failed, Finished, RankReport, Ready, Start
from worker.telemetry import Telemetry
from worker.training import self_test
from worker.training.plan import Plan

SHAPE = {"records_train": 120, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}


class Watched(Supervisor):
    """Kills a rank with SIGKILL where a block begins with this step; notes the pids of all ranks."""

    kill_at: tuple[int, int] | None = None  # the step, and the rank
    pids: tuple[int, ...] = ()

    def answer(self, message: Any) -> Any:
        if isinstance(message, Ready):
            self.pids = message.processes
        answer = super().answer(message)
        if isinstance(message, BlockStart) and self.kill_at is not None and message.first_step == self.kill_at[0]:
            os.kill(self.pids[self.kill_at[1]], signal.SIGKILL)
            self.kill_at = None
        return answer

    def all_gone(self) -> bool:
        """No rank is left, not even as a zombie: they are the fork server's to reap."""
        deadline = time.monotonic() + 300
        while any(_lives(pid) for pid in self.pids) and time.monotonic() < deadline:
            forks._ended_how(self.pids[0])  # it reaps where it is asked
            time.sleep(0.05)
        return not any(_lives(pid) for pid in self.pids)


def _lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "scrimp" in psutil.Process(pid).name()
    return False


def made_start(processes: int, *, public: bool = False) -> Supervisor:
    job = spec(runtime={"processes": processes, "physical_batch_size": 48}, model={"kind": "mlp", "hidden": [4]})
    return Supervisor(start_of(job, SHAPE, public=public) | {"processes": processes})


def made(folder: Path, processes: int, *, public: bool = True, shard: str = "none", **changes: Any) -> Watched:
    folder.mkdir()
    x, y = dense(140, 5, 3)
    parts = {
        "train": stored_part(folder / "train.npz", x[:120], y[:120]),
        "holdout": stored_part(folder / "holdout.npz", x[120:], y[120:]),
    }
    (folder / "out").mkdir()
    runtime = {"processes": processes, "physical_batch_size": 48, "shard": shard}
    job = spec(runtime=runtime, model={"kind": "mlp", "hidden": [4]}, **changes)
    start = start_of(job, SHAPE, parts=parts, output_dir=folder / "out", public=public)
    return Watched(start | {"processes": processes, "self_tested": not public})


def test_ranks_are_processes_of_one_attempt(tmp_path: Path) -> None:
    """Two ranks: one record, one release, one model; it is that of one process. On public data a report of each."""
    alone, two = made(tmp_path / "one", 1), made(tmp_path / "two", 2)
    whole, shared = run_child(alone), run_child(two)
    assert isinstance(whole.last, Finished) and isinstance(shared.last, Finished)
    assert shared.status == "exit code 0" and len(set(two.pids)) == 2 and len(alone.pids) == 1
    assert shared.last.artifacts[0].sha256 == whole.last.artifacts[0].sha256
    assert (two.digests(), two.metrics, two.started) == (alone.digests(), alone.metrics, alone.started)
    assert whole.last.ranks == ()
    # Ten steps of 304 slots: four passes of the first rank, and three of the second.
    assert [(each.pid, each.passes) for each in shared.last.ranks] == [(two.pids[0], 40), (two.pids[1], 30)]
    assert all(each.max_rss_bytes > 2**26 for each in shared.last.ranks)
    assert two.all_gone()


@pytest.mark.parametrize("rank", but([0, 1], lambda rank: rank == 1))
def test_a_lost_rank_ends_the_attempt_and_fewer_go_on(tmp_path: Path, rank: int) -> None:
    """The threads are the job's: with as many in each rank, the bits are the same whatever machine goes on."""
    straight, killed = made(tmp_path / "straight", 1, public=False), made(tmp_path / "killed", 2, public=False)
    straight.start["threads"] = killed.start["threads"] = 3
    whole = run_child(straight)
    killed.kill_at = (6, rank)
    lost = run_child(killed)
    assert lost.last is None and lost.status == ("SIGKILL" if rank == 0 else "exit code 1"), "it ends without a word"
    assert len(killed.pids) == 2 and killed.all_gone()
    killed.start |= {"processes": 1}
    resumed = run_child(killed)
    assert isinstance(whole.last, Finished) and isinstance(resumed.last, Finished)
    assert resumed.last.artifacts[0].sha256 == whole.last.artifacts[0].sha256 and resumed.last.ranks == ()
    assert killed.metrics == straight.metrics and killed.started == straight.started and killed.resalts == 0
    assert [each.numerics.threads for each in straight.of(Ready) + killed.of(Ready)] == [3, 3, 3]


@pytest.mark.nightly  # by day a lost rank, above; sharded in threads: tests/worker/test_shards.py
def test_a_lost_rank_of_a_sharded_job_leaves_its_numbers_to_the_others(tmp_path: Path) -> None:
    """No state is stored: the next attempt repeats the steps, and each rank makes the state of what it owns then."""
    adam = {"optimizer": {"kind": "dp_adambc", "learning_rate": 0.1}}
    straight, killed = made(tmp_path / "straight", 1, **adam), made(tmp_path / "killed", 3, shard="optimizer", **adam)
    whole = run_child(straight)
    killed.kill_at = (6, 2)
    assert run_child(killed).last is None and len(killed.pids) == 3 and killed.all_gone()
    killed.start |= {"processes": 2}
    resumed = run_child(killed)
    assert isinstance(whole.last, Finished) and isinstance(resumed.last, Finished)
    assert resumed.last.artifacts[0].sha256 == whole.last.artifacts[0].sha256 and len(resumed.last.ranks) == 2
    assert killed.digests() == straight.digests() and killed.metrics == straight.metrics and killed.resalts == 0


@pytest.mark.nightly  # by day: tests/worker/test_ranks.py, in threads
def test_a_job_without_privacy_on_several_processes(tmp_path: Path) -> None:
    """Sums are in float64, added in the order of ranks: the same model up to rounding, and exact scores."""
    free = {"privacy": None, "evaluation": {"points": 2}}
    alone, three = made(tmp_path / "one", 1, **free), made(tmp_path / "three", 3, shard="optimizer", **free)
    for each in (alone, three):
        assert isinstance(run_child(each).last, Finished)
    models = [load_file(Path(each.start["output_dir"]) / "model.safetensors") for each in (alone, three)]
    assert models[0].keys() == models[1].keys()
    for name, value in models[0].items():
        np.testing.assert_allclose(models[1][name], value, rtol=1e-4, atol=1e-6)
    assert three.metrics.keys() == alone.metrics.keys() and len(set(three.pids)) == 3


def test_a_rank_that_computes_other_numbers_ends_the_attempt_before_anything_private_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one whose kernels differ: its passes on random public records have another fingerprint."""
    message = made_start(2).message()
    plans = [agreed_plan(message, CPU, ALONE)[0].numerics]

    def agreed(ranks: Ranks) -> Any:
        return agreed_plan(message, CPU, ranks)[0].numerics

    assert together(2, agreed) == plans * 2
    honest = self_test.fingerprint
    monkeypatch.setattr(self_test, "fingerprint", lambda plan: bytes(32) if plan.ranks.rank == 1 else honest(plan))
    with pytest.raises(self_test.NumericsError, match="different numbers"):
        together(2, agreed)


def fitting(message: Start, most: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """The rows of a pass on which the ranks agree, if each has memory for so many."""
    seen: list[tuple[int, int]] = []

    def holds(plan: Plan) -> bool:
        rows = plan.numerics.rows_per_pass
        seen.append((plan.ranks.rank, rows))
        if rows > most[plan.ranks.rank]:
            raise MemoryError
        return True

    monkeypatch.setattr(self_test, "holds", holds)

    def work(ranks: Ranks) -> tuple[int, int | None]:
        plan, _tested, fitted = agreed_plan(message, CPU, ranks)
        return plan.numerics.rows_per_pass, fitted

    return together(len(most), work)


def test_ranks_that_fit_memory_unequally_take_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    message = made_start(3).message()
    rows = agreed_plan(message, CPU, ALONE)[0].numerics.rows_per_pass
    less = fewer_rows(rows) or 0
    least = fewer_rows(less) or 0
    assert fitting(message, {0: rows, 1: least, 2: less}, monkeypatch) == [(least, least)] * 3
    assert fitting(message, dict.fromkeys(range(3), rows), monkeypatch) == [(rows, None)] * 3


def test_a_rank_without_memory_for_one_record_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    message = made_start(2).message()
    with pytest.raises((TooLargeError, RanksError)):
        fitting(message, {0: 10**6, 1: 0}, monkeypatch)
    begun = message.model_copy(update={"begun": True})
    with pytest.raises((TooLargeError, RanksError)):
        fitting(begun, {0: 10**6, 1: 1}, monkeypatch)


def test_threads_follow_from_what_is_asked_and_not_from_how_many_ranks_are_left() -> None:
    asked = made_start(4).message()
    for left in (1, 2, 4):
        assert threads_of(asked.model_copy(update={"processes": left}), 8) == 2
    assert threads_of(asked, 2) == 1 and threads_of(made_start(1).message(), 8) == 8


def test_threads_are_those_that_the_job_names_and_then_those_of_its_first_attempt() -> None:
    """Whatever the machine has: jobs that name one number repeat each other's bits for every number of ranks."""
    for ranks in (1, 2, 4):
        named = made_start(ranks).message()
        runtime = named.spec.runtime.model_copy(update={"threads": 3})
        named = named.model_copy(update={"spec": named.spec.model_copy(update={"runtime": runtime})})
        assert [threads_of(named, here) for here in (1, 8)] == [3, 3]
        begun = named.model_copy(update={"threads": 5})
        assert [threads_of(begun, here) for here in (1, 8)] == [5, 5]


def test_a_rank_s_passes_and_memory_leave_on_public_data_alone() -> None:
    report = RankReport(pid=1, passes=2, max_rss_bytes=3)
    for public in (True, False):
        start = made_start(2, public=public).message()
        telemetry = Telemetry(Unheard(), start.mechanism, data_public=public, holdout_public=public)
        telemetry.digest(10, "0" * 64)
        with pytest.raises(PrivacyError) if not public else nullcontext():
            telemetry.finished(10, (), (), (report,))


def test_a_failure_of_all_ranks_has_its_own_code(tmp_path: Path) -> None:
    """The stored part is damaged: every rank finds it, and rank 0 says so, whoever is first."""
    damaged = made(tmp_path / "damaged", 2)
    path = Path(damaged.start["parts"]["train"][0]["path"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    ended = run_child(damaged)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged" and not damaged.of(BlockStart)
