"""What is kept of a study's plan with its job: all that its runs are made from. The column's JSON is read for ever."""

from __future__ import annotations

from typing import Self

from app.hpo.strategies import Decision
from core.contracts.base import Document, Epsilon
from core.contracts.job_spec import Evaluation
from core.contracts.stored_documents import Role
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import StoredScore, StudyCommon
from core.privacy.prices import Units
from core.privacy.shares import run_mechanism


class StoredRun(Document):
    """A run's part of the budget, as PricedRun; `training_epsilon` is that of its training, `epsilon` with its scores.

    All of it is None, or 0, without privacy.
    """

    role: Role
    level: int | None
    share: int
    mu: float | None
    noise_multiplier: float | None
    charge: Units
    training_epsilon: Epsilon | None
    epsilon: Epsilon | None
    releases: tuple[StoredScore, ...]


class StoredDecision(Document):
    """How the final run was chosen: the best pilot of each level with its r, the curve through them, r*."""

    best: tuple[int, ...]
    rs: tuple[float, ...]
    coefficients: tuple[float, ...]
    r_star: float
    fallbacks: tuple[str, ...]

    @classmethod
    def of(cls, decision: Decision) -> StoredDecision:
        fit = decision.fit
        return cls(
            best=decision.best,
            rs=decision.rs,
            coefficients=tuple(fit.coefficients),
            r_star=fit.r_star,
            fallbacks=tuple(fit.fallbacks),
        )


class StoredStudy(Document):
    """A search, fixed at admission; `decision` and `chosen` are filled in as it goes.

    Attributes:
        seed: of the draws; public.
        steps: the largest T.
        levels, at_final: where the levels and the final run lie, in the unit of the fit.
        score: the name that trials are compared by; None where there are none.
        trial_evaluation: what makes it.
        common: what all runs have in common; None without privacy.
        chosen: the number of the run whose model is handed out.
    """

    seed: str
    steps: int
    levels: tuple[float, ...]
    at_final: float
    score: str | None
    larger_is_better: bool
    trial_evaluation: Evaluation | None
    keep_weights: bool
    common: StudyCommon | None
    runs: tuple[StoredRun, ...]
    decision: StoredDecision | None
    chosen: int | None

    @classmethod
    def read(cls, column: object) -> Self:
        """From the column of a job that is a study.

        Raises:
            TypeError: the job is none.
        """
        if column is None:
            raise TypeError("this job is no study")
        return cls.model_validate(column)

    def mechanism(self, number: int, steps: int, max_grad_norm: float | None) -> MechanismConfig | None:
        """What a run does to private data at its point; None without privacy."""
        if self.common is None:
            return None
        run = self.runs[number]
        return run_mechanism(
            self.common,
            number=number,
            share=run.share,
            sigma=run.noise_multiplier,
            scores=run.releases,
            steps=steps,
            max_grad_norm=max_grad_norm,
        )
