"""What one attempt or prediction needs from the machine, derived from its start message."""

from __future__ import annotations

from pathlib import Path

from app.sandbox import confinement
from core.parts.layout import index_path
from worker.attempt.confined import Policy, own_scratch
from worker.attempt.second_user import User
from worker.messages import Predict, Start


def policy_of(message: Start | Predict, memory_limit_bytes: int, user: User | None = None) -> Policy:
    """The parts, model folder and output that a message names, as the calling process's policy.

    Makes its scratch folder, and cache folders that are new. A second user has no cache: who deletes a data
    set could not remove that user's folders.
    """
    scratch = own_scratch()
    if isinstance(message, Predict):
        readable = _paths(message.weights.path, message.models_root)
        return Policy(confinement.Policy(readable), memory_limit_bytes, scratch=scratch, user=user)
    parts = (*message.parts.all, *((message.mean,) if message.mean else ()))
    names = [path for each in parts for path in (each.path, str(index_path(Path(each.path))))]
    caches = dict.fromkeys(each.cache_dir for each in parts if user is None)
    for cache in _paths(*caches):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    writable = _paths(message.output_dir, *caches)
    readable = _paths(*names, message.extractor_dir, message.models_root)
    return Policy(confinement.Policy(readable, writable), memory_limit_bytes, scratch=scratch, user=user)


def _paths(*names: str | None) -> tuple[Path, ...]:
    return tuple(Path(name) for name in names if name is not None)
