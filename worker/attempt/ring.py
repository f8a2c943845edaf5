"""The exchange of ranks on several machines: a ring over one socket pair with whoever carries bytes to the next rank.

What a rank writes to its socket arrives at the next rank, and what it reads was written by the one before
(worker.cluster.links). A rank has no network itself. Sums of W pieces go around twice: each of W shares is added up
rank by rank, and then handed to all. So each rank sends and receives twice the numbers, whatever W is.

The same is exchanged as in worker.attempt.exchange. Sums of int64 have the same bits in any order.
"""

from __future__ import annotations

import select
import socket

import torch
from torch import Tensor

from worker.attempt.exchange import GONE, PIECE_BYTES, Collective, on_host
from worker.data.ranks import RanksError


class RingRanks(Collective):
    """See Ranks.

    Args:
        link: leads to the next rank and comes from the one before; this owns it.
    """

    def __init__(self, rank: int, size: int, link: socket.socket, piece_bytes: int = PIECE_BYTES) -> None:
        self.rank, self.size = rank, size
        self._link, self._piece = link, piece_bytes
        link.setblocking(False)

    def add_up(self, numbers: Tensor) -> None:
        """See Ranks.add_up. The numbers are contiguous."""
        with on_host(numbers) as here:
            for piece in here.view(-1).split(self.size * self._piece // here.element_size()):
                self._add_up_piece(piece)

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        """See Ranks.add_up_at: all ranks have the sums."""
        self.add_up(integers)

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """See Ranks.from_rank. The numbers are contiguous and on the processor."""
        place = (self.rank - rank) % self.size
        nothing = numbers[:0]
        for piece in numbers.view(-1).split(self._piece // numbers.element_size()):
            if place > 0:
                self._turn(nothing, piece)
            if place < self.size - 1:
                self._turn(piece, nothing)

    def close(self) -> None:
        """Closes this rank's link, as its end does."""
        self._link.close()

    def _add_up_piece(self, piece: Tensor) -> None:
        shares = torch.tensor_split(piece, self.size)
        received = torch.empty_like(shares[0])
        for turn in range(self.size - 1):
            total = shares[(self.rank - turn - 1) % self.size]
            self._turn(shares[(self.rank - turn) % self.size], received[: len(total)])
            total.add_(received[: len(total)])
        for turn in range(self.size - 1):
            self._turn(shares[(self.rank - turn + 1) % self.size], shares[(self.rank - turn) % self.size])

    def _gathered(self, piece: Tensor) -> Tensor:
        pieces = piece.new_zeros(self.size, len(piece))
        pieces[self.rank] = piece
        for turn in range(self.size - 1):
            self._turn(pieces[(self.rank - turn) % self.size], pieces[(self.rank - turn - 1) % self.size])
        return pieces

    def _turn(self, sent: Tensor, received: Tensor) -> None:
        """Sends numbers to the next rank, and meanwhile fills others from the one before: neither waits for a reader.

        Raises:
            RanksError: a rank is gone.
        """
        out, into = _bytes_of(sent), _bytes_of(received)
        poll = select.poll()  # it tells of an end that came to whoever only sends; select does not
        try:
            while out or into:
                poll.register(self._link, (select.POLLIN if into else 0) | (select.POLLOUT if out else 0))
                able = poll.poll()[0][1]
                if into and able & ~select.POLLOUT:
                    count = self._link.recv_into(into)
                    if not count:
                        raise RanksError(GONE)
                    into = into[count:]
                if out and able & ~select.POLLIN:
                    out = out[self._link.send(out) :]
        except OSError as error:
            raise RanksError(GONE) from error


def _bytes_of(numbers: Tensor) -> memoryview:
    """The memory of a flat tensor."""
    return numbers.view(torch.uint8).numpy().data
