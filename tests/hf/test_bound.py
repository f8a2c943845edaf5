"""The stated bound for models of transformers, in every tuning, with the trained weights at a gain of 30."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bound.worst import MOST, C, Case, drawn, largest_change, worst_score, worst_sum
from tests.hf.test_norms import LENGTH, model
from worker.clipping.totals import Grid
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.noise.directions import Directions

TRIED = [
    ("gpt2", "full"),
    ("gpt2", "lora"),
    ("roberta", "head"),
    ("bert", "bias"),
    ("llama", "last_block"),
    ("llama-tied", "full"),
]
NUMBERS = (1, 2, 4)
LEAST = 0.01  # LoRA's gradients are small where attention is saturated


def case_of(root: Path, path: str, tuning: str, dtype: torch.dtype = torch.float32) -> Case:
    return Case(model(root, path, dtype, tuning=tuning), 2 * LENGTH, numbers=NUMBERS)


@pytest.mark.parametrize(("path", "tuning"), TRIED)
def test_one_text_changes_a_clipped_sum_by_at_most_c(models_root: Path, path: str, tuning: str) -> None:
    """All kinds and tunings: `python -m tests.bound.nightly`.

    Claim: the same for every tuning of language models
    Now: at most 1 + slack
    """
    case = case_of(models_root, path, tuning)
    assert LEAST < worst_sum(case) <= case.slack


@pytest.mark.parametrize(("path", "tuning"), [("gpt2", "lora"), ("roberta", "head"), ("llama", "full")])
def test_one_text_changes_a_sum_of_slopes_by_at_most_c(models_root: Path, path: str, tuning: str) -> None:
    """DP-ZO moves the trained numbers alone: a LoRA's base stays as it is."""
    case = case_of(models_root, path, tuning)
    parameters, everyone = drawn(case)
    engine = ZerothOrder(case.model, Slope(1e-3, "flat", C), Directions(3), Grid(MOST + 1, case.model.rows_per_pass))
    assert LEAST < largest_change(case, engine, parameters, everyone) <= 1.0 + 1e-9


def test_in_bfloat16(models_root: Path) -> None:
    case = case_of(models_root, "gpt2", "lora", torch.bfloat16)
    assert LEAST < worst_sum(case, (1, 3)) <= case.slack


@pytest.mark.parametrize("path", ["gpt2", "roberta"])
def test_one_text_changes_a_score_s_sums_by_at_most_their_sensitivity(models_root: Path, path: str) -> None:
    assert worst_score(case_of(models_root, path, "lora"), "loss", (2, 3)) <= 1 + 1e-12
