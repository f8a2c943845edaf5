"""What is delivered: models that transformers loads, adapters that peft loads, with the numbers that were trained."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from core.contracts.dataset_spec import ClassificationTask, LanguageModelTask, Text
from core.parts.stored_records import StoredPart, Texts
from tests.hf.test_norms import KEY, model, some_parameters
from worker.data.loaded_parts import records_of
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.models.model_files import save_model

TEXTS = ["w1 w2 w3", "w4", "", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 unknown", "w2 w2 w1"]
FEATURES = Text(column="text")
LANGUAGE = Path(__file__).resolve().parents[2] / "docs" / "language.md"


def nothing() -> None:
    pass


@contextlib.contextmanager
def peft_s_own_warnings() -> Iterator[None]:
    """It asks transformers for what that calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def read_by_transformers(m: HfTuning, folder: Path, base: Path) -> torch.Tensor:
    """The mean loss, or the logits, of each text as transformers and peft compute them from the delivered files."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    auto = AutoModelForSequenceClassification if m.classes else AutoModelForCausalLM
    if m.spec.tuning == "lora":
        labels = {"num_labels": len(m.classes)} if m.classes else {}
        with peft_s_own_warnings():
            loaded = PeftModel.from_pretrained(auto.from_pretrained(base, **labels), str(folder))
    else:
        loaded = auto.from_pretrained(folder)
        assert loaded.dtype == torch.float32
    loaded = loaded.double().eval()
    file = (base if m.spec.tuning == "lora" else folder) / "tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
    found = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        if m.classes:
            limit = m.spec.max_length
            ids = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
            found.append(loaded(torch.tensor([ids])).logits[0])
        else:
            ids = torch.tensor([[*ids, 2][: m.spec.max_length + 1]])
            one = ids.shape[1] == 1
            found.append(torch.zeros(1) if one else loaded(ids, labels=ids).loss[None])
    return torch.stack(found).detach().double()


@pytest.mark.parametrize(
    ("path", "tuning"),
    [
        ("gpt2", "full"),
        ("gpt2", "head"),
        ("gpt2", "lora"),
        ("llama", "lora"),
        ("llama-tied", "bias-free"),
        ("llama-tied", "head"),
        ("roberta", "full"),
        ("roberta", "head"),
        ("roberta", "lora"),
        ("bert", "bias"),
        ("bert", "lora"),
    ],
)
def test_transformers_and_peft_compute_what_was_trained(
    models_root: Path, tmp_path: Path, path: str, tuning: str
) -> None:
    m = model(models_root, path, tuning="last_block" if tuning == "bias-free" else tuning)
    task = ClassificationTask(label="y", classes=list(m.classes)) if m.classes else LanguageModelTask()
    parameters = {name: value.float().double() for name, value in some_parameters(m).items()}  # as files hold them
    (folder := tmp_path / "a" / "b" / "c").mkdir(parents=True)
    artifacts = save_model(folder, m, parameters, task, FEATURES)
    assert {each.name for each in artifacts} == {each.name for each in folder.iterdir()}
    stored = StoredPart(Texts.of(TEXTS), np.zeros(len(TEXTS), dtype=np.int64))
    part = Tokens(m.folder, m.spec.max_length).of_part(stored, nothing)
    found = m.forward(parameters, records_of(part))
    wanted = read_by_transformers(m, folder, models_root / path)
    assert torch.allclose(found.mT, wanted, rtol=1e-5, atol=1e-6)  # Llama's own norms are in float32
    card = json.loads((folder / "model.json").read_text())
    assert card["kind"] == "hf" and (folder / card["weights"]).exists()
    assert set(card["tensors"]) == set(m.folder.trained(m.spec, m.outputs))


@pytest.mark.parametrize(("path", "tuning"), [("gpt2", "lora"), ("roberta", "head")])
def test_the_snippet_on_the_card_runs(
    models_root: Path, tmp_path: Path, path: str, tuning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = model(models_root, path, tuning=tuning)
    task = ClassificationTask(label="y", classes=list(m.classes)) if m.classes else LanguageModelTask()
    (folder := tmp_path / "a" / "b" / "c").mkdir(parents=True)
    save_model(folder, m, m.init(KEY), task, FEATURES)
    monkeypatch.setenv("SCRIMP_MODELS_ROOT", str(models_root))
    monkeypatch.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(json.loads((folder / "model.json").read_text())["usage"], {})  # noqa: S102 - ours
    (answer,) = ast.literal_eval(printed.getvalue())
    assert answer["class"] in m.classes if m.classes else len(answer["next"]) == 10


def test_the_documented_code_continues_a_text(
    models_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    m = model(models_root, "gpt2", tuning="lora")
    save_model(tmp_path, m, m.init(KEY), LanguageModelTask(), FEATURES)
    (snippet,) = re.findall(r"```python\n(.*?)```", LANGUAGE.read_text(), flags=re.DOTALL)
    monkeypatch.setenv("SCRIMP_MODELS_ROOT", str(models_root))
    monkeypatch.chdir(tmp_path)
    for ours, tiny in (("SmolLM2-135M-Instruct", "gpt2"), ("The jury said", "w1 w2"), ("=20", "=3")):
        assert ours in snippet
        snippet = snippet.replace(ours, tiny)
    with peft_s_own_warnings():
        exec(snippet, {})  # noqa: S102 - our own document, as a user would run it
    assert capsys.readouterr().out.startswith("w1 w2 ")


def test_first_parameters_are_the_folder_s_and_keyed(models_root: Path) -> None:
    m = model(models_root, "gpt2", tuning="lora")
    first = m.init(KEY)
    assert all(torch.equal(first[name], value) for name, value in m.init(KEY).items())
    assert all(float(value.abs().max()) == 0.0 for name, value in first.items() if "lora_B" in name)
    a = torch.cat([value.flatten() for name, value in first.items() if "lora_A" in name])
    assert 0.0 < float(a.abs().max()) <= 8**-0.5
    head = model(models_root, "roberta", tuning="head").init(KEY)
    assert list(head) == [f"classifier.{name}.{kind}" for name in ("dense", "out_proj") for kind in ("weight", "bias")]
    full = model(models_root, "llama", tuning="full")
    import safetensors.torch

    file = safetensors.torch.load_file(models_root / "llama" / "model.safetensors")
    assert all(torch.equal(value, file[name].double()) for name, value in full.init(KEY).items())


def test_tokens_are_a_function_of_one_text(models_root: Path) -> None:
    causal, classes = (Tokens(model(models_root, path).folder, 4) for path in ("gpt2", "roberta"))
    assert [causal.ids(text) for text in TEXTS[:3]] == [[5, 6, 7, 2], [8, 2], [2]]
    assert causal.ids(TEXTS[3]) == [9, 10, 11, 12, 13], "one more than what predicts"
    assert [classes.ids(text) for text in TEXTS[:4]] == [[0, 5, 6, 2], [0, 8, 2], [0, 2], [0, 9, 10, 2]]
    assert causal.ids("w1 " * 10**6) == [5] * 5 and causal.ids("\x00 \ud800") in ([3, 3, 2], [2], [0])
