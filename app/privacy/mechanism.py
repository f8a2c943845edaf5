"""MechanismConfig: the one description of what a job does to private data.

Built once, at admission, stored with the job and read back by the worker. The event that is charged
(app.privacy.events) and the sampler, clipping and noise that run (worker.training.plan) are both made from it, so that
what runs is what is charged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.contracts.base import AccountName, DeltaValue, Document, NoiseMultiplier, Relation, Steps, Unit

# Progress and scores of a Poisson-sampled job are seen no closer together than this: the time that a single step took
# would tell how large its batch was, and amplification by sampling needs batches hidden.
MIN_POISSON_BLOCK_STEPS = 10


class TrainingMechanism(Document):
    """T noisy sums of clipped gradients: Σ_{i∈B} clip_C(g_i) + N(0, σ²C² I), divided by the public L.

    `full_batch`: B is the whole training part, q = 1, T steps are (√T/σ)-GDP exactly.
    `poisson`: each record joins B independently with probability q = L / records.
    """

    sampling: Literal["full_batch", "poisson"]
    sample_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    steps: Steps
    noise_multiplier: NoiseMultiplier
    max_grad_norm: Annotated[float, Field(gt=0.0)]
    clipping: Literal["flat", "automatic", "per_layer"]  # a record's whole gradient weighs at most C in each
    expected_batch_size: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _rate_matches(self) -> TrainingMechanism:
        if self.sampling == "full_batch" and self.sample_rate != 1.0:
            raise ValueError("full batch has sample rate 1")
        return self


class NoisySum(Document):
    """`times` releases of sums where one record weighs at most `sensitivity` in ℓ₂, with std sensitivity/noise_mu each.

    Of each score both the sum and its complement are released: (s, Δ − s) of one record has ℓ₂ norm at most Δ.
    """

    what: Literal["accuracy", "loss"]
    account: AccountName
    noise_mu: Annotated[float, Field(gt=0.0)]
    sensitivity: Annotated[float, Field(gt=0.0)] = 1.0
    times: Annotated[int, Field(ge=1)] = 1
    records: Annotated[int, Field(ge=1)]  # the public size of what is summed over; information, not a divisor


class MechanismConfig(Document):
    """Everything that a job does to private data. Training is on the `train` account.

    The hold-out is disjoint from the training part, so the two accounts compose in parallel.
    """

    version: Literal[1] = 1
    unit: Unit = "example"
    relation: Relation = "add_or_remove_one"
    target_delta: DeltaValue
    training: TrainingMechanism
    releases: tuple[NoisySum, ...] = ()
