"""What changes a job's speed and memory, and never its mechanism."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from core.contracts.base import Document

MOST_PROCESSES = 8  # of one attempt
MOST_THREADS = 64  # that a job may name for each of them
Fp32Precision = Literal["ieee", "tf32"]  # torch's names


class Runtime(Document):
    """Settings that change speed and memory, never the mechanism.

    `device`: `cuda` waits for a worker with a GPU, `cpu` runs on any worker's processors. `auto` is settled at
    admission, and the quote says why: `cuda` if a worker that lives then has as many GPUs as the job asks for
    processes, busy or not; else `cpu`. A job stays on its kind of device.

    `processes` (ranks) share each step. With `cuda` each has a GPU of its own, on a cluster that has so many. `auto`:
    every GPU that the cluster has free at the claim, at most 8, and one process elsewhere. `threads` of each: `auto`
    divides the processors of the machine where the job first becomes ready. At one number of threads the model is the
    same to the bit for every number of processes.

    `shard`: `optimizer` divides the optimizer's state among the processes, on processors, to the same bits: W processes
    with Adam need 16 + 24/W bytes a number trained instead of 40.
    """

    # auto: settled when the job is admitted, by what living workers have; the quote says which and why.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # The most records of a pass; rounded up to whole units of rows, and bounded by the automatic size. Memory only.
    physical_batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    # The precision of forward and backward passes. auto: float32, but float64 for ratings and for linear models of
    # hashed text. Norms and noise are in float64, and so are sums; only linear models of dense features and networks of
    # linear layers sum in float32, by groups whose rounding is paid for. bfloat16: Hugging Face models alone.
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    # How a GPU multiplies float32 in a network's forward and backward passes. tf32 rounds the factors to 11 binary
    # digits: faster on cards that have it, at the same privacy. Norms, sums and scores are by IEEE in either case.
    fp32_precision: Fp32Precision = "ieee"
    # The processes (ranks) that share each step of the job: each with a GPU of its own, on a cluster that has so many,
    # or on processors. auto: as many as GPUs are free on the cluster when the job is claimed, and one elsewhere. At one
    # number of threads each, the model is the same to the bit for every number of them; without privacy, up to
    # rounding.
    processes: Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MOST_PROCESSES)] = 1
    # The processor threads of each rank. auto: the machine's processors divided by the ranks that the job asks for, as
    # its first ready attempt finds them. The number is stored then, and every later attempt has it, on any machine.
    # Jobs that name the same number have the same bits for every number of ranks.
    threads: Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MOST_THREADS)] = "auto"
    # What the ranks divide among themselves besides passes. optimizer: each keeps the optimizer's state, adds the noise
    # and makes the update of its own share of the parameters alone, so it needs less memory. The model is the same.
    shard: Literal["none", "optimizer"] = "none"
    # How long the job may run, without waiting; in a study, each trial. After that it fails, and its whole hold is
    # spent.
    max_duration_s: Annotated[float, Field(gt=0.0, le=1e8)] | None = None

    @property
    def ranks(self) -> int:
        """The number of processes that the job asks for."""
        return 1 if self.processes == "auto" else self.processes

    @property
    def on_processors(self) -> bool:
        """True if it can run on processors alone."""
        return self.device == "cpu" or self.shard != "none"


class StoredRuntime(Document):
    """What is read from a stored specification, and nothing else, where it is asked of many jobs."""

    model_config = ConfigDict(extra="ignore")

    runtime: Runtime = Runtime()

    @classmethod
    def of(cls, column: object) -> Self:
        """Reads a job's column.

        Raises:
            ValidationError: it is no specification.
        """
        return cls.model_validate(column)
