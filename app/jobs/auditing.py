"""Which jobs can be audited by canaries of their own; what cannot is refused by name."""

from __future__ import annotations

from app.contracts.job_spec import JobSpec
from app.contracts.optimizers import PublicSideSettings
from app.contracts.sampling import Poisson
from app.errors import InvalidRequest


def check(spec: JobSpec, *, is_private: bool) -> None:
    """Raises InvalidRequest if the job asks for an audit that it cannot have."""
    why = None if spec.audit is None else _refusal(spec, is_private)
    if why is not None:
        raise InvalidRequest.at("/audit", f"{why}: leave `audit` out")


def _refusal(spec: JobSpec, is_private: bool) -> str | None:
    if not is_private or spec.privacy is None:
        return "canaries test what a certificate claims, and a job on public data has none"
    if spec.hpo is not None:
        return "a study is not audited: its trials share one price. Audit a job with the point that it finds"
    if isinstance(spec.optimizer, PublicSideSettings):
        return f"`{spec.optimizer.kind}` takes public gradients, and public records have no canaries"
    if isinstance(spec.sampling, Poisson) and spec.sampling.largest_batch is not None:
        return "with `largest_batch` canaries would take records' places in a full batch"
    if spec.runtime.shard != "none":
        return "`runtime.shard` divides tensors among processes, and the canaries' belongs to all of them"
    return None
