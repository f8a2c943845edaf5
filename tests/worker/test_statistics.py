"""Statistics before the first step: each release has one class, and each statistic noise of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import pytest
import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.releases import BEFORE, NoisyMean
from scrimp.recompute import expected_tree
from tests.worker.support import Supervisor, dense, key, records, training_of
from tests.worker.test_center import FAR, job, start
from worker.data.passes import Batch
from worker.data.records import clipped_sum
from worker.statistics import build
from worker.statistics.base import Job, Noise, Released, Statistic
from worker.statistics.center import centered


class NoisyMaximum(NoisyMean):
    """A release that nobody makes."""

    what: Literal["maximum"] = "maximum"  # type: ignore[assignment]


def test_a_release_that_no_file_makes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(each.kind for each in build.STATISTICS) == BEFORE
    monkeypatch.setattr(build, "BEFORE", (*BEFORE, NoisyMaximum))
    with pytest.raises(PrivacyError, match=r"worker\.statistics must have one class for NoisyMaximum; it has 0"):
        build._in_this_folder()


@dataclass(frozen=True)
class Sum(Statistic):
    """The features' sum under its name, with noise; centres what comes after it."""

    kind: ClassVar[type[NoisyMean]] = NoisyMean
    name: str
    declared: NoisyMean

    @classmethod
    def of(cls, job: Job) -> Self | None:
        return None

    def release(self, train: Batch[Any], noise: Noise, *, data_public: bool) -> Released:
        total = clipped_sum(train, 5, self.declared.max_norm)
        shift = torch.ones(len(total), dtype=torch.float64)
        noised = noise.add(total, self.declared.noise_std)
        return Released(lambda left: centered(left, shift), {self.name: total, f"{self.name} noise": noised - total})


def test_statistics_of_one_job_have_their_own_noise_and_see_unchanged_records() -> None:
    """Noise at one address would be one noise on two sums: their difference would be exact."""
    supervisor = Supervisor(start(job()))
    x, y = dense(100, 5, 3)
    training = training_of(supervisor, records(x[:80] + FAR, y[:80]), records(x[80:], y[80:]))
    (mean,) = training._plan.before
    two = tuple(Sum(name, mean.declared) for name in ("one", "two"))  # type: ignore[arg-type]
    training._plan = replace(training._plan, before=two)
    released = training.run().parameters
    assert torch.equal(released["one"], released["two"]), "the second saw what the first prepared"
    assert not bool((released["one noise"] == released["two noise"]).any())
    of_one = Noise(bytes.fromhex(key("a", "release")), 0)
    assert not torch.equal(of_one.add(zeros(), 1.0), replace(of_one, index=1).add(zeros(), 1.0))


def zeros() -> Tensor:
    return torch.zeros(5, dtype=torch.float64)


def test_a_certificate_with_a_new_statistic_is_recomputed() -> None:
    """Whoever reads it needs no newer version: a release before the first step is one sum, with noise 1/μ."""
    mechanism = start(job())["mechanism"]
    wanted = expected_tree(mechanism, "train")
    mechanism["releases"].append({"what": "maximum", "noise_mu": 0.25})
    again = {"kind": "self_composed", "count": 1, "event": {"kind": "gaussian", "noise_multiplier": 4.0}}
    assert expected_tree(mechanism, "train")["events"] == [*wanted["events"], again]
    assert expected_tree(mechanism, "holdout") == expected_tree(start(job())["mechanism"], "holdout")
