"""A study's mean between attempts: the first trial hands it on as a file, a later one only centres by it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from tests.worker.support import (
    Ended,
    Supervisor,
    dense,
    keys_of,
    parts_of,
    plan_of,
    run_thread,
    spec,
    start_of,
    stored_part,
)
from tests.worker.test_center import CENTER, FAR, SHAPE, job, start
from worker.attempt.means import read_mean
from worker.attempt.policy import policy_of
from worker.data.records import Records
from worker.messages import Failed, Finished, Part, Start
from worker.training.batches import Batches
from worker.training.plan import Plan, build_plan


def trial(folder: Path, name: str, made: dict[str, Any], **more: Any) -> tuple[Supervisor, Ended]:
    """One attempt of a trial, whose keys are its own."""
    x, y = dense(100, 5, 3)
    (folder / name).mkdir()
    parts = {
        "train": stored_part(folder / name / "train.npz", x[:80] + FAR, y[:80]),
        "holdout": stored_part(folder / name / "holdout.npz", x[80:] + FAR, y[80:]),
    }
    supervisor = Supervisor(made | {"parts": parts_of(parts), "output_dir": str(folder / name)} | more)
    supervisor.segments[0] |= keys_of(name)
    return supervisor, run_thread(supervisor)


def first_of(folder: Path) -> Part:
    """The mean that a study's first trial handed on; nothing else of the trial is kept."""
    _, ended = trial(folder, "first", start(job()), hands_mean_on=True, keeps_weights=False, score_only=True)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    (file,) = ended.last.artifacts
    assert file.name == "mean.safetensors"
    return Part(path=file.path, sha256=file.sha256)


def later(part: Part | None) -> dict[str, Any]:
    made = start_of(job(), SHAPE)  # its mechanism has no mean
    return made | {"mean": part.model_dump() if part else None}


def test_a_later_trial_centres_by_the_first_ones_mean_to_the_bit(tmp_path: Path) -> None:
    part = first_of(tmp_path)
    handed = load_file(part.path)["mean"]
    assert handed.dtype == torch.float64
    exact = torch.from_numpy(dense(100, 5, 3)[0][:80] + FAR).double()
    assert not torch.equal(handed, exact.mean(dim=0)), "it has noise"
    supervisor, ended = trial(tmp_path, "later", later(part))
    assert ended.status == 0 and isinstance(ended.last, Finished)
    weights = load_file(ended.last.artifacts[0].path)
    assert torch.equal(weights["mean"], handed.float()) and supervisor.resalts == 0
    assert Path(part.path) in policy_of(supervisor.message(), 0).files.readable


def test_a_replay_that_differs_in_the_first_block_releases_no_second_mean(tmp_path: Path) -> None:
    """Its own mean would end the job there; the given one was released by another."""
    supervisor, _ = trial(tmp_path, "one", later(first_of(tmp_path)))
    supervisor.segments[0]["recorded"][-1]["digest"] = "0" * 64
    supervisor.hold = 40
    again = run_thread(supervisor)
    assert isinstance(again.last, Finished) and supervisor.resalts == 1


def test_a_job_that_began_anew_has_the_order_of_a_process_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are ordered as they are given, and again when they are centred."""
    supervisor, _ = trial(tmp_path, "one", later(first_of(tmp_path)))
    supervisor.segments[0]["recorded"][0]["digest"] = "0" * 64
    supervisor.hold, orders, use = 40, [], Batches._use

    def watched(self: Batches, train: Records) -> None:
        use(self, train)
        orders.append(self.train.labels.clone())

    monkeypatch.setattr(Batches, "_use", watched)
    assert isinstance(run_thread(supervisor).last, Finished) and supervisor.resalts == 1
    assert isinstance(run_thread(supervisor).last, Finished) and supervisor.resalts == 1
    assert len(orders) == 6 and all(torch.equal(*each) for each in zip(orders[2:4], orders[4:], strict=True))


def given() -> torch.Tensor:
    return torch.zeros(5, dtype=torch.float64)


def planned(made: dict[str, Any], mean: torch.Tensor | None) -> Plan:
    message = Start.model_validate(made | {"segments": [{"from_step": 1, **keys_of("x")}], "allowed_steps": 0})
    return build_plan(message.job, mean=mean)


def test_a_second_release_and_an_uncharged_one_are_refused() -> None:
    (centering,) = planned(later(None), given()).before
    assert not centering.charged
    for made, mean in (
        (start(job()), given()),  # it was charged for one, and is given another
        (later(None), None),  # it was charged for none, and is given none
        (start_of(spec(), SHAPE), given()),  # it asks for none
    ):
        with pytest.raises(PrivacyError):
            planned(made, mean)
    assert [each.charged for each in plan_of(start(job())).before] == [True]
    assert CENTER["noise_mu"] == 0.5


def test_a_damaged_mean_is_not_centred_by(tmp_path: Path) -> None:
    part = first_of(tmp_path)
    assert read_mean(part, 5).shape == (5,)
    narrow = tmp_path / "narrow.safetensors"
    save_file({"mean": torch.zeros(5)}, narrow)
    for wrong, width in (
        (part.model_copy(update={"sha256": "0" * 64}), 5),
        (part.model_copy(update={"path": str(tmp_path / "none")}), 5),
        (part, 6),
        (_part(narrow), 5),
    ):
        with pytest.raises(DataDamagedError):
            read_mean(wrong, width)
    Path(part.path).write_bytes(b"x")
    _, ended = trial(tmp_path, "later", later(part))
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged"


def _part(path: Path) -> Part:
    return Part(path=str(path), sha256=sha256(path.read_bytes()).hexdigest())
