"""Measures encoders one record at a time against passes of one shape, and whether a row of such a pass is its own.

    python -m benchmarks.extractor_batches

Prints the table of reports/extractor_batches.md. Weights are random; times are processor time of one thread, the least
of three. "Own" is True if each row has the same bits at another place, among other rows, and alone with rows of zeros;
"as alone" if it has those of a pass of one row too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from app.sandbox.processes import ATTEMPT_ENVIRONMENT

os.environ.update(ATTEMPT_ENVIRONMENT)

import torch
from torch import Tensor

from worker.extractors.efficientnet import Encoder

ROWS, SIDES, TOKENS = (4, 8, 16), (64, 112, 160), (16, 64)
HEAD = "| encoder | rows | ms a record, alone | ms a record, in a pass | faster | own | as alone |"
Pass = Callable[[Tensor], Tensor]


def milliseconds(run: Callable[[], object]) -> float:
    """The least processor time of three runs, after one."""
    found = []
    for _ in range(4):
        began = time.process_time()
        run()
        found.append(1e3 * (time.process_time() - began))
    return min(found[1:])


def is_own(run: Pass, x: Tensor) -> bool:
    """True if no row depends on its place or on the other rows."""
    whole, order = run(x), torch.randperm(len(x))
    alone = torch.cat((x[:1], torch.zeros_like(x[1:])))
    moved = torch.equal(run(x[order].contiguous()), whole[order])
    return moved and torch.equal(run(alone)[0], whole[0])


def row(name: str, run: Pass, x: Tensor, rows: int) -> str:
    """One line of the table."""
    x, one = x[:rows].contiguous(), x[:1].contiguous()
    alone, together = milliseconds(lambda: run(one)), milliseconds(lambda: run(x)) / rows
    same = torch.equal(run(one)[0], run(x)[0])
    return f"| {name} | {rows} | {alone:.1f} | {together:.1f} | {alone / together:.1f} × | {is_own(run, x)} | {same} |"


@torch.no_grad()
def main() -> None:
    """Measures all of them."""
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(HEAD + "\n" + "|---" * 7 + "|")
    images = Encoder().eval()
    for side in SIDES:
        x = torch.rand(max(ROWS), 3, side, side)
        for rows in ROWS:
            print(row(f"EfficientNet-Lite0, {side} pixels", images, x, rows), flush=True)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    texts = BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
    for tokens in TOKENS:
        ids = torch.randint(1, 30_000, (max(ROWS), tokens))
        for rows in ROWS:
            name = f"MiniLM's size, {tokens} tokens each"
            print(row(name, lambda x: texts(input_ids=x).last_hidden_state, ids, rows), flush=True)


if __name__ == "__main__":
    main()
