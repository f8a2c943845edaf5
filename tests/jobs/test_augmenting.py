"""What may be augmented: refused by name where a record's views have no exact mean, or no transform fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.admission.facts import DatasetFacts
from app.admission.job_rules import check
from app.dashboard import job_draft
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.privacy.pricing import price
from tests.factories import job_spec
from tests.jobs.test_planning import facts

CNN = {"kind": "cnn", "preset": "conv2"}
TENSOR = {"format": "npz", "features": {"kind": "tensor", "array": "x"}}
IMAGES = {"views": 4, "transforms": [{"kind": "crop", "padding": 4}, {"kind": "flip"}]}
WORDS = {"views": 4, "transforms": [{"kind": "drop_words", "rate": 0.1}]}
TEXT = {"features": {"kind": "text", "column": "text"}}
BERT = {
    "kind": "hf",
    "path": "bert",
    "architecture": "bert",
    "parameters": 100,
    "trained": 100,
    "vocabulary": 30,
    "pass_numbers": 1000,
}
GPT = BERT | {"architecture": "gpt2"}


def images(**changes: Any) -> DatasetFacts:
    return facts(width=784, **(TENSOR | changes))


def asked(model: dict[str, Any], augmentation: Any, **changes: Any) -> JobSpec:
    return JobSpec.model_validate(job_spec("ds_x", model=model, augmentation=augmentation, **changes))


def test_a_price_does_not_see_the_views() -> None:
    plain, viewed = (check(asked(CNN, each), images()) for each in (None, IMAGES))
    assert plain.pricing is not None and plain.pricing == viewed.pricing
    assert price(plain.pricing) == price(viewed.pricing)  # type: ignore[arg-type]
    assert viewed.work.numerics.rows_per_pass < plain.work.numerics.rows_per_pass


def test_unset_it_is_not_stored() -> None:
    assert "augmentation" not in asked(CNN, None).model_dump(mode="json")
    stored = asked(CNN, IMAGES).model_dump(mode="json")
    assert JobSpec.model_validate(stored).augmentation == asked(CNN, IMAGES).augmentation


@pytest.mark.parametrize(
    ("model", "augmentation", "of", "pointer", "says"),
    [
        ({"kind": "linear"}, IMAGES, images(), "/augmentation", "`linear` model does not know"),
        ({"kind": "mlp", "hidden": [4]}, IMAGES, images(), "/augmentation", "`mlp` model does not know"),
        (
            {"kind": "linear", "extractor": {"name": "encoder", "sha256": "0" * 64, "features": 8}},
            WORDS,
            facts(**TEXT),
            "/augmentation",
            "made once for each record",
        ),
        (
            {"kind": "linear", "extractor": {"name": "hashed-words", "words": {}}},
            IMAGES,
            facts(**TEXT),
            "/augmentation/transforms/0/kind",
            "use `drop_words`",
        ),
        (CNN, WORDS, images(), "/augmentation/transforms/0/kind", "use `crop`, `flip` and `erase`"),
        (BERT, IMAGES, facts(**TEXT), "/augmentation/transforms/0/kind", "use `drop_words`"),
        (
            GPT,
            WORDS,
            facts(task={"kind": "language_model"}, holdout=None, **TEXT),
            "/augmentation",
            "would learn to write",
        ),
        (
            CNN,
            {"transforms": [{"kind": "flip"}, {"kind": "crop", "padding": 28}]},
            images(),
            "/augmentation/transforms/1/padding",
            "at most 27",
        ),
        (
            CNN,
            {"transforms": [{"kind": "erase", "side": 29}]},
            images(),
            "/augmentation/transforms/0/side",
            "28 pixels",
        ),
        (
            {"kind": "cnn", "preset": "conv5", "image": {"height": 256, "width": 256, "channels": 3}},
            IMAGES | {"views": 64},
            facts(width=196_608, **TENSOR),
            "/augmentation/views",
            "ask for at most",
        ),
    ],
)
def test_what_has_no_exact_mean_is_refused_by_name(
    model: dict[str, Any], augmentation: Any, of: DatasetFacts, pointer: str, says: str
) -> None:
    evaluation = None if of.spec.holdout is None else {"points": 1}
    with pytest.raises(InvalidRequest) as refused:
        check(asked(model, augmentation, evaluation=evaluation), of)
    (error,) = refused.value.members["errors"]
    assert error["pointer"] == pointer and says in error["detail"]


@pytest.mark.parametrize(
    "augmentation",
    [
        {"views": 2},
        {"views": 0, "transforms": [{"kind": "flip"}]},
        {"views": 65, "transforms": [{"kind": "flip"}]},
        {"transforms": [{"kind": "flip"}, {"kind": "flip"}]},
        {"transforms": [{"kind": "turn"}]},
        {"transforms": [{"kind": "drop_words", "rate": 1.0}]},
    ],
)
def test_a_malformed_one_is_refused(augmentation: Any) -> None:
    with pytest.raises(ValidationError):
        asked(CNN, augmentation)


def test_the_form_has_it_from_the_schema() -> None:
    form = job_draft.form()
    document = job_spec("ds_x", model=CNN, augmentation=IMAGES)
    controls = {each.pointer: each for each in form.show(document, ("augmentation",))}
    assert controls["/augmentation/views"].value == "4"
    assert json.loads(controls["/augmentation/transforms"].value) == IMAGES["transforms"]
    sent = {"/augmentation": "on", "/augmentation/views": "2", "/augmentation/transforms": '[{"kind": "flip"}]'}
    assert form.read(sent, document)["augmentation"] == {"views": 2, "transforms": [{"kind": "flip"}]}
    assert form.read({"/augmentation": ""}, document).get("augmentation") is None


def test_hashed_words_are_dropped_for_optimizers_that_do_not_divide() -> None:
    model = {"kind": "linear", "extractor": {"name": "hashed-words", "words": {}, "features": 32_768}}
    made = check(asked(model, WORDS), facts(**TEXT))
    assert made.work.numerics.positions == 4 and made.work.numerics.sums == "float64"
    divided = {"kind": "scale_then_privatize", "learning_rate": 0.1}
    with pytest.raises(InvalidRequest) as refused:
        check(asked(model, WORDS, optimizer=divided), facts(**TEXT))
    assert refused.value.members["errors"][0]["pointer"] == "/optimizer/kind"
