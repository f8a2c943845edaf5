"""The one exit lets out what was charged, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.contracts.stored_documents import ReleasedScore
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from tests.worker.support import mechanism, spec
from worker.messages import Digest, Finished, MetricValue, PartValue, Released
from worker.metrics.scores import Score
from worker.telemetry import Telemetry, state_digest

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
PAID = Score("accuracy", 0.75, 1 / (0.5 * 20), noise_std=1 / 0.5)
DIGEST = "0" * 64


class Collected:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)

    record = send


def telemetry(**changes: Any) -> tuple[Telemetry, list[Any]]:
    sender = Collected()
    charged = MechanismConfig.model_validate(mechanism(spec(), SHAPE))
    settings = {"mechanism": charged, "data_public": False, "holdout_public": False} | changes
    return Telemetry(sender, **settings), sender.messages


def test_a_declared_sum_leaves_after_its_digest() -> None:
    exit_, sent = telemetry()
    exit_.digest(5, DIGEST)
    exit_.noisy_metric(5, PAID)
    assert isinstance(sent[0], Digest) and isinstance(sent[1], MetricValue)
    assert sent[1].model_dump(exclude={"kind"}) == {
        "name": "accuracy",
        "step": 5,
        "value": 0.75,
        "std": 0.1,
        "on": "holdout",
        "released_by": "noisy_count",
        "parts": (),
    }


def test_a_sum_and_its_groups_leave_as_one() -> None:
    """In two messages the first could be on record without the second, and the release be made again, unpaid."""
    charged = mechanism(spec(evaluation={"noise_mu": 0.5, "points": 2, "groups": {"a": [0]}}), SHAPE)
    exit_, sent = telemetry(mechanism=MechanismConfig.model_validate(charged))
    exit_.digest(5, DIGEST)
    exit_.noisy_metric(5, replace(PAID, parts=(Score("accuracy:a", 0.5, 0.2),)))
    (message,) = sent[1:]
    assert message.name == "accuracy" and message.parts == (PartValue(name="accuracy:a", value=0.5, std=0.2),)
    exit_.digest(10, DIGEST)
    with pytest.raises(PrivacyError):
        exit_.noisy_metric(10, replace(PAID, parts=(Score("accuracy:b", 0.5, 0.2),)))


def test_nothing_leaves_before_the_digest_of_its_block() -> None:
    exit_, sent = telemetry(data_public=True, holdout_public=True)
    for _ in range(2):
        with pytest.raises(PrivacyError):
            exit_.noisy_metric(5, PAID)
        with pytest.raises(PrivacyError):
            exit_.public_metric(5, Score("accuracy", 0.5, 0.0), "holdout")
        with pytest.raises(PrivacyError):
            exit_.finished(5, (), ())
        exit_.digest(4, DIGEST)  # of another block
    assert [type(each) for each in sent] == [Digest, Digest]


def test_a_sum_is_released_at_most_as_often_as_declared() -> None:
    exit_, sent = telemetry()
    for step in (5, 10):
        exit_.digest(step, DIGEST)
        exit_.noisy_metric(step, PAID)
        with pytest.raises(PrivacyError):
            exit_.noisy_metric(step, PAID)
    exit_.digest(11, DIGEST)
    assert not exit_.may_release("accuracy", 11)
    with pytest.raises(PrivacyError):
        exit_.noisy_metric(11, PAID)
    assert len([each for each in sent if isinstance(each, MetricValue)]) == 2


def test_releases_of_earlier_attempts_count() -> None:
    exit_, _ = telemetry(released=(Released(name="accuracy", step=5), Released(name="loss", step=1)))
    exit_.digest(5, DIGEST)
    assert exit_.was_released("accuracy", 5) and not exit_.may_release("accuracy", 5)
    with pytest.raises(PrivacyError):
        exit_.noisy_metric(5, PAID)
    exit_.digest(7, DIGEST)
    exit_.noisy_metric(7, PAID)
    assert not exit_.may_release("accuracy", 10)


@pytest.mark.parametrize(
    "score",
    [
        Score("loss", 0.5, 0.1, 2.0),
        Score("training_loss", 0.5, 0.1, 2.0),
        Score("accuracy", 0.5, 0.05, 1.0),
        Score("accuracy", 0.5, 0.0),
    ],
)
def test_what_is_not_declared_or_has_other_noise_does_not_leave(score: Score) -> None:
    exit_, sent = telemetry()
    exit_.digest(5, DIGEST)
    with pytest.raises(PrivacyError):
        exit_.noisy_metric(5, score)
    assert len(sent) == 1


def test_exact_values_leave_of_public_data_only() -> None:
    exact = Score("accuracy", 0.5, 0.0)
    private, _ = telemetry()
    private.digest(5, DIGEST)
    for on in ("train", "holdout"):
        with pytest.raises(PrivacyError):
            private.public_metric(5, exact, on)  # type: ignore[arg-type]
    half, sent = telemetry(holdout_public=True)
    half.digest(5, DIGEST)
    assert half.public_metric(5, exact, "holdout")
    with pytest.raises(PrivacyError):
        half.public_metric(5, Score("training_loss", 0.5, 0.0), "train")
    assert sent[-1].released_by == "public_data"


def test_a_private_job_on_public_data_still_shows_no_training_loss() -> None:
    exit_, _ = telemetry(data_public=True, holdout_public=True)
    exit_.digest(5, DIGEST)
    with pytest.raises(PrivacyError):
        exit_.public_metric(5, Score("training_loss", 0.5, 0.0), "train")


def test_public_jobs_show_their_training_loss_and_no_number_that_is_none() -> None:
    exit_, sent = telemetry(mechanism=None, data_public=True, holdout_public=True)
    exit_.digest(5, DIGEST)
    assert exit_.public_metric(5, Score("training_loss", 0.5, 0.0), "train")
    assert not exit_.public_metric(5, Score("training_loss", float("inf"), 0.0), "train")
    assert len(sent) == 2


def test_private_data_without_a_mechanism_have_no_exit() -> None:
    with pytest.raises(PrivacyError):
        telemetry(mechanism=None)


def test_a_card_s_scores_are_the_last_released_ones_of_any_attempt() -> None:
    early = ReleasedScore(name="accuracy", value=0.5, std=0.1, on="holdout")
    exit_, _sent = telemetry(released=(Released(name="accuracy", step=4, score=early),))
    assert exit_.scores == (early,)
    exit_.digest(5, DIGEST)
    exit_.noisy_metric(5, PAID)
    assert exit_.scores == (ReleasedScore(name="accuracy", value=0.75, std=0.1, on="holdout"),)


def test_a_model_leaves_after_the_digest_of_its_state() -> None:
    exit_, sent = telemetry()
    exit_.digest(5, DIGEST)
    exit_.digest(10, DIGEST)
    with pytest.raises(PrivacyError):
        exit_.finished(5, (), ())
    exit_.restored(5)
    exit_.finished(5, (), ("steps-short",))
    assert isinstance(sent[-1], Finished)


def test_a_digest_tells_states_apart() -> None:
    w = torch.arange(4, dtype=torch.float64)
    base = state_digest(3, {"w": w}, {"w": w})
    others = [
        state_digest(4, {"w": w}, {"w": w}),
        state_digest(3, {"w": w}, {}),
        state_digest(3, {"v": w}, {"w": w}),
        state_digest(3, {"w": w.reshape(2, 2)}, {"w": w}),
        state_digest(3, {"w": w.float()}, {"w": w}),
        state_digest(3, {"w": w * (1 + 2**-52)}, {"w": w}),
        state_digest(3, {}, {"w": w}),
    ]
    assert len({base, *others}) == 8
    assert state_digest(3, {"w": w.clone()}, {"w": w.clone()}) == base
