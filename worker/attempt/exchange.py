"""The ranks' exchange: shared memory, and socket pairs with rank 0 on which they wait for each other.

Both are made before the ranks are forked and the sandbox is closed, so ranks need no network. Each number goes through
a piece of memory of fixed size:

    every rank writes its piece; all meet; each adds up its share in the order of ranks; all meet; each reads the sum

Only these are exchanged: sums of integers, 32 bytes that all ranks must agree on, the rows of a pass that fit in each
rank's memory, what rank 0 heard from the supervisor, and, where the optimizer's state is sharded, functions of noised
gradients (parameters, divisors, state). Sums over private records are of int64, so no order can change a bit.
"""

from __future__ import annotations

import mmap
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from worker.data.ranks import RanksError

PIECE_BYTES = 2**20  # stays in a processor's cache
MESSAGE_BYTES = 2**16  # of one from rank 0: the longest are fresh keys
GONE = "a rank of this attempt is gone"


class Exchange:
    """What ranks share. Make it before they are forked; each then takes its end with `ranks`.

    Args:
        size: W.
        piece_bytes: of each rank's piece, a multiple of 8.
    """

    def __init__(self, size: int, piece_bytes: int = PIECE_BYTES) -> None:
        self.size, self.piece_bytes = size, piece_bytes
        # Two generations: a rank writes the next pieces while another still reads these. No memory file can be opened.
        self.memory = mmap.mmap(-1, 2 * (size + 1) * piece_bytes)
        self.pairs = [socket.socketpair() for _ in range(size - 1)]

    def ranks(self, rank: int, *, standalone: bool = True) -> SharedRanks:
        """One rank's end.

        Args:
            standalone: this process is that rank alone: it closes the others' ends, so that each end dies with its
            rank.
        """
        if rank == 0:
            firsts, seconds = [first for first, _ in self.pairs], [second for _, second in self.pairs]
        else:
            firsts = [self.pairs[rank - 1][1]]
            seconds = [each for pair in self.pairs for each in pair if each is not firsts[0]]
        for each in seconds if standalone else ():
            each.close()
        return SharedRanks(self, rank, firsts)

    def close(self) -> None:
        """Closes all ends: no rank has taken its own."""
        for pair in self.pairs:
            for end in pair:
                end.close()


class Collective(ABC):
    """What ranks agree on, by the two ways in which their numbers meet."""

    rank: int
    size: int

    @abstractmethod
    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """See Ranks.from_rank. The numbers are contiguous and on the processor."""

    @abstractmethod
    def _gathered(self, piece: Tensor) -> Tensor:
        """Every rank's piece, in the order of ranks, until the next exchange."""

    def agree(self, content: bytes) -> bool:
        """See Ranks.agree."""
        first, *others_content = self._gathered(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return all(torch.equal(first, each) for each in others_content)

    def least(self, number: int) -> int:
        """See Ranks.least."""
        return int(self._gathered(torch.tensor([number])).min())

    def from_first(self, message: bytes = b"") -> bytes:
        """See Ranks.from_first."""
        numbers = torch.tensor([len(message)])
        self.from_rank(0, numbers)
        length = int(numbers)
        if not 0 <= length <= MESSAGE_BYTES:
            raise RanksError(f"rank 0 announces a message of {length:,} bytes")
        sent = bytearray(message if self.rank == 0 else length)
        if sent:
            self.from_rank(0, torch.frombuffer(sent, dtype=torch.uint8))
        return bytes(sent)


class SharedRanks(Collective):
    """See Ranks. A rank waits as long as another one computes; the supervisor ends a silent attempt.

    Args:
        links: to the other ranks in rank 0, to rank 0 in the others.
    """

    def __init__(self, exchange: Exchange, rank: int, links: list[socket.socket]) -> None:
        self.rank, self.size = rank, exchange.size
        self._links, self._piece = links, exchange.piece_bytes
        memory = torch.frombuffer(exchange.memory, dtype=torch.uint8)
        self._pieces = memory.view(2, self.size + 1, self._piece)  # (generation, rank or sum, byte)
        self._generation = 0

    def add_up(self, numbers: Tensor) -> None:
        """See Ranks.add_up. The numbers are contiguous."""
        with on_host(numbers) as here:
            for piece in here.view(-1).split(self._piece // here.element_size()):
                self._add_up_piece(piece)

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        """See Ranks.add_up_at. The numbers are contiguous and on the processor."""
        for piece in integers.view(-1).split(self._piece // integers.element_size()):
            pieces = self._gathered(piece)
            if rank == self.rank:
                _add(list(pieces), piece)

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """See Ranks.from_rank. The numbers are contiguous and on the processor."""
        for piece in numbers.view(-1).split(self._piece // numbers.element_size()):
            slot = self._slots(piece)[rank]
            if rank == self.rank:
                slot.copy_(piece)
            self._meet()
            if rank != self.rank:
                piece.copy_(slot)

    def close(self) -> None:
        """Closes this rank's links, as its end does: every wait for it ends."""
        for link in self._links:
            link.close()

    def _add_up_piece(self, piece: Tensor) -> None:
        *pieces, total = self._slots(piece)
        pieces[self.rank].copy_(piece)
        self._meet()
        own_slice = slice(len(piece) * self.rank // self.size, len(piece) * (self.rank + 1) // self.size)
        _add([each[own_slice] for each in pieces], total[own_slice])
        self._meet()
        piece.copy_(total)

    def _gathered(self, piece: Tensor) -> Tensor:
        """Every rank's piece, in the order of ranks, until the next exchange."""
        slots = self._slots(piece)
        slots[self.rank].copy_(piece)
        self._meet()
        return slots[: self.size]

    def _slots(self, piece: Tensor) -> Tensor:
        """Shared memory for each rank's piece and for their sum. Whoever still reads the last exchange's is not
        disturbed: nobody begins the next but one before he has joined the next."""
        self._generation = 1 - self._generation
        slots = self._pieces[self._generation].view(piece.dtype)
        return slots[:, : len(piece)]

    def _meet(self) -> None:
        """Returns once all ranks are here."""
        try:
            if self.rank == 0:
                self._hear()
                self._tell()
            else:
                self._tell()
                self._hear()
        except OSError as error:
            raise RanksError(GONE) from error

    def _tell(self) -> None:
        for link in self._links:
            link.sendall(b"x")

    def _hear(self) -> None:
        for link in self._links:
            if not link.recv(1):
                raise RanksError(GONE)


def _add(pieces: Sequence[Tensor], total: Tensor) -> None:
    """Adds in the order of ranks."""
    total.copy_(pieces[0])
    for piece in pieces[1:]:
        total.add_(piece)


@contextmanager
def on_host(numbers: Tensor) -> Iterator[Tensor]:
    """The numbers in the processor's memory, and back on their device at the end (decision 29)."""
    here = numbers.cpu()  # the same memory on a processor
    yield here
    if here is not numbers:
        numbers.copy_(here)
