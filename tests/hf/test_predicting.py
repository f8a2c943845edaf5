"""Predictions of tuned Hugging Face models: from what was delivered, with the numbers that transformers gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import scrimp
from core.contracts.dataset_spec import ClassificationTask, LanguageModelTask
from core.parts import model_folder
from tests.hf.test_files import FEATURES, TEXTS, read_by_transformers
from tests.hf.test_norms import model, some_parameters
from tests.hf.tiny import VOCABULARY, write
from tests.worker.support import spec
from worker.messages import Predict
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.hf.hf_model import HfTuning
from worker.models.model_files import save_model
from worker.predicting.language import continuations
from worker.predicting.predict import predicted


def asked(m: HfTuning, root: Path, folder: Path, records: list[str], top: int) -> Predict:
    """What a worker is asked, with this model's files as they are delivered."""
    task = ClassificationTask(label="y", classes=list(m.classes)) if m.classes else LanguageModelTask()
    (folder := folder / "a" / "b" / "c").mkdir(parents=True)
    parameters = {name: value.float().double() for name, value in some_parameters(m).items()}
    artifacts = save_model(folder, m, parameters, task, FEATURES)
    (weights,) = (each for each in artifacts if each.name.endswith(".safetensors"))
    pinned = m.spec.model_dump(mode="json") | {"sha256": m.folder.sha256}
    shape = {"records_train": 40, "records_holdout": 0, "features": 1, "outputs": m.outputs, "sparse": False}
    job = spec(model=pinned, evaluation=None, runtime={"dtype": "float64"})
    document: dict[str, Any] = {"spec": job, "task": task.model_dump(), "features": FEATURES.model_dump()}
    return Predict.model_validate(
        document
        | {"shape": shape, "weights": {"path": weights.path, "sha256": weights.sha256}}
        | {"records": records, "top": top, "models_root": str(root)}
    )


@pytest.mark.parametrize(("path", "tuning"), [("gpt2", "lora"), ("gpt2", "head"), ("llama-tied", "last_block")])
def test_texts_are_scored_and_gone_on_with(models_root: Path, tmp_path: Path, path: str, tuning: str) -> None:
    m = model(models_root, path, tuning=tuning)
    answers = predicted(asked(m, models_root, tmp_path, TEXTS, 4))
    wanted = read_by_transformers(m, tmp_path / "a" / "b" / "c", models_root / path)
    counts = [len(text.split()) for text in TEXTS]
    assert [each["tokens"] for each in answers] == [min(count, m.spec.max_length) for count in counts]
    for answer, loss, count in zip(answers, wanted[:, 0].tolist(), counts, strict=True):
        shares = [each["probability"] for each in answer["next"]]
        assert len(shares) == 4 and 1.0 > shares[0] >= shares[-1] > 0.0
        if count == 0:
            assert answer["loss"] is None is answer["perplexity"]
        else:
            assert answer["loss"] == pytest.approx(loss, rel=1e-5)
            assert answer["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    longer = ("w1 w2 w3 " + answers[0]["next"][0]["token"]).split()
    (one,) = predicted(asked(m, models_root, tmp_path / "again", [" ".join(longer)], VOCABULARY))
    (known,) = predicted(asked(m, models_root, tmp_path / "other", ["w1 w2 w3"], VOCABULARY))
    assert sum(each["probability"] for each in one["next"]) == pytest.approx(1.0)
    # −log p of a text of T tokens and its end: those of all its next tokens, one after the other.
    of = {each["id"]: each["probability"] for each in known["next"]}
    gone = known["loss"] * 3 + math.log(of[2]) - math.log(of[answers[0]["next"][0]["id"]])
    end = next(each["probability"] for each in one["next"] if each["id"] == 2)
    assert one["loss"] * 4 == pytest.approx(gone - math.log(end), rel=1e-9)


def test_a_model_without_an_end_of_text_scores_what_is_there(models_root: Path, tmp_path: Path) -> None:
    write(tmp_path / "gpt2", "gpt2", eos_token_id=None)
    m = model(tmp_path, "gpt2", tuning="lora")
    parameters = some_parameters(m)
    two, three, long = continuations(m, parameters, ["w1 w2", "w1 w2 w3", " ".join(["w1"] * 20)], VOCABULARY)
    assert [two["tokens"], three["tokens"], long["tokens"]] == [1, 2, m.spec.max_length]
    third = next(each["probability"] for each in two["next"] if each["token"] == "w3")
    assert three["loss"] * 2 == pytest.approx(two["loss"] - math.log(third), rel=1e-9)
    lost = {name: value * torch.nan for name, value in parameters.items()}
    (nothing,) = continuations(m, lost, ["w1 w2"], 3)
    assert nothing["loss"] is None and nothing["next"] == []


@pytest.mark.parametrize(("path", "tuning"), [("roberta", "head"), ("bert", "lora")])
def test_texts_are_classified(models_root: Path, tmp_path: Path, path: str, tuning: str) -> None:
    m = model(models_root, path, tuning=tuning)
    answers = predicted(asked(m, models_root, tmp_path, TEXTS, 2))
    wanted = torch.softmax(read_by_transformers(m, tmp_path / "a" / "b" / "c", models_root / path), dim=1)
    for answer, shares in zip(answers, wanted, strict=True):
        best = shares.topk(2)
        named = {m.classes[at]: pytest.approx(float(shares[at]), rel=1e-5) for at in best.indices.tolist()}
        assert answer == {"class": m.classes[int(shares.argmax())], "probabilities": named}


@pytest.mark.parametrize(
    ("path", "tuning"), [("gpt2", "lora"), ("gpt2", "head"), ("llama-tied", "last_block"), ("roberta", "full")]
)
def test_a_loaded_model_answers_as_the_worker_does(models_root: Path, tmp_path: Path, path: str, tuning: str) -> None:
    message = asked(model(models_root, path, tuning=tuning), models_root, tmp_path, TEXTS, 3)
    folder = tmp_path / "a" / "b" / "c"
    loaded = scrimp.load_model(folder, models_root if tuning == "lora" else None)
    for mine, theirs in zip(loaded.predict(TEXTS, top=3), predicted(message), strict=True):
        assert str(mine.keys()) == str(theirs.keys())
        assert numbers_of(mine) == pytest.approx(numbers_of(theirs), rel=1e-4)
    with pytest.raises(ValueError, match="text"):
        loaded.predict([3])
    if tuning == "lora":
        with pytest.raises(ValueError, match="SCRIMP_MODELS_ROOT"):
            scrimp.load_model(folder)


def numbers_of(answer: dict[str, Any]) -> list[float]:
    """The answer's numbers that tell it from another, in order."""
    found = [*list(answer.get("probabilities", {}).values()), answer.get("loss"), answer.get("perplexity")]
    return [each for each in found + [each["probability"] for each in answer.get("next", [])] if each is not None]


def test_the_folder_that_was_tuned_is_needed_as_it_was(models_root: Path, tmp_path: Path) -> None:
    m = model(models_root, "gpt2", tuning="lora")
    message = asked(m, models_root, tmp_path, ["w1"], 1)
    write(tmp_path / "gpt2", "gpt2", n_layer=3)
    assert model_folder.read(tmp_path, "gpt2").sha256 != m.folder.sha256
    for root in (tmp_path, tmp_path / "nowhere", None):
        with pytest.raises(ModelMissingError):
            predicted(message.model_copy(update={"models_root": str(root) if root else None}))
