"""Which jobs can be audited by canaries of their own, and what these cost. All of it follows from public numbers."""

from __future__ import annotations

from app.contracts.audit import WORDS, Audit
from app.contracts.job_spec import JobSpec, LinearModel
from app.contracts.optimizers import PublicSideSettings
from app.contracts.sampling import Poisson
from app.errors import InvalidRequest
from app.jobs.plans import DatasetFacts

MOST_NUMBERS = 2**26  # of all canaries: an attempt holds them in memory, 4 bytes each


def check(spec: JobSpec, facts: DatasetFacts) -> None:
    """Raises InvalidRequest if the job asks for an audit that it cannot have."""
    if spec.audit is None:
        return
    why = _refusal(spec, facts)
    if why is not None:
        raise InvalidRequest.at("/audit", f"{why}: leave `audit` out")
    if spec.audit.kind == "gradients":
        _check_gradients(spec)
    else:
        _check_records(spec, spec.audit, facts)


def cost(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    """Warns of canaries that the model trains on."""
    if spec.audit is None or not spec.audit.trained:
        return ()
    included, unit = spec.audit.canaries / 2.0, "user" if facts.unit == "user" else "record"
    share = 100.0 * included / (included + facts.records_train)
    return (
        f"about half of the {spec.audit.canaries} canaries train like {unit}s, beside {facts.records_train} declared "
        f"ones: {share:.2g} % of what the model learns from is random, so its scores will be lower. Canaries of kind "
        "`gradients` leave the model as it is",
    )


def _refusal(spec: JobSpec, facts: DatasetFacts) -> str | None:
    if not facts.is_private or spec.privacy is None:
        return "canaries test what a certificate claims, and a job on public data has none"
    if spec.hpo is not None:
        return "a study is not audited: its trials share one price. Audit a job with the point that it finds"
    if isinstance(spec.sampling, Poisson) and spec.sampling.largest_batch is not None:
        return "with `largest_batch` canaries would take records' places in a full batch"
    return None


def _check_gradients(spec: JobSpec) -> None:
    why = None
    if isinstance(spec.optimizer, PublicSideSettings):
        why = f"`{spec.optimizer.kind}` takes public gradients, which have no coordinate of a canary"
    elif spec.runtime.shard != "none":
        why = "`runtime.shard` divides tensors among processes, and the canaries' belongs to all of them"
    if why is not None:
        detail = f'{why}: ask for canaries of kind "records", or leave `audit` out'
        raise InvalidRequest.at("/audit", detail)


def _check_records(spec: JobSpec, audit: Audit, facts: DatasetFacts) -> None:
    if audit.canaries > facts.records_train:
        detail = (
            f"{audit.canaries} canaries of kind `records` are more than the {facts.records_train} declared "
            f"{'users' if facts.unit == 'user' else 'records'}: the model would learn mostly noise. Ask for at most as "
            'many, or for the kind "gradients"'
        )
        raise InvalidRequest.at("/audit/canaries", detail)
    numbers = _numbers(spec, facts)
    if audit.canaries * numbers > MOST_NUMBERS:
        detail = (
            f"{audit.canaries} canaries of {numbers} numbers each do not fit in an attempt's memory: ask for at most "
            f"{MOST_NUMBERS // numbers}"
        )
        raise InvalidRequest.at("/audit/canaries", detail)


def _numbers(spec: JobSpec, facts: DatasetFacts) -> int:
    """How many numbers an attempt keeps of one synthetic record, at most."""
    model = spec.model
    if isinstance(model, LinearModel):
        return WORDS if model.is_sparse(facts.is_sparse) else model.inputs(facts.features)
    length = getattr(model, "max_length", 1)  # of a recommender's or a language model's sequences
    return int(length) + 1 if facts.spec.task.of_interactions else max(int(length) + 1, facts.features)
