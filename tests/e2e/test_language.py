"""Hugging Face models through the real service: priced, tuned privately, and loaded again by transformers and peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scrimp.errors import PredictionFailed
from tests.e2e.conftest import Service, until
from tests.e2e.test_spine import finished, submit
from tests.hf.test_files import peft_s_own_warnings
from tests.hf.tiny import VOCABULARY, WORDS, write

ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
PRIVACY = {"sensitivity": "private", "records": 400, "cap": {"epsilon": 20.0, "delta": 1e-4}, "filter": "rdp"}


def texts(path: Path, *, labelled: bool) -> Path:
    """Words that count up, from a start of its own each; the label says whether the start is even."""
    generator = np.random.default_rng(0)
    rows = []
    for start, length in zip(generator.integers(0, 26, 400), generator.integers(2, 7, 400), strict=True):
        text = " ".join(f"w{(start + 2 * at) % 28}" for at in range(length))
        rows.append({"text": text, **({"even": "yes" if start % 2 == 0 else "no"} if labelled else {"n": int(start)})})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spec(name: str, task: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "format": "jsonl",
        "task": task,
        "features": {"kind": "text", "column": "text"},
        "privacy": PRIVACY | {"order": 4.0},
        "holdout": {"kind": "split", "fraction": 0.25},
    }


def job(dataset: str, model: dict[str, Any], **evaluation: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "model": {"kind": "hf", "max_length": 6} | model,
        "optimizer": {"kind": "dp_adam", "learning_rate": 0.03},
        "privacy": {"target_epsilon": 8.0},
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 64},
        "length": {"steps": 40},
        "evaluation": {"on": "holdout", "noise_mu": 0.5} | evaluation,
    }


def delivered(service: Service, ended: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    with service.client() as client:
        for artifact in ended["artifacts"]:
            answer = client._http.get(f"/v1/jobs/{ended['id']}/artifacts/{artifact['name']}")
            (folder / artifact["name"]).write_bytes(answer.content)
    return folder


def pairs(path: Path, seed: int = 1) -> Path:
    """A start, and the words that count up from it."""
    starts = np.random.default_rng(seed).integers(0, 26, 400)
    rows = [{"start": f"w{at}", "then": f"w{at + 1} w{at + 2}", "n": n} for n, at in enumerate(starts.tolist())]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.nightly  # tests/hf trains and asks such models in process
@ON_SQLITE
def test_answers_to_prompts_in_a_chat(service: Service, tmp_path: Path) -> None:
    folder = write(service.models / "tiny" / "chat", "qwen2")
    begin = "{% if add_generation_prompt %}<s> {% endif %}"
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<s> {{ m.content }} </s> {% endfor %}" + begin)
    task, features = {"kind": "language_model", "prompt": "start"}, {"kind": "text", "column": "then"}
    with service.client() as client:
        client.create_dataset(spec("answers", task) | {"features": features}, pairs(tmp_path / "p"))
    wanted = job("answers", {"path": "tiny/chat", "chat": True, "max_length": 8}, loss_bound=10.0)
    ended = finished(service, submit(service, wanted | {"length": {"steps": 10}, "privacy": {"target_epsilon": 4.0}}))
    assert ended["status"] == "succeeded", ended["failure"]
    assert ended["metrics"]["loss"]["released_by"] == "noisy_sum" and 0 < ended["metrics"]["loss"]["value"] < 10
    certificate = until(lambda: service.get(f"/v1/jobs/{ended['id']}/certificate").get("certificate"))
    assert 3.9 < certificate["epsilon"]["value"] <= 4.0


@pytest.mark.nightly  # by day: tests/hf/test_examined.py
@ON_SQLITE
def test_a_mixture_of_experts_is_refused_at_no_cost(service: Service, tmp_path: Path) -> None:
    """Before any record is read; the error names the module."""
    write(service.models / "tiny" / "experts", "mixtral", num_local_experts=2, num_experts_per_tok=1)
    with service.client() as client:
        features = {"features": {"kind": "text", "column": "then"}}
        client.create_dataset(spec("mixed", {"kind": "language_model"}) | features, pairs(tmp_path / "m", seed=2))
    ended = finished(service, submit(service, job("mixed", {"path": "tiny/experts"}, loss_bound=10.0)))
    assert ended["status"] == "failed" and ended["failure"]["code"] == "model-unfit"
    assert "model.layers.0.mlp" in ended["failure"]["message"]
    assert service.get("/v1/datasets/mixed/ledger")["accounts"]["train"]["spent"] == 0


@ON_SQLITE
def test_texts_from_post_to_adapters(service: Service, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import GPT2LMHeadModel

    write(service.models / "tiny" / "gpt2", "gpt2")
    with service.client() as client:
        client.create_dataset(spec("counting", {"kind": "language_model"}), texts(tmp_path / "a", labelled=False))
    wanted = job("counting", {"path": "tiny/gpt2", "tuning": "lora"}, loss_bound=10.0, by_frequency=True)
    adapters = finished(service, submit(service, wanted))
    assert adapters["status"] == "succeeded", adapters["failure"]
    loss = adapters["metrics"]["loss"]
    assert loss["released_by"] == "noisy_sum" and loss["std"] > 0 and 0 < loss["value"] < 10
    assert adapters["metrics"]["loss:rank-0-31"]["released_by"] == "post_processing", "of the one release"
    certificate = until(lambda: service.get(f"/v1/jobs/{adapters['id']}/certificate").get("certificate"))
    assert certificate["epsilon"]["unit"] == "example" and 7.9 < certificate["epsilon"]["value"] <= 8.0
    assert certificate["mechanism"]["releases"][0]["ranks"] == VOCABULARY
    (weights,) = (each for each in adapters["artifacts"] if each["name"] == "adapter_model.safetensors")
    assert certificate["released"]["weights"] and certificate["model_sha256"] == weights["sha256"]
    with peft_s_own_warnings():
        base = GPT2LMHeadModel.from_pretrained(service.models / "tiny" / "gpt2")
        adapted = PeftModel.from_pretrained(base, str(delivered(service, adapters, tmp_path / "lora")))
    trained = [value for name, value in adapted.named_parameters() if "lora_B" in name]
    assert len(trained) == 2 and all(value.abs().max() > 0 for value in trained), "an adapter in each block"
    names = {each["name"] for each in adapters["artifacts"]}
    assert names == {"README.md", "adapter_config.json", "adapter_model.safetensors", "model.json"}
    with service.client() as client:
        said = client.predict(adapters["id"], ["w4 w6 w8", ""], top=3)
        (service.models / "tiny" / "gpt2" / "tokenizer.json").write_text("{}")
        with pytest.raises(PredictionFailed, match="has changed since"):
            client.predict(adapters["id"], ["w4"])
    assert [each["tokens"] for each in said] == [3, 0] and all(each["token"] in WORDS for each in said[0]["next"])


@pytest.mark.nightly  # by day adapters, above, and classifiers in tests/hf: test_files.py, test_predicting.py
@ON_SQLITE
def test_texts_from_post_to_classifiers(service: Service, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast, RobertaForSequenceClassification

    write(service.models / "tiny" / "roberta", "roberta")
    with service.client() as client:
        labels = {"kind": "classification", "label": "even", "classes": ["no", "yes"]}
        client.create_dataset(spec("starts", labels), texts(tmp_path / "b", labelled=True))
    classifier = finished(service, submit(service, job("starts", {"path": "tiny/roberta", "tuning": "head"})))
    assert classifier["status"] == "succeeded", classifier["failure"]
    assert classifier["metrics"]["auc"]["released_by"] == "noisy_count"
    loaded = RobertaForSequenceClassification.from_pretrained(delivered(service, classifier, tmp_path / "head"))
    assert loaded.config.id2label == {0: "no", 1: "yes"} and loaded.classifier.out_proj.bias.abs().max() > 0
    names = {each["name"] for each in classifier["artifacts"]}
    assert names == {"README.md", "config.json", "model.json", "model.safetensors", "tokenizer.json"}
    with service.client() as client:
        (asked,) = client.predict(classifier["id"], ["w4 w6 w8"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "head" / "tokenizer.json"))
    inputs = tokenizer("w4 w6 w8", return_tensors="pt", return_token_type_ids=False)
    shares = torch.softmax(loaded.eval()(**inputs).logits[0].detach(), dim=0)
    assert asked["probabilities"]["yes"] == pytest.approx(float(shares[1]), rel=1e-4)
