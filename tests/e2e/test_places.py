"""The attack that told by a released loss that one user of 1,000 was there: it finds nothing.

Noise of σ = 50 at a large rate makes a deep network chaotic: a last bit decides a record's loss. torch computes the
last numbers of a tensor by other code, so a record's loss depends on its row. Histories repeat every eight users. One
user more, at the front, moved all of them by one row: the sum of losses moved by many times its charge. The analyst,
who knows all others and the released weights, computed both sums. Now rows are secret and random: neither fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load

from core.contracts.job_spec import GruRecModel
from core.privacy.releases import SCORE
from tests.bound.worst import sums_of
from tests.e2e.conftest import Service
from tests.e2e.test_ranks import events
from tests.e2e.test_spine import finished, submit
from worker.data.passes import EMPTY
from worker.data.secret_slots import Slotted
from worker.data.sequence_records import SequenceRecords
from worker.models.next_item import NextItem

USERS, ITEMS, LENGTH, P = 1000, 50, 30, 8
BOUND, MU = 45.0, 0.2
GAIN = 14.0  # of the weights that the noise makes: the most chaotic of 10, 14, 18 and 24
MODEL = {"kind": "gru_rec", "dim": 57, "layers": 8, "max_length": LENGTH, "loss_positions": "last"}
RATE = GAIN / math.sqrt(57) / (50.0 / USERS)


def histories() -> NDArray[np.int64]:
    """Of x, and eight that repeat among the others: (9, LENGTH + 1), items from 0."""
    return np.random.default_rng(7).integers(0, ITEMS, (P + 1, LENGTH + 1))


def of_user(number: int) -> int:
    """The history of a user; x is the first one."""
    return 0 if number == 0 else 1 + (number - 1) % P


def write(path: Path, users: range) -> Path:
    rows = [
        f"{user}\t{item + 1}\t{step}" for user in users for step, item in enumerate(histories()[of_user(user)].tolist())
    ]
    path.write_text("user_id:token\titem_id:token\ttimestamp:float\n" + "\n".join(rows) + "\n")
    return path


def dataset(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "format": "interactions",
        "task": {"kind": "next_item"},
        "features": {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": ITEMS}},
        "privacy": {
            "sensitivity": "private",
            "unit": "user",
            "records": USERS,
            "cap": {"epsilon": 20.0, "delta": 1e-5},
            "filter": "gdp",
        },
    }


def job(name: str) -> dict[str, Any]:
    return {
        "dataset": name,
        "model": MODEL,
        "optimizer": {"kind": "dp_sgd", "learning_rate": RATE, "free_step": True},
        "privacy": {"noise_multiplier": 50.0},
        "length": {"steps": 1},
        "runtime": {"physical_batch_size": P},
        "evaluation": {"on": "train", "noise_mu": MU, "metrics": ["loss"], "loss_bound": BOUND},
    }


@dataclass(frozen=True)
class Analyst:
    """What the analyst computes from the released weights."""

    model: NextItem
    parameters: dict[str, torch.Tensor]

    def records(self, numbers: NDArray[np.int64]) -> SequenceRecords:
        items = histories()[numbers].astype(np.int32)
        starts = np.arange(len(numbers)) * (LENGTH + 1)
        return SequenceRecords(items.flatten(), starts, starts + LENGTH + 1)

    def losses(self) -> NDArray[np.float64]:
        """Each history's clipped loss in each row of a pass: (9, P)."""
        losses = np.zeros((P + 1, P))
        for history in range(P + 1):
            batch = Slotted(self.records(np.full(P, history)), np.arange(P))
            ((outputs, each),) = self.model.evaluated(self.parameters, batch)  # type: ignore[arg-type]
            losses[history] = self.model.errors(outputs, each.records.labels).clamp(0.0, BOUND).numpy()
        return losses


@dataclass(frozen=True)
class Prediction:
    """The score by one hypothesis, in parts of the bound.

    Attributes:
        mean, std: over random rows, without the noise.
        packed: the sum where users lie in rows in their order, as they did.
    """

    mean: float
    std: float
    packed: float

    @classmethod
    def of(cls, losses: NDArray[np.float64], users: range) -> Prediction:
        shares = losses[[of_user(user) for user in users]] / BOUND
        packed = float(sum(row[at % P] for at, row in enumerate(shares)))
        return cls(float(shares.mean()), math.sqrt(float(shares.var(axis=1).sum())) / len(shares), packed)


HYPOTHESES = {"with x": range(USERS), "without x": range(1, USERS)}


def analyst_of(service: Service, job_id: str) -> Analyst:
    with service.client() as client:
        artifact = client._http.get(f"/v1/jobs/{job_id}/artifacts/model.safetensors").content
    parameters = {name: value.double() for name, value in load(artifact).items()}
    return Analyst(NextItem(ITEMS, GruRecModel.model_validate(MODEL), dtype=torch.float32, rows_per_pass=P), parameters)


def require_one_row_of_change(analyst: Analyst) -> None:
    """Under these weights x's row, emptied, changes the score's two sums by at most their sensitivity."""
    score = {"account": "train", "noise_mu": MU, "records": USERS, "what": "loss", "sensitivity": BOUND}
    release = SCORE.validate_python(score)
    users = np.array([of_user(user) for user in range(200)])
    occupants = np.full(256, EMPTY)
    occupants[np.random.default_rng(1).permutation(256)[:200]] = np.arange(200)
    joined, alone = (
        sums_of(release, analyst.model, analyst.parameters, Slotted(analyst.records(users), each))  # type: ignore[arg-type]
        for each in (occupants, np.where(occupants == 0, EMPTY, occupants))
    )
    assert 0.0 < float((joined - alone).norm()) <= BOUND


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_released_loss_tells_no_user_s_presence(service: Service, tmp_path: Path) -> None:
    """Each score is near its mean over random rows, and all together do not follow what the users' order would give.

    Claim: one user changes a released `loss` on the training part by at most its charge, over REST
    Now: a row of its own: no job fits one of both data sets better
    """
    with service.client() as client:
        names = {
            name: client.create_dataset(
                dataset(f"places {name}".replace(" ", "-")), write(tmp_path / f"{name}.inter", users)
            ).id
            for name, users in HYPOTHESES.items()
        }
    jobs = [(name, submit(service, job(names[name]))) for name in 3 * [*HYPOTHESES]]
    ended = [(name, finished(service, job_id), job_id) for name, job_id in jobs]
    reports, spread = [], 0.0
    found_off, packed_off = list[float](), list[float]()
    for name, found, job_id in ended:
        assert found["status"] == "succeeded", found["failure"]
        (numerics,) = (each["numerics"] for each in events(service, job_id, "ready"))
        reports.append(numerics)
        torch.set_num_threads(numerics["threads"])
        analyst = analyst_of(service, job_id)
        losses, score = analyst.losses(), found["metrics"]["loss"]
        spread = max(spread, float(np.ptp(losses, axis=1).max()))
        for hypothesis, users in HYPOTHESES.items():
            each = Prediction.of(losses, users)
            std = math.hypot(score["std"] / BOUND, each.std)
            off, packed = ((value - each.mean) / std for value in (score["value"] / BOUND, each.packed / len(users)))
            print(f"{name}: {off:+.2f} deviations from the mean {hypothesis}; in their order {packed:+.2f}")
            assert abs(off) < 5.0
            if hypothesis == name:
                found_off.append(off)
                packed_off.append(packed)
        require_one_row_of_change(analyst)
    assert all(each == reports[0] for each in reports) and reports[0]["physical_batch_size"] == P
    signal = float(np.linalg.norm(packed_off))
    fit = float(np.dot(found_off, packed_off)) / signal
    print(f"the order of users explains {fit:+.2f} deviations of all jobs together; it would explain {signal:.1f}")
    assert abs(fit) < 5.0
    assert spread > 0.05 * BOUND, "a record's loss depends on its row: else there was nothing to attack"
