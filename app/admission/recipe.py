"""Completes a job that leaves its training to the service: a data set and ε are a whole job.

A job that names no `optimizer` gets the recipe of its kind of model, and of its task if it names no model either. What
it names stays. Every choice depends on the declaration alone; admission tells each with its reason (`quote.resolved`).

    linear                  dp_sgd with momentum and a free step, full batch; T, C and rate by rule (choices.py)
    mlp, cnn                the same, without the free step
    matrix_factorization    the settings of one public data set of ratings
    gru_rec and other       DP-Adam as it was measured on one public data set of sequences
    hf                      DP-Adam
"""

from __future__ import annotations

from typing import NamedTuple

from app.admission.choices import TWO_CLASSES, total_of
from app.admission.facts import DatasetFacts
from app.contracts.dataset_spec import ClassificationTask, LastItemHoldout, RatingTask, RegressionTask
from app.contracts.job_spec import (
    Clipping,
    Evaluation,
    GruRecModel,
    JobSpec,
    LinearModel,
    MatrixFactorizationModel,
    Model,
    Ranking,
)
from app.contracts.metrics import Metric
from app.contracts.optimizers import DpAdam, DpSgd, Optimizer, WarmupLinearSchedule
from app.contracts.sampling import Length
from app.errors import InvalidRequest
from app.hpo.rates import Part
from app.privacy.derive import scores_of

TARGET_STD = 0.01  # of a score's range: smaller differences between models are seldom real
# The most noise_mu of the score, in parts of the job's μ. The hold-out has an account of its own; on the training part
# the score is paid from the same total as the training: 4 % of μ².
OWN_SHARE, TRAIN_SHARE = 0.5, 0.2
LEAST_MU, USUAL_MU = 0.01, 0.1  # USUAL_MU: of a job that has no total
MOST_BALANCED = 10  # classes: the noise of macro-F1 grows with their number, that of accuracy alone does not
TOKEN_LOSS_BOUND = 10.0
BEST_RANKS = 10
RATINGS = "as one job on public ratings of films had it (examples/movielens-epsilon-3.json); nothing was compared"
SEQUENCES = "as measured on one public data set of sequences at ε = 8 (benchmarks/reports/reproduce/dpformer_games.md)"
LINEAR = "the recipe of linear models: momentum, and one more update for free"


class Training(NamedTuple):
    """The optimizer of a kind of model, with what belongs to it."""

    optimizer: Optimizer
    because: str
    clipping: Clipping | None = None
    length: Length | None = None


def with_recipe(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with its model, optimizer and scores, and why these; a job that names an optimizer as it is.

    Raises:
        InvalidRequest: its task has no default model.
    """
    named = spec.model_fields_set
    if "optimizer" in named:
        return spec, ()
    model, evaluation, parts = spec.model, spec.evaluation, list[Part]()
    if "model" not in named:
        model, because = _model(facts)
        parts.append(Part(name="model", value=model.kind, because=because))
    training = _training(model)
    parts.append(Part(name="optimizer", value=training.optimizer.kind, because=training.because))
    clips = training.clipping is not None and "clipping" not in named and spec.privacy is not None
    lasts = training.length is not None and "length" not in named
    if "evaluation" not in named:
        evaluation, told = _scores(spec, model, facts)
        parts.append(told)
    completed = {
        "model": model,
        "optimizer": training.optimizer,
        "clipping": training.clipping if clips else spec.clipping,
        "length": training.length if lasts else spec.length,
        "evaluation": evaluation,
    }
    return spec.model_copy(update=completed), tuple(parts)


def with_class_weights(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with numbers for "balanced" classes: w_c = 1/(K share_c), so that Σ share_c w_c = 1.

    Raises:
        InvalidRequest: the data set declares no shares.
    """
    if spec.class_weights != "balanced":
        return spec, ()
    task = facts.spec.task
    if not isinstance(task, ClassificationTask) or task.shares is None:
        detail = (
            "the data set declares no `task.shares`, and counts of private records are not public: give a number for "
            "each class, from public knowledge"
        )
        raise InvalidRequest.at("/class_weights", detail)
    weights = [float(f"{1.0 / (len(task.shares) * share):.4g}") for share in task.shares]
    said = ", ".join(f"{weight:g}" for weight in weights)
    because = "1/(K share) of the declared shares"
    if len(weights) == TWO_CLASSES:
        because += (
            "; a threshold on the probabilities gives more balanced accuracy, and costs nothing (docs/choosing.md)"
        )
    part = Part(name="class weights", value=said, because=because)
    return spec.model_copy(update={"class_weights": [min(max(each, 1e-3), 1e3) for each in weights]}), (part,)


def _model(facts: DatasetFacts) -> tuple[Model, str]:
    match facts.spec.task.kind:
        case "rating":
            return MatrixFactorizationModel(dim=4), RATINGS
        case "next_item":
            return GruRecModel(dim=32, max_length=8, dropout=0.2), f"the best of the models compared there, {SEQUENCES}"
        case "language_model":
            detail = 'a language model begins at a pretrained one: name its folder, {"kind": "hf", "name": …}'
            raise InvalidRequest.at("/model", detail)
        case _:
            return LinearModel(), "learns most at small ε, and has rules for all its numbers (docs/choosing.md)"


def _training(model: Model) -> Training:
    match model.kind:
        case "linear" | "gam":
            return Training(DpSgd(momentum=0.9, free_step=True), LINEAR)
        case "mlp" | "cnn":
            return Training(DpSgd(momentum=0.9), "the optimizer whose rates were measured for networks")
        case "matrix_factorization":
            optimizer = DpSgd(learning_rate=20.0, momentum=0.9, weight_decay=5e-4)
            return Training(optimizer, RATINGS, Clipping(), Length(steps=50))
        case "gru_rec" | "lstm_rec" | "transformer_rec":
            # The rates are those of the GRU and of the tied transformer.
            rate = 0.06 if model.kind == "transformer_rec" else 0.12
            adam = DpAdam(learning_rate=rate, weight_decay=1e-5, schedule=WarmupLinearSchedule())
            return Training(adam, SEQUENCES, Clipping(kind="automatic"), Length(steps=30))
        case _:
            return Training(
                DpAdam(learning_rate=1e-3), "the usual number for few trained parameters; no experiment chose it"
            )


def _scores(spec: JobSpec, model: Model, facts: DatasetFacts) -> tuple[Evaluation, Part]:
    """The scores of a task, on the hold-out if there is one: its own account pays, or nobody."""
    task, on = facts.spec.task, "holdout" if facts.spec.holdout is not None else "train"
    metrics: list[Metric] | None = None
    bound, ranking = 1.0, None
    if task.is_classification and facts.outputs == TWO_CLASSES:
        metrics = ["auc"]
    elif task.is_classification and facts.outputs <= MOST_BALANCED:
        metrics = ["macro_f1"]
    elif isinstance(task, RegressionTask) and task.range is not None:
        metrics = ["r_squared"]
    elif isinstance(task, RatingTask):
        bound = float((task.scale[1] - task.scale[0]) ** 2)
    elif task.kind == "language_model":
        bound = TOKEN_LOSS_BOUND
    elif task.record_is_user:
        ranking = Ranking(k=min(BEST_RANKS, facts.rows[1]))
    evaluation = Evaluation.model_validate(
        {"on": on, "metrics": metrics, "loss_bound": bound, "ranking": ranking, "noise_mu": LEAST_MU}
    )
    part = "hold-out" if on == "holdout" else "training part"
    planned = [n.std / each.sensitivity for each in scores_of(evaluation, facts.public, model) for n in each.planned]
    if spec.privacy is None or not planned:
        return evaluation, Part(name="scores", value=f"on the {part}", because="exact, as it is public")
    own_account = on == "holdout" and not isinstance(facts.spec.holdout, LastItemHoldout)
    _, mu = total_of(spec, facts)
    most = (OWN_SHARE if own_account else TRAIN_SHARE) * (mu if mu is not None else USUAL_MU)
    wanted = LEAST_MU * max(planned) / TARGET_STD
    noise_mu = float(f"{max(min(wanted, most), LEAST_MU):.2g}")
    because = f"noise of {TARGET_STD:g} of a score's range, if that costs at most {most:.2g} of μ"
    told = Part(name="scores", value=f"on the {part}, noise_mu = {noise_mu:g}", because=because)
    return evaluation.model_copy(update={"noise_mu": noise_mu}), told
