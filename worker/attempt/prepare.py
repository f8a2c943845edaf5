"""Before anything private: the device, the plan, and its self-test in every rank."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from core.contracts.job_spec import LinearModel
from core.privacy.numerics import NumericsReport, SelfTest, fewer_rows
from worker.attempt import code_release, device_survey
from worker.attempt.failure_codes import DataTooLargeError, DeviceFailed, TooLargeError, failure_code
from worker.attempt.means import read_mean
from worker.data.ranks import Ranks
from worker.messages import Start
from worker.native.kernels import kernels
from worker.training import self_test
from worker.training.plan import Plan, build_plan
from worker.training.rehearsal import rehearse

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
PROCESSOR = device_survey.processor().name  # read before the process enters the sandbox


def device_of_start(start: Start) -> torch.device:
    """The device that the attempt must run on.

    Raises:
        DeviceFailed: it is a GPU that torch cannot use here.
    """
    if start.device == "cuda" and not torch.cuda.is_available():
        raise DeviceFailed
    return torch.device("cpu") if start.device == "cpu" else torch.device("cuda", 0)  # the only one that it sees


def agreed_plan(start: Start, device: torch.device, ranks: Ranks) -> tuple[Plan, SelfTest, int | None]:
    """See `fitting_plan`. Every rank tests its own passes, and all must find the same.

    Raises:
        NumericsError: a rank found something else, before anything private ran.
        TooLargeError: a processor's memory does not suffice. What is computed is public, and so is the process's limit;
            a GPU's memory may be short for what else runs there, and so may a machine's that promises no more than it
            has.
        DataTooLargeError: it does not suffice for as many records as are declared.
    """
    try:
        fitting = fitting_plan(start, device, ranks)
    except (MemoryError, RuntimeError) as error:
        if device.type == "cpu" and failure_code(error) == "out-of-memory" and _limit_decides():
            raise TooLargeError from None
        raise
    plan, tested, fitted = fitting
    _require_room(plan.loaded_bytes)
    if ranks.size > 1:
        digest = hashlib.sha256(f"{tested}/{fitted}/".encode() + self_test.fingerprint(plan)).digest()
        if not ranks.agree(digest):
            raise self_test.NumericsError("the ranks of this attempt compute different numbers")
    return fitting


def _require_room(loaded_bytes: int) -> None:
    """Asks for the memory that as many records take as are declared, and gives it back untouched. Where a cgroup counts
    pages it is granted, and the kernel ends the process later. Where other processes decide, no answer counts.

    Raises:
        DataTooLargeError: the process's limit does not allow it.
    """
    try:
        np.empty(loaded_bytes, dtype=np.uint8)
    except MemoryError:
        if _limit_decides():
            raise DataTooLargeError from None


def _limit_decides() -> bool:
    """False where the kernel counts what all processes were promised (vm.overcommit_memory = 2): then memory that is
    refused tells of others, whose sizes may be private."""
    try:
        return OVERCOMMIT.read_text().strip() != "2"
    except OSError:
        return False


def fitting_plan(start: Start, device: torch.device, ranks: Ranks) -> tuple[Plan, SelfTest, int | None]:
    """The plan, its self-test, and the rows of a pass if fewer fit in memory than were admitted.

    Everything here computes on random public records. Only a job's first ready attempt may choose smaller passes: a
    later one must repeat its numbers. Ranks that fit memory unequally take the fewest rows.

    Raises:
        NumericsError: see `_tested_plan`.
        MemoryError, RuntimeError: even passes of one record do not fit, or the size of passes is fixed.
    """
    fitted = start.fitted_rows
    mean = None if start.mean is None else read_mean(start.mean, _inputs(start))
    build = partial(build_plan, start.job, device=device, mean=mean, ranks=ranks)
    while True:
        plan = build(rows=fitted)
        rows = able = plan.numerics.rows_per_pass
        failed: MemoryError | RuntimeError = MemoryError("another rank has no memory for passes of one record")
        tested: SelfTest = "passed"
        try:
            if device.type != "cpu":
                rehearse(plan)
            is_tested = start.self_tested and fitted == start.fitted_rows
            plan, tested = _tested_plan(plan, partial(build, rows=1), is_tested=is_tested)
        except (MemoryError, RuntimeError) as error:
            able = fewer_rows(rows) or 0
            if start.begun or failure_code(error) != "out-of-memory":
                raise
            failed = error.with_traceback(None)  # its frames hold buffers
        fewest = ranks.least(able)
        if fewest == rows:
            return plan, tested, fitted
        if not fewest:
            raise failed
        fitted = fewest
        del plan  # with its buffers
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _tested_plan(plan: Plan, of_one_record: Callable[[], Plan], *, is_tested: bool) -> tuple[Plan, SelfTest]:
    """The plan, with passes that keep each record's results independent on this machine.

    Args:
        of_one_record: builds the same plan with passes of one record.
        is_tested: the self-test of this very plan passed before, on this machine.

    Raises:
        NumericsError: no passes achieve this; or only those of one record, on a GPU, where they are far too slow.
        PrivacyError: the engine's gradients are wrong for this model.
    """
    if plan.public:
        return plan, "public_data"
    if is_tested:
        return plan, "passed"
    self_test.require_exact(plan)
    if self_test.holds(plan):
        return plan, "passed"
    if plan.device.type != "cpu" and plan.numerics.rows_per_pass > 1:
        raise self_test.NumericsError("a record's results depend on other records of its pass, on a GPU")
    plan = of_one_record()
    if self_test.holds(plan):
        return plan, "one_record"
    raise self_test.NumericsError("a record's results depend on other records")


def report_of(plan: Plan, tested: SelfTest, device: torch.device) -> NumericsReport:
    frozen = plan.numerics
    return NumericsReport(
        device=device.type,
        device_name=PROCESSOR if device.type == "cpu" else torch.cuda.get_device_name(device),
        passes=frozen.passes,
        fp32_precision=frozen.fp32_precision,
        sums=frozen.sums,
        totals=frozen.totals,
        rows_per_pass=frozen.rows_per_pass,
        rows_per_step=frozen.rows_per_step,
        physical_batch_size=frozen.rows_per_pass,
        threads=torch.get_num_threads(),
        torch=torch.__version__.partition("+")[0],
        self_test=tested,
        sensitivity_slack=frozen.sensitivity_slack,
        kernels=kernels(),
        packages=code_release.packages(),
        code=code_release.code(*code_release.OWN),
    )


def _inputs(start: Start) -> int:
    model, features = start.spec.model, start.shape.features
    return model.inputs(features) if isinstance(model, LinearModel) else features
