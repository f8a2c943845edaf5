"""Saves what an attempt to train leaves: the model, the study's mean, and what canaries left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from core.contracts.stored_documents import ArtifactFile, ReleasedScore
from worker.attempt.failure_codes import StorageFailed
from worker.attempt.means import write_mean
from worker.attempt.part_loading import extractor_of
from worker.messages import Start
from worker.models.base import Model
from worker.models.card import Privacy
from worker.models.model_files import save_model
from worker.statistics.center import TENSOR
from worker.training.canaries import write_canaries
from worker.training.loop import Outcome


def saved(start: Start, model: Model, outcome: Outcome, scores: Iterable[ReleasedScore]) -> tuple[ArtifactFile, ...]:
    """Saves what is kept, the model, the study's mean and what canaries left, and returns their files.

    Raises:
        StorageFailed: they could not be written.
    """
    privacy = None if start.claim is None else Privacy.of(start.claim, scores)
    try:
        folder, extractor = Path(start.output_dir), extractor_of(start)
        mean_files = [write_mean(folder, outcome.parameters[TENSOR])] if start.hands_mean_on else []
        if outcome.canaries is not None:
            mean_files.append(write_canaries(folder, outcome.canaries))
        if not start.keeps_weights:
            return tuple(mean_files)
        return (
            *save_model(folder, model, outcome.parameters, start.task, start.features, extractor, privacy),
            *mean_files,
        )
    except OSError:
        raise StorageFailed from None
