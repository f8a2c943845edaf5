"""What may be augmented: where a record's views are averaged exactly, and its transforms fit what the model reads."""

from __future__ import annotations

from app.contracts.augmentation import Augmentation, Crop, Erase, Transform
from app.contracts.cnn import MOST_NUMBERS
from app.contracts.hf import HfModel
from app.contracts.job_spec import CnnModel, JobSpec, LinearModel
from app.contracts.model_settings import ImageForm, RecordSizes
from app.contracts.optimizers import AdaDps, Dp2Settings, ScaleThenPrivatize
from app.errors import InvalidRequest
from app.jobs.plans import DatasetFacts

WHERE = "/augmentation"


def check(spec: JobSpec, facts: DatasetFacts) -> None:
    """Refuses an augmentation that the job's model cannot have.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    if spec.augmentation is None:
        return
    _check_model(spec, facts)
    form = spec.model.pixels()
    for place, each in enumerate(spec.augmentation.transforms):
        _check_transform(each, form, f"{WHERE}/transforms/{place}")
    _check_size(spec, spec.augmentation, facts)


def _check_model(spec: JobSpec, facts: DatasetFacts) -> None:
    model = spec.model
    if isinstance(model, CnnModel) or (isinstance(model, HfModel) and facts.spec.task.is_classification):
        return
    if isinstance(model, LinearModel) and model.is_sparse(facts.is_sparse):
        _check_optimizer(spec)
        return
    needs = (
        "augmentation is for `cnn` models, `hf` models that classify images or texts, and `linear` models of hashed "
        "words"
    )
    if isinstance(model, LinearModel) and model.extractor is not None:
        detail = f"an extractor's features are made once for each record, so a record has one view: {needs}"
    elif facts.spec.task.of_interactions:
        detail = f"no transform of ratings and sequences of items is known: {needs}"
    elif isinstance(model, HfModel):
        detail = f"a language model would learn to write the changed text: {needs}"
    else:
        detail = f"a `{model.kind}` model does not know which of a record's numbers are pixels or words: {needs}"
    raise InvalidRequest.at(WHERE, detail)


def _check_optimizer(spec: JobSpec) -> None:
    """The norm of a linear model's mean over views has a rule for undivided gradients alone."""
    if isinstance(spec.optimizer, Dp2Settings | ScaleThenPrivatize | AdaDps):
        detail = (
            f"`{spec.optimizer.kind}` divides gradients before the clip, and a linear model's views have no rule for "
            "that: use `dp_sgd` or `dp_adam`, or leave `augmentation` out"
        )
        raise InvalidRequest.at("/optimizer/kind", detail)


def _check_transform(transform: Transform, form: ImageForm | None, where: str) -> None:
    if transform.of_images != (form is not None):
        fitting = "`drop_words`" if form is None else "`crop`, `flip` and `erase`"
        reads = "texts" if form is None else "images"
        raise InvalidRequest.at(f"{where}/kind", f"this model reads {reads}: use {fitting}")
    if form is None:
        return
    side = min(form.height, form.width)
    if isinstance(transform, Crop) and transform.padding >= side:
        raise InvalidRequest.at(f"{where}/padding", f"images of {side} pixels move by at most {side - 1}: lower it")
    if isinstance(transform, Erase) and transform.side > side:
        raise InvalidRequest.at(f"{where}/side", f"the images have {side} pixels: erase at most as many")


def _check_size(spec: JobSpec, asked: Augmentation, facts: DatasetFacts) -> None:
    """A pass holds all views of a record at once."""
    held = spec.model.held(RecordSizes(facts.features, facts.outputs, facts.is_sparse, 1))
    if held is not None and held <= MOST_NUMBERS < held * asked.views:
        detail = (
            f"a pass would hold {held * asked.views} numbers for the views of one record; at most {MOST_NUMBERS} are "
            f"allowed: ask for at most {MOST_NUMBERS // held} views"
        )
        raise InvalidRequest.at(f"{WHERE}/views", detail)
