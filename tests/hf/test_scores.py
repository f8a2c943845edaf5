"""Scores of language models: each record's mean, and tokens by how frequent they are in public data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from core.contracts.hf import rank_groups
from core.contracts.job_spec import Clipping
from core.errors import PrivacyError
from core.privacy.releases import NoisyCount, NoisySum
from tests.hf.test_norms import KEY, model, records, some_parameters, training
from tests.hf.tiny import write
from worker.clipping.build import build_engine
from worker.data.sequence_records import SequenceRecords
from worker.metrics.scores import _private_sums, frequency_groups, noisy_score, public_scores
from worker.models.hf.hf_model import HfTuning


def test_tokens_are_scored_one_by_one_and_in_groups(models_root: Path) -> None:
    m, batch = model(models_root, "gpt2", tuning="lora"), records()
    parameters = some_parameters(m)
    means, losses = m.token_scores(parameters, batch)
    ids, _ = m.predicted(batch)
    lengths = (batch.windows(m.spec.max_length)[1] != 0).sum(dim=1).tolist()
    assert len(ids) == len(losses) == sum(lengths) and 0 in lengths
    parts = losses.split(lengths)
    wanted = torch.stack([each.mean() if len(each) else torch.tensor(0.0) for each in parts])
    assert torch.allclose(means, wanted, rtol=1e-12) and torch.allclose(means, m.forward(parameters, batch)[0])
    groups = frequency_groups(ids, m.vocabulary)
    found = {each.name: each.value for each in public_scores(m, parameters, batch, groups)}
    assert found.pop("loss") == pytest.approx(float(means.mean()))
    counts = np.bincount(ids.numpy(), minlength=m.vocabulary)
    for name, places in groups.items():
        low, high = map(int, name.split("-"))
        assert all(low <= counts[place] <= high for place in places)
        inside = np.isin(ids.numpy(), places)
        assert found.pop(f"loss:{name}") == pytest.approx(float(losses[torch.from_numpy(inside)].mean()))
    assert found == {}, "every token is in one group"


def ranked(vocabulary: int, mu: float, bound: float) -> NoisySum:
    return NoisySum(what="loss", account="holdout", noise_mu=mu, sensitivity=bound, records=6, ranks=vocabulary)


def of_many_tokens(tmp_path: Path) -> tuple[HfTuning, SequenceRecords]:
    """A model of 1,200 tokens, and texts whose tokens are in three groups; one text has no next token."""
    write(tmp_path / "wide", "gpt2", vocab_size=1200)
    generator = np.random.default_rng(0)
    ends = np.cumsum([1, 2, 9, 4, 7, 12])
    tokens = (1200 ** generator.random(ends[-1])).astype(np.int32)
    return model(tmp_path, "wide", tuning="lora"), SequenceRecords(tokens, np.append(0, ends)[:-1], ends)


def test_a_record_s_tokens_share_its_weight(tmp_path: Path) -> None:
    """What a record adds to all sums is at least 0 and adds up to the bound, whatever its losses are."""
    m, batch = of_many_tokens(tmp_path)
    for scale, bound in ((0.0, 3.0), (1.0, 6.0), (30.0, 6.0), (torch.nan, 6.0)):
        parameters = {name: value * scale for name, value in some_parameters(m).items()}
        release = ranked(1200, 1.0, bound)
        whole = np.array(_private_sums(release, m, parameters, batch))
        assert whole.shape == (8,) and whole.sum() == pytest.approx(6 * bound)
        for at in range(6):
            rest = _private_sums(release, m, parameters, batch.select(np.array([i for i in range(6) if i != at])))
            own = whole - np.array(rest)
            assert (own >= -1e-12).all() and own.sum() == pytest.approx(bound)
            assert np.linalg.norm(own) <= bound * (1 + 1e-12)
            assert at != 0 or own.tolist() == pytest.approx([0.0] * 7 + [bound]), "it has no tokens, and no loss"


def test_noisy_losses_of_tokens_by_rank(tmp_path: Path) -> None:
    m, batch = of_many_tokens(tmp_path)
    parameters, bound = some_parameters(m), 100.0
    release = ranked(1200, 1e9, bound)
    score = noisy_score(release, KEY, 3, 0, m, parameters, batch)
    assert score.value == pytest.approx(float(m.token_scores(parameters, batch)[0].mean()), rel=1e-6)
    assert (
        {each.name for each in score.parts}
        == release.parts
        == {
            "loss:rank-0-255",
            "loss:rank-256-1023",
            "loss:rank-1024-1199",
        }
    )
    (_, losses), (ids, lengths) = m.token_scores(parameters, batch), m.predicted(batch)
    weights = np.repeat(1.0 / np.maximum(lengths.numpy(), 1), lengths.numpy())
    for part in score.parts:
        low, high = map(int, part.name.removeprefix("loss:rank-").split("-"))
        inside = ((ids >= low) & (ids <= high)).numpy()
        assert part.value == pytest.approx(np.average(losses.numpy()[inside], weights=weights[inside]), rel=1e-6)
    again, other = (noisy_score(ranked(1200, 0.5, 6.0), KEY, step, 0, m, parameters, batch).parts for step in (3, 4))
    assert again != other and all(each.std > 0 for each in again)
    with pytest.raises(PrivacyError):
        noisy_score(ranked(1199, 1.0, 6.0), KEY, 3, 0, m, parameters, batch)
    with pytest.raises(ValueError, match="losses"):
        NoisyCount(account="holdout", noise_mu=1.0, records=6, ranks=1200)


def test_groups_of_ranks_hold_every_token_once() -> None:
    for vocabulary in (1, 255, 256, 257, 1024, 1025, 50_257, 2**31 - 1):
        ranges = list(rank_groups(vocabulary).values())
        assert ranges[0].start == 0 and ranges[-1].stop == vocabulary and all(len(each) > 0 for each in ranges)
        assert all(one.stop == two.start for one, two in itertools.pairwise(ranges))


def test_checkpointed_passes_keep_no_layer_s_input(models_root: Path) -> None:
    """Until the backward pass the books hold what stands outside of blocks, and nothing that is inside."""

    def held(*, checkpointing: bool) -> set[tuple[int, ...]]:
        m = replace(model(models_root, "gpt2", tuning="full", gradient_checkpointing=checkpointing), rows_per_pass=3)
        engine = build_engine(m, Clipping(), training(1.0))
        found: set[tuple[int, ...]] = set()

        def pack(value: torch.Tensor) -> torch.Tensor:
            found.add(tuple(value.shape))
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            engine.private_sum(some_parameters(m), records(3))
        return found

    of_last_layer = (3, 8, 4 * 8)  # what a block's last layer is given
    assert of_last_layer in held(checkpointing=False) and of_last_layer not in held(checkpointing=True)
