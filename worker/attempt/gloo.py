"""The ranks' exchange: torch's `gloo` over the loopback of the attempt's own network.

Only these are exchanged: sums of integers, 32 bytes that all ranks must agree on, the rows of a pass that fit in each
rank's memory, what rank 0 heard from the supervisor, and, where the optimizer's state is sharded, functions of noised
gradients (parameters, divisors, state).
Sums over private records are of int64, so no order and no algorithm of the exchange can change a bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from worker.data.ranks import RanksError

GLOO: Any = dist.ProcessGroupGloo  # torch's stubs leave its options out
LOOPBACK = "127.0.0.1"
# A rank waits as long as another one computes. The supervisor ends a silent attempt, and a rank that dies closes its
# connections, which ends every wait for it.
PATIENCE = timedelta(days=30)
DIGEST_BYTES = 32
PIECE = 2**20  # floats of every rank that are added together


class GlooRanks:
    """See Ranks. The ranks meet in a file, and then talk over TCP on 127.0.0.1.

    Args:
        meeting: a file that all ranks can write, new for each attempt; it holds their ports and nothing else.
        rank: 0 … size − 1.
        size: W.
        patience: how long a rank waits for another one.

    Raises:
        RanksError: the ranks cannot connect.
    """

    def __init__(self, meeting: Path, rank: int, size: int, patience: timedelta = PATIENCE) -> None:
        self.rank, self.size = rank, size
        with _or_gone():
            options = GLOO._Options()
            options._devices = [GLOO.create_device(hostname=LOOPBACK)]
            options._timeout = patience
            self._group: Any = GLOO(FileStore(str(meeting), size), rank, size, options)

    def add_up(self, integers: Tensor) -> None:
        """See Ranks.add_up."""
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        with _on_host(integers) as here, _or_gone():
            self._group.allreduce([here], options).wait()

    def add_up_floats(self, numbers: Tensor) -> None:
        """See Ranks.add_up_floats. The numbers are flat and contiguous."""
        for piece in numbers.split(PIECE):
            with _on_host(piece) as here:
                first, *others = self.gather(here)
                for each in others:
                    first.add_(each)
                here.copy_(first)

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        """See Ranks.add_up_at. The numbers are contiguous and on the processor."""
        options: Any = dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = dist.ReduceOp.SUM, rank, 0
        with _or_gone():
            self._group.reduce([integers], options).wait()

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """See Ranks.from_rank. The numbers are contiguous and on the processor."""
        self._broadcast(numbers, rank)

    def agree(self, what: bytes) -> bool:
        """See Ranks.agree."""
        found = self.gather(torch.frombuffer(bytearray(what), dtype=torch.uint8))
        return all(torch.equal(found[0], each) for each in found)

    def least(self, number: int) -> int:
        """See Ranks.least."""
        return min(int(each) for each in self.gather(torch.tensor([number])))

    def from_first(self, message: bytes = b"") -> bytes:
        """See Ranks.from_first."""
        length = self._broadcast(torch.tensor([len(message)]))
        sent = bytearray(message if self.rank == 0 else int(length))
        return b"" if not sent else bytes(self._broadcast(torch.frombuffer(sent, dtype=torch.uint8)).numpy())

    def gather(self, own: Tensor) -> list[Tensor]:
        """Returns every rank's tensor, in the order of ranks; all have one shape and type."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        with _or_gone():
            self._group.allgather([found], [own]).wait()
        return found

    def _broadcast(self, own: Tensor, root: int = 0) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        with _or_gone():
            self._group.broadcast([own], options).wait()
        return own


@contextmanager
def _on_host(numbers: Tensor) -> Iterator[Tensor]:
    """The numbers in the processor's memory, and back on their device at the end (decision 29)."""
    here = numbers.cpu()  # the same memory on a processor
    yield here
    if here is not numbers:
        numbers.copy_(here)


@contextmanager
def _or_gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo has no error class of its own
        raise RanksError("a rank of this attempt is gone") from error
