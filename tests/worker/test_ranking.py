"""HIT and NDCG of next items: ranks over all items, exact on public data, noisy and charged on private data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.contracts.job_spec import Ranking
from core.errors import PrivacyError
from core.privacy.releases import NoisySum
from tests.worker.support import Supervisor, dense, key, plan_of, run_thread, spec, start_of
from tests.worker.support import records as feature_records
from tests.worker.test_next_item import ITEMS, LENGTH, SHAPE, features, model, parameters_of, records, stored
from worker.data.passes import EMPTY, Pass
from worker.data.secret_slots import Slotted
from worker.data.sequence_records import SequenceRecords
from worker.messages import Finished, MetricValue
from worker.metrics.scores import noisy_ranking, public_scores
from worker.models.linear import Linear
from worker.models.next_item import NextItem

KEY = bytes.fromhex(key("release"))
KINDS: list[dict[str, Any]] = [{}, {"loss_positions": "last"}, {"kind": "gru_rec"}]


def ranks_of(m: NextItem, parameters: Any, some: Any, *, leave_out_seen: bool = False) -> Tensor:
    found = [ranks[of.present] for ranks, of in m.ranked(parameters, some, leave_out_seen=leave_out_seen)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *found])


def by_hand(m: NextItem, parameters: Any, some: SequenceRecords, *, leave_out_seen: bool) -> list[float]:
    """One user at a time, by sorting."""
    module, ranks = m.filled(parameters), []
    for at in range(len(some)):
        history = some._items[some._starts[at] : some._ends[at]].tolist()
        if len(history) < 2:
            ranks.append(float("inf"))
            continue
        *before, target = history
        ids = torch.tensor([[item + 1 for item in before[-LENGTH:]]])
        scores = module.output.scores(module(ids))[0, -1, 1:].tolist()
        others = [each for each in range(ITEMS) if each != target and not (leave_out_seen and each in before)]
        ranks.append(1.0 + sum(scores[each] >= scores[target] for each in others))
    return ranks


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("leave_out_seen", [False, True])
def test_ranks_are_over_all_items(settings: dict[str, Any], leave_out_seen: bool) -> None:
    torch.manual_seed(0)
    m, some = model(**settings), records(40)
    parameters = parameters_of(m)
    ranks = ranks_of(m, parameters, some, leave_out_seen=leave_out_seen)
    assert ranks.tolist() == by_hand(m, parameters, some, leave_out_seen=leave_out_seen)
    assert len({*ranks.tolist()}) > 4
    assert ranks_of(m, parameters, some.select(np.array([], dtype=np.int64))).shape == (0,)


@pytest.mark.parametrize("settings", KINDS)
def test_a_rank_does_not_depend_on_who_else_is_scored(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    m, some = model(torch.float32, items=300, dim=32, **settings), records(40)
    parameters = parameters_of(m)
    rows = parameters["embedding.weight"]
    close = parameters | {"embedding.weight": rows[:1] + 1e-6 * torch.randn_like(rows)}
    together = ranks_of(m, close, some)
    alone = [ranks_of(m, close, some.select(np.array([at]))) for at in range(len(some))]
    assert together.tolist() == torch.cat(alone).tolist() and len({*together.tolist()}) > 20


def test_ties_and_what_is_no_number_rank_last() -> None:
    m, some = model(), records(40).select(np.arange(3, 40))
    alike = {name: torch.zeros_like(value) for name, value in parameters_of(m).items()}
    lengths = some._ends - some._starts
    ranks = ranks_of(m, alike, some)
    assert set(ranks[torch.from_numpy(lengths > 1)].tolist()) == {float(ITEMS)}
    broken = {name: value * torch.nan for name, value in alike.items()}
    assert torch.isinf(ranks_of(m, broken, some)).all()


class Ranked:
    """Stands for a model whose ranks are known."""

    classification = False

    def __init__(self, ranks: list[float]) -> None:
        self.known = torch.tensor(ranks, dtype=torch.float64)

    def ranked(self, parameters: Any, records: Any, *, leave_out_seen: bool) -> Iterator[tuple[Tensor, Pass[Any]]]:
        yield self.known, Pass(None, torch.ones(len(self.known), dtype=torch.bool))


def test_hit_and_ndcg() -> None:
    found = public_scores(Ranked([1, 3, 10, 11, float("inf")]), {}, [0] * 5, ranking=Ranking())  # type: ignore[arg-type]
    wanted = {"ndcg@10": (1 + 1 / 2 + 1 / np.log2(11)) / 5, "hit@10": 3 / 5}
    assert {each.name: each.value for each in found} == pytest.approx(wanted)


def release(noise_mu: float = 0.5, k: int = 10) -> NoisySum:
    return NoisySum(what="ranking", account="train", noise_mu=noise_mu, records=100, cutoff=k)


def test_both_scores_come_of_one_release_and_say_their_noise() -> None:
    ranks = [1.0] * 300 + [4.0] * 200 + [50.0] * 500
    runs = [noisy_ranking(release(), KEY, step, 0, Ranked(ranks), {}, [], Ranking()) for step in range(1, 301)]  # type: ignore[arg-type]
    exact = {"ndcg@10": 0.3 + 0.2 / np.log2(5), "hit@10": 0.5}
    for name, value in exact.items():
        scores = [each for run in runs for each in (run, *run.parts) if each.name == name]
        off = np.array([(each.value - value) / each.std for each in scores])
        assert len(off) == 300 and abs(off.mean()) < 0.2 and off.std() == pytest.approx(1.0, abs=0.15)
    assert runs[0].noise_std == 2.0


@pytest.mark.parametrize("removed", range(0, 40, 3))
def test_a_user_weighs_at_most_one(removed: int) -> None:
    """(g, h − g, 1 − h) adds up to 1."""
    torch.manual_seed(0)
    m, some = model(), records(40)
    parameters = parameters_of(m)

    def sums(occupants: np.ndarray) -> np.ndarray:
        ranks = ranks_of(m, parameters, Slotted(some, occupants))
        hits = (ranks <= 5).double()
        gains = hits / torch.log2(ranks + 1)
        return np.array([float(each.sum()) for each in (gains, hits - gains, 1 - hits)])

    everyone = np.arange(40)
    change = sums(everyone) - sums(np.where(everyone == removed, EMPTY, everyone))
    assert np.linalg.norm(change) <= 1.0 + 1e-12 and change.min() >= -1e-12 and change.sum() == pytest.approx(1.0)


def test_a_ranking_that_was_not_declared_is_refused() -> None:
    ranked: Any = Ranked([1.0])
    for declared, ranking in (
        (NoisySum(what="loss", account="holdout", noise_mu=0.5, records=100), Ranking()),
        (release(k=5), Ranking()),
        (release().model_copy(update={"sensitivity": 0.5}), Ranking()),
    ):
        with pytest.raises(PrivacyError):
            noisy_ranking(declared, KEY, 1, 0, ranked, {}, [], ranking)  # type: ignore[arg-type]
    x, y = dense(10, 6, 1)
    linear = Linear(6, 1)
    with pytest.raises(PrivacyError):
        noisy_ranking(release(), KEY, 1, 0, linear, linear.init(), feature_records(x, y), Ranking())


@pytest.mark.parametrize("private", [True, False])
def test_an_attempt_with_last_items_held_out(tmp_path: Path, private: bool) -> None:
    asked = {"kind": "transformer_rec", "dim": 4, "max_length": LENGTH}
    changes: dict[str, Any] = {} if private else {"privacy": None, "seed": 5}
    changes |= {"model": asked, "evaluation": {"noise_mu": 1.0, "points": 2, "ranking": {"k": 3}}}
    parts = {name: stored(tmp_path / name, 40) for name in ("train", "holdout")}
    start = start_of(
        spec(**changes), SHAPE | {"records_holdout": 40}, public=not private, parts=parts, output_dir=tmp_path
    )
    start |= {"task": {"kind": "next_item"}, "features": features(), "holdout_account": "train"}
    if private:
        declared = {"what": "ranking", "account": "train", "cutoff": 3, "sensitivity": 1.0}
        start["mechanism"] |= {"unit": "user", "releases": [start["mechanism"]["releases"][0] | declared]}
    supervisor = Supervisor(start)
    ended = run_thread(supervisor)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    names = {"ndcg@3", "hit@3"} | (set() if private else {"training_loss"})
    assert {name for name, _ in supervisor.metrics} == names
    if private:
        released = [each for each in supervisor.seen if isinstance(each, MetricValue)]
        assert [(each.name, each.released_by, [part.name for part in each.parts]) for each in released] == [
            ("ndcg@3", "noisy_sum", ["hit@3"])
        ] * 2
        again = Supervisor(supervisor.start, segments=supervisor.segments, started=supervisor.started)
        assert run_thread(again).status == 0 and again.resalts == 0
        with pytest.raises(PrivacyError):
            plan_of(start | {"holdout_account": "holdout"})
