"""The only exit: everything that depends on the data leaves an attempt here, and only if it was paid for.

    state digests   of parameters and optimizer state, which are functions of noised gradients
    metrics         noisy sums that the mechanism declares, at most as often as declared; exact values on public data;
                    an adaptive norm, which is computed from noisy counts; the rate of the best of several runs
    the model       after the last step's digest

Anything else raises PrivacyError. Blocks, step numbers and failure codes do not depend on the data; they go straight to
the supervisor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

from torch import Tensor

from core.contracts.base import Document
from core.contracts.stored_documents import ArtifactFile, ReleasedScore
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from core.privacy.releases import NoisyCount, NoisySum
from worker.data.shards import InPieces
from worker.messages import (
    Digest,
    Finished,
    MetricValue,
    RankReport,
    Released,
    WarningCode,
)
from worker.metrics.scores import Score

NORM = "clipping_norm"
RATE = "learning_rate"  # of the best of several runs


class Sender(Protocol):
    """The supervisor's end of the pipe."""

    def send(self, message: Document) -> None:
        """Sends a message and does not wait."""
        ...

    def record(self, digest: Digest) -> None:
        """Has the digest recorded with the next block's start, or before any other message is heard."""
        ...

    def flush(self) -> None:
        """Sends a digest that still waits."""
        ...


class Telemetry:
    """Knows what was charged, and releases nothing else.

    Args:
        sender: the supervisor's end.
        mechanism: the stored mechanism; None for a job without privacy on public data.
        data_public: the training data are declared public.
        holdout_public: the hold-out is public.
        released: what earlier attempts released.
        score_only: the job is a trial of a study; only its score leaves.
    """

    def __init__(
        self,
        sender: Sender,
        mechanism: MechanismConfig | None,
        *,
        data_public: bool,
        holdout_public: bool,
        released: tuple[Released, ...] = (),
        score_only: bool = False,
    ) -> None:
        if mechanism is None and not data_public:
            raise PrivacyError("private data need a mechanism")
        self._sender = sender
        self._declared: dict[str, NoisyCount | NoisySum] = {}
        for release in mechanism.scores if mechanism else ():
            if release.metric in self._declared:
                raise PrivacyError("the mechanism declares a release twice")
            self._declared[release.metric] = release
        self._stds = () if mechanism is None else mechanism.noise_stds()
        self._selects = mechanism is not None and mechanism.selection is not None
        self._adaptive = mechanism is not None and mechanism.training.adaptive is not None
        self.data_public = data_public
        self._public = {"train": mechanism is None and data_public, "holdout": holdout_public}
        self._released = {(each.name, each.step) for each in released}
        self._scores = {each.name: (each.step, each.score) for each in released if each.score is not None}
        self._score_only = score_only
        self._digested: int | None = None

    def digest(self, step: int, digest: str) -> None:
        """Records the state after `step`, at its block's end. This comes before every other release of the block."""
        self._sender.record(Digest(step=step, digest=digest))
        self._digested = step

    def flush(self) -> None:
        """Sends the last digest now, as no block starts next: a pass over records may take long."""
        self._sender.flush()

    def may_release(self, name: str, step: int) -> bool:
        """Returns True if a noisy sum is paid for and no earlier attempt released it at this step."""
        release = self._declared.get(name)
        used = sum(1 for released, _ in self._released if released == name)
        return release is not None and (name, step) not in self._released and used < release.times

    def was_released(self, name: str, step: int) -> bool:
        """Returns True if this attempt or an earlier one already released this step's score."""
        return (name, step) in self._released

    def noisy_metric(self, step: int, score: Score) -> None:
        """Releases a declared noisy sum over private records.

        Raises:
            PrivacyError: the sum is not declared, was already released as often as declared, has other noise than was
                charged, or comes before its block's digest.
        """
        self._behind_digest(step)
        if not self.may_release(score.name, step):
            raise PrivacyError("this noisy sum is not declared, or was already released as often as declared")
        release = self._declared[score.name]
        if not math.isclose(score.noise_std, release.noise_std, rel_tol=1e-9):
            raise PrivacyError("a noisy sum's noise differs from the noise that was charged")
        if not {each.name for each in score.parts} <= release.parts:
            raise PrivacyError("a release has parts that the mechanism does not declare")
        self._released.add((score.name, step))
        self._metric(step, score, release.account, release.released_by)

    def clipping_norm(self, step: int, max_grad_norm: float) -> None:
        """Releases an adaptive C after `step`: a function of counts that were charged with the steps.

        Raises:
            PrivacyError: the mechanism has no such counts, or the value comes before its block's digest.
        """
        self._behind_digest(step)
        if not self._adaptive:
            raise PrivacyError("the clipping norm of this mechanism is fixed")
        if self._score_only:
            return
        self._metric(step, Score(NORM, max_grad_norm, 0.0), "train", "post_processing")

    def learning_rate(self, step: int, rate: float) -> None:
        """Releases the rate of the best of several runs: the selection's price is also its.

        Raises:
            PrivacyError: the mechanism selects no run, or the value comes before its block's digest.
        """
        self._behind_digest(step)
        if not self._selects:
            raise PrivacyError("only a selection draws its learning rate in secret")
        if not self.was_released(RATE, step):
            self._metric(step, Score(RATE, rate, 0.0), "train", "post_processing")

    def public_metric(self, step: int, score: Score, on: Literal["train", "holdout"]) -> bool:
        """Releases an exact value on public data. Returns False and sends nothing if the value is not finite.

        Raises:
            PrivacyError: these data are not public, or the value comes before its block's digest.
        """
        self._behind_digest(step)
        if not self._public[on] or score.std != 0.0:
            raise PrivacyError("exact values may be released for public data only")
        if not math.isfinite(score.value):
            return False
        self._metric(step, score, on, "public_data")
        return True

    def check_answers(self, step: int, stds: tuple[float, ...]) -> None:
        """Checks a statistics job's answers before they leave as files: the noise on each query is what was charged.

        Raises:
            PrivacyError: it is not, exactly; or they come before the step's digest.
        """
        self._behind_digest(step)
        exact = self._public["train"] and not any(stds)
        if not exact and (not self._stds or stds != self._stds):
            raise PrivacyError("the noise of statistics differs from the noise that was charged")

    @property
    def scores(self) -> tuple[ReleasedScore, ...]:
        """The last released value of each score by name, by whatever attempt; a clipping norm or rate is none."""
        return tuple(score for name, (_, score) in sorted(self._scores.items()) if name not in (NORM, RATE))

    def finished(
        self,
        steps: int,
        artifacts: tuple[ArtifactFile, ...],
        warnings: tuple[WarningCode, ...],
        ranks: tuple[RankReport, ...] = (),
    ) -> None:
        """Sends the last message: the model is the state after `steps`.

        Args:
            ranks: what each rank did, on public data.

        Raises:
            PrivacyError: that state's digest was not sent, or ranks are reported on private data.
        """
        self._behind_digest(steps)
        if ranks and not self.data_public:
            raise PrivacyError("the passes and the memory of a rank depend on private records")
        self._sender.send(Finished(steps_effective=steps, artifacts=artifacts, warnings=warnings, ranks=ranks))

    def restored(self, step: int) -> None:
        """Notes that the attempt went back to the state after `step`, whose digest is already recorded."""
        self._digested = step

    def _behind_digest(self, step: int) -> None:
        if self._digested != step:
            raise PrivacyError("nothing from a block may leave before its digest")

    def _metric(
        self,
        step: int,
        score: Score,
        on: Literal["train", "holdout"],
        released_by: Literal["noisy_count", "noisy_sum", "public_data", "post_processing"],
    ) -> None:
        for score_part in (score, *score.parts):
            released_score = ReleasedScore(name=score_part.name, value=score_part.value, std=score_part.std, on=on)
            if score_part.name not in self._scores or self._scores[score_part.name][0] <= step:
                self._scores[score_part.name] = (step, released_score)
        metric = {"name": score.name, "step": step, "value": score.value, "std": score.std}
        parts = [{"name": each.name, "value": each.value, "std": each.std} for each in score.parts]
        members = {"on": on, "released_by": released_by, "parts": parts, "histogram": score.histogram}
        self._sender.send(MetricValue.model_validate(metric | members))


def state_digest(step: int, *parts: Mapping[str, Tensor] | Iterable[InPieces]) -> str:
    """SHA-256 over the step and the names, types, shapes and bytes of all tensors.

    It is a function of noised gradients only, so it may leave. Two states with the same digest are identical in every
    bit. Tensors may come in pieces, which change no digest.
    """
    digest = hashlib.sha256(f"scrimp/v1/state/{step}".encode())
    for number, part in enumerate(parts):
        for tensor in in_one_piece(part) if isinstance(part, Mapping) else part:
            digest.update(f"\n{number}/{tensor.name}/{tensor.dtype}/{tuple(tensor.shape)}\n".encode())
            for piece in tensor.pieces:
                digest.update(piece.detach().cpu().contiguous().reshape(-1).numpy().view("u1").data)
    return digest.hexdigest()


def in_one_piece(part: Mapping[str, Tensor]) -> Iterator[InPieces]:
    """Tensors whose numbers are all here."""
    return (InPieces(name, value.dtype, value.shape, iter((value,))) for name, value in part.items())
