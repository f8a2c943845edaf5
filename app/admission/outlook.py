"""What a quote says that more ε, more records or more steps would buy, where runs of like shape were kept."""

from __future__ import annotations

from app.admission.choices import total_of
from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked
from app.hpo.accuracy_outlook import NOTHING, RUNS, SOURCE, Outcome, Outlook, told
from core.contracts.job_spec import JobSpec, LinearModel
from core.contracts.kinds import rule_of
from core.contracts.optimizers import DpSgd
from core.contracts.table import TableFeatures
from core.privacy.gdp import mu_from_epsilon

STEPS = "More steps cost no ε and gain nothing: `auto` takes as many as kept runs gained from"
NO_GAIN = (
    "twice the ε is expected to gain {gain:.1f} points of AUC (`outlook`): kept runs of like shape gained nothing from "
    "more"
)


def outlook_of(checked: Checked) -> Outlook | None:
    """The outlook of a job by "auto" on a table of two classes in bins; None where no runs of like shape were kept."""
    spec, facts, resolved = checked.spec, checked.facts, checked.resolved
    delta, mu = total_of(spec, facts)
    epsilon = spec.privacy.target_epsilon if spec.privacy is not None else None
    features = _like(spec, facts)
    if mu is None or epsilon is None or resolved is None or features is None:
        return None
    if resolved.learning_rate is None or resolved.steps is None or resolved.max_grad_norm is None:
        return None
    if mu * facts.records_train / features < RUNS[0].signal:
        return None  # more ε gains the most there, and no run says how much
    twice, records = 2.0 * epsilon, facts.records_train
    cases = (
        ("this job", epsilon, mu, records),
        ("twice the ε", twice, mu_from_epsilon(twice, delta), records),
        ("twice the records", epsilon, mu, 2 * records),
    )
    outcomes = []
    for label, at, of_epsilon, many in cases:
        below, low, high = told(of_epsilon * many / features)
        outcomes.append(Outcome(what=label, epsilon=at, records=many, below=below, low=low, high=high))
    return Outlook(outcomes=tuple(outcomes), because=f"{SOURCE}. {STEPS}")


def warning(outlook: Outlook) -> str | None:
    """Says so if more ε gains nothing."""
    now, next_down = (each.below for each in outlook.outcomes[:2])
    return NO_GAIN.format(gain=now - next_down) if now - next_down < NOTHING else None


def _like(spec: JobSpec, facts: DatasetFacts) -> int | None:
    """d of a job like those of the kept runs; None of others."""
    features = facts.spec.features
    is_like = (
        rule_of(spec.kind).trains
        and isinstance(spec.model, LinearModel)
        and isinstance(spec.optimizer, DpSgd)
        and facts.spec.task.is_classification
        and (facts.outputs, facts.records_per_unit) == (2, 1)
        and spec.sampling.takes_all
        and spec.hpo is None
        and facts.is_private
    )
    return features.width if is_like and isinstance(features, TableFeatures) and features.is_one_hot else None
