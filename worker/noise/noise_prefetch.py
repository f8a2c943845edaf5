"""A step's Gaussians on processors, made while the step's gradient is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from worker.data.shards import Span
from worker.native.threads import pool
from worker.noise.generator import CHUNK, GaussianGenerator, checked_size, gaussians

WORD_CHUNK = 4 * CHUNK  # a word takes a tenth of a Gaussian's time


class StepNoise:
    """One step's noise for all its tensors, in chunks that any free thread makes.

    `begin` starts one thread on the chunks. `take` makes the rest with as many threads as torch uses, and waits. Each
    chunk is a function of its address alone, so the numbers do not depend on the threads. `take` makes up to one chunk
    itself, and all words if torch uses one thread and `begin` started none: waking another would take longer. The
    object belongs to one generator, hence to one key, and to one step: it is made after the step has begun, serves no
    other step, and is dropped with it. Memory: the step's noise itself, whose buffers become the noised gradient.

    Args:
        generator: of the segment that the step belongs to.
        step: the logical step.
        spans: the numbers of each tensor, in the model's order; a span's tensor is its stream.
        words: hand out the words themselves: the compiled step makes Gaussians as it adds them.

    Raises:
        PrivacyError: a tensor is larger than the counter's layout allows.
    """

    def __init__(
        self,
        generator: GaussianGenerator,
        step: int,
        spans: Sequence[Span],
        words: bool = False,
    ) -> None:
        self.address = (step, tuple(spans))
        sizes = [span.count for span in spans]
        self._generator, self._words = generator, words
        # One after another, so that an update takes them as one tensor.
        buffer = torch.empty(sum(map(checked_size, sizes)), dtype=torch.int64 if words else torch.float64)
        self._buffers = list(buffer.split(sizes))
        self._chunk = WORD_CHUNK if words else CHUNK
        self._chunks = deque((index, at) for index, size in enumerate(sizes) for at in range(0, size, self._chunk))
        self._helpers: list[Future[None]] = []
        self._is_small = sum(sizes) <= self._chunk

    def begin(self) -> None:
        """Starts another thread, if there is more than one chunk to make."""
        if not self._is_small:
            self._helpers.append(pool(1).submit(self._work))

    def take(self) -> list[Tensor]:
        """The Gaussians, float64 (size,) each; or the words, int64 (size,) each. Call once."""
        threads = torch.get_num_threads()
        if self._is_small or (self._words and threads == 1 and not self._helpers):
            self._work()
        missing = min(threads - len(self._helpers), len(self._chunks))
        self._helpers += [pool(threads).submit(self._work) for _ in range(missing)]
        for helper in self._helpers:
            helper.result()
        if self._helpers:
            torch.set_num_threads(threads)  # new threads start with this number, which a helper thread changed
        return self._buffers

    def drop(self) -> None:
        """Stops the work; the noise is not needed."""
        self._chunks.clear()

    def _work(self) -> None:
        scratch = torch.empty(CHUNK, dtype=torch.int64)
        while True:
            try:
                index, start = self._chunks.popleft()
            except IndexError:
                return
            out = self._buffers[index][start : start + self._chunk]
            step, span = self.address[0], self.address[1][index]
            if self._words:
                self._generator.stream.fill(out.numpy(), step, span.tensor, 0, span.first + start)
                continue
            bits = scratch[: len(out)]
            self._generator.fill_bits(bits, step, span.tensor, span.first + start)
            gaussians(bits, out)
