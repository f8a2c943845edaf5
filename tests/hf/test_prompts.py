"""Prompts and answers: the loss is the answer's, a record's gradient exact, and a chat template a function of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from app.catalogue import model_folders
from app.sandbox.limited import WorkLimitError, run_limited
from core.contracts.dataset_spec import LanguageModelTask
from core.contracts.hf import HfModel
from core.contracts.job_spec import Clipping
from core.errors import InvalidRequest, LimitError
from core.parts import model_folder
from core.parts.chat import ChatTemplate, tried
from core.parts.model_folder import UnfitModelError
from core.parts.stored_records import Sequences, StoredPart, Texts
from tests.datasets.conftest import Api, new_api
from tests.datasets.conftest import spec as declared
from tests.hf.test_admission import post
from tests.hf.test_norms import KEY, LENGTH, model, norm, one_at_a_time, records, some_parameters, training
from tests.worker.test_meta import META, drawn, shapes
from worker.clipping.build import build_engine
from worker.data.loaded_parts import records_of
from worker.data.sequence_records import SequenceRecords
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.training.self_test import random_records, require_exact

PAIRS = [("w1 w2", "w3 w4"), ("", "w5"), ("w6 w7 w8", ""), ("w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11", "w12")]
TEMPLATE = (
    "{% for m in messages %}<s> {{ m.role == 'user' and 'w20' or 'w21' }} {{ m.content | trim }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> w21 {% endif %}"
)


def with_prompts(root: Path, path: str, **asked: Any) -> HfTuning:
    return replace(model(root, path, **asked), prompts=True)


def masked(n: int = 6) -> SequenceRecords:
    """The texts of tests/hf/test_norms.py; their first tokens are prompts of 0, 1, 2, … tokens."""
    made = records(n)
    made.labels = torch.arange(n).double()
    return made


def part_of(pairs: list[tuple[str, str]]) -> StoredPart:
    sizes = np.array([len(prompt.encode()) for prompt, _ in pairs], dtype=np.float64)
    return StoredPart(Texts.of([prompt + answer for prompt, answer in pairs]), sizes)


def chatting(root: Path, to: Path, template: Any = TEMPLATE, *, beside: bool = False) -> Path:
    """A copy of `gpt2` with a chat template: in its tokenizer's config, or in a file of its own."""
    folder = Path(shutil.copytree(root / "gpt2", to))
    if beside:
        (folder / "chat_template.jinja").write_text(template)
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "</s>"}))
    return folder


def test_tokens_are_the_prompt_s_the_answer_s_and_the_end(models_root: Path) -> None:
    tokens = Tokens(model(models_root, "gpt2").folder, 8, prompts=True)
    assert [tokens.answered(*pair) for pair in PAIRS[:3]] == [([5, 6, 7, 8, 2], 2), ([9, 2], 0), ([10, 11, 12, 2], 3)]
    ids, known = tokens.answered(*PAIRS[3])
    assert len(ids) == 9 == known, "the prompt leaves no room: nothing is predicted"
    made = tokens.of_part(part_of(PAIRS), lambda: None)
    assert isinstance(made.x, Sequences) and made.y.tolist() == [2.0, 0.0, 3.0, 9.0]
    accents = tokens.of_part(part_of([("é w1", "w2")]), lambda: None)
    assert accents.y.tolist() == [2.0], "prompts are stored by their bytes, not by their characters"


def test_the_loss_is_the_answer_s_alone(models_root: Path) -> None:
    m, batch = with_prompts(models_root, "gpt2", tuning="lora"), masked()
    parameters = some_parameters(m)
    found = m.forward(parameters, batch)[0]
    module = m.filled(parameters)
    ids, all_targets = batch.windows(LENGTH)
    logits = module(input_ids=(ids - 1).clamp(min=0)).logits
    for at in range(len(batch)):
        kept = [t for t in range(LENGTH) if all_targets[at, t] > 0 and t + 1 >= at]
        wanted = F.cross_entropy(logits[at, kept], all_targets[at, kept] - 1) if kept else torch.tensor(0.0)
        assert float(found[at]) == pytest.approx(float(wanted), rel=1e-9)
    means, losses = m.token_scores(parameters, batch)
    tokens, counts = m.predicted(batch)
    assert len(tokens) == len(losses) == int(counts.sum()) and torch.allclose(means, found)
    assert int(counts.sum()) < int((all_targets > 0).sum())


@pytest.mark.parametrize(("path", "tuning"), [("gpt2", "full"), ("llama", "lora")])
def test_clipped_sums_are_those_of_autograd_record_by_record(models_root: Path, path: str, tuning: str) -> None:
    m, batch = with_prompts(models_root, path, tuning=tuning), masked()
    parameters = some_parameters(m)
    alone = one_at_a_time(m, parameters, batch)
    norms = [norm(each) for each in alone]
    unmasked = one_at_a_time(replace(m, prompts=False), parameters, batch)
    assert norms[5] != pytest.approx(norm(unmasked[5])), "a prompt's tokens pull on nothing"
    C = float(np.median([each for each in norms if each > 0]))
    found = build_engine(m, Clipping(), training(C)).private_sum(parameters, batch)
    wanted = {
        name: sum((each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)), torch.zeros(1))
        for name in found
    }
    assert norm({name: found[name] - wanted[name] for name in found}) <= 1e-10 * norm(wanted)


def test_passes_have_one_shape_and_no_numbers(models_root: Path) -> None:
    m = replace(with_prompts(models_root, "gpt2", tuning="lora"), device=META)
    parameters, drawn_records = drawn(m)
    shapes(build_engine(m, Clipping(), training(1.0)).private_sum(parameters, drawn_records), parameters)
    cpu = with_prompts(models_root, "gpt2", tuning="lora", dtype=torch.float32)
    engine: Any = build_engine(cpu, Clipping(), training(1.0))
    plan: Any = SimpleNamespace(model=cpu, engine=engine, device=torch.device("cpu"))
    require_exact(plan)
    tried_on = random_records(cpu, 9, torch.Generator().manual_seed(0))
    assert float(tried_on.labels.min()) >= 0 and float(tried_on.labels.max()) > 0


@pytest.mark.parametrize("beside", [False, True])
def test_a_chat_template_writes_both_texts(models_root: Path, tmp_path: Path, beside: bool) -> None:
    chatting(models_root, tmp_path / "m", beside=beside)
    folder = model_folder.read(tmp_path, "m")
    template = ChatTemplate.of(folder)
    assert template.written(" w1 w2", "w3") == ("<s> w20 w1 w2 </s> <s> w21 ", "w3 </s> ")
    tokens = Tokens(folder, 8, prompts=True, chat=True)
    assert tokens.answered("w1 w2", "w3") == ([0, 24, 5, 6, 2, 0, 25, 7, 2], 7)


BOTH = "{% for m in messages %}{{ m.content }}{% endfor %}"
REFUSED = {
    "no template": (None, "no chat template"),
    "no Jinja": ("{% for %}", "not valid Jinja"),
    "it refuses": ("{{ raise_exception('no') }}", "fails: TemplateError"),
    "another order": ("{{ messages[-1].content }}{{ messages[0].content }}", "behind its prompt"),
    "no answer": ("{{ messages[0].content }}", "leaves the answer out"),
    "Python inside": ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "fails"),
    "by chance": ("{{ lipsum() }}{{ [1, 2] | random }}", "not valid Jinja"),
    "too long": ("x" * (1 << 19), "larger than"),
    "much more": ("{% for i in range(70000) %}x{% endfor %}" + BOTH, "adds more than"),
    "a product": ("{% set x = 'x' * 100 %}" + BOTH, "fails: TemplateError"),
    "a power": ("{% set x = 9 ** 9 %}" + BOTH, "fails: TemplateError"),
    "a format": ("{% set x = '%999s' % 'x' %}" + BOTH, "fails: TemplateError"),
    "a place in memory": ("{{ messages[0].content.upper }}" + BOTH, "fails: TemplateError"),
    "a place in memory, joined": ("{{ '' ~ messages[0].content.upper }}" + BOTH, "lie in memory"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_templates_that_are_of_no_use(models_root: Path, tmp_path: Path, case: str) -> None:
    template, says = REFUSED[case]
    folder = chatting(models_root, tmp_path / "m", template)
    answer = tried({"template": "", "config": str(folder / "tokenizer_config.json")})
    assert says in answer["refused"]


def test_what_no_template_can_write_has_no_answer(models_root: Path, tmp_path: Path) -> None:
    """An error would reveal something about the text."""
    picky = "{% if 'w9' in messages[0].content %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
    chatting(models_root, tmp_path / "m", picky)
    tokens = Tokens(model_folder.read(tmp_path, "m"), 8, prompts=True, chat=True)
    assert tokens.answered("w9", "w1") == ([0], 1) and tokens.answered("w8", "w1")[1] > 1
    with pytest.raises(ModelMissingError, match="chat template"):
        Tokens(model(models_root, "gpt2").folder, 8, prompts=True, chat=True)


def test_refusals_at_admission(models_root: Path, tmp_path: Path, migrated_database: Path) -> None:
    root = tmp_path / "models"
    chatting(models_root, root / "chat")
    shutil.copytree(models_root / "gpt2", root / "plain")
    api: Api = new_api(tmp_path / "home", migrated_database, models_root=root)
    rows = "q,a\n" + "".join(f'"w{i % 20}","w{i % 7} w{i % 11}"\n' for i in range(60))
    task = {"kind": "language_model", "prompt": "q"}
    answers = {"kind": "text", "column": "a"}
    assert api.upload(declared("asked", features=answers, task=task), rows).status_code == 201
    plain = declared("plain", features=answers, task={"kind": "language_model"})
    assert api.upload(plain, rows.replace("w3", "w4")).status_code == 201
    absent = api.upload(declared("absent", features=answers, task=task | {"prompt": "nothing"}), rows)
    assert absent.json()["errors"][0]["pointer"] == "/task/prompt"
    same = api.upload(declared("same", features=answers, task=task | {"prompt": "a"}), rows)
    assert same.status_code == 422 and "prompt cannot also be a feature" in same.text
    lines = "".join(json.dumps({"q": None if i == 7 else f"v{i}", "a": "w1"}) + "\n" for i in range(60))
    gap = api.upload(declared("gap", features=answers, task=task, format="jsonl"), lines)
    assert gap.json()["errors"][0]["pointer"] == "/task/prompt", gap.text
    chat = {"path": "chat", "chat": True}
    assert post(api, "asked", chat).status_code == 200
    for dataset, asked, says in (
        ("plain", chat, "no `task.prompt`"),
        ("asked", chat | {"path": "plain"}, "no chat template"),
    ):
        refused = post(api, dataset, asked).json()["errors"][0]
        assert refused["pointer"] == "/model/chat" and says in refused["detail"]
    whole, part = (post(api, name, {"path": "plain"}).json() for name in ("plain", "asked"))
    assert whole["charge"] == part["charge"] and whole["noise_multiplier"] == part["noise_multiplier"]
    api.close()


def test_records_of_a_part_are_masked(models_root: Path) -> None:
    m = with_prompts(models_root, "gpt2", tuning="head")
    part = Tokens(m.folder, LENGTH, prompts=True).of_part(part_of(PAIRS), lambda: None)
    _, counts = m.predicted(records_of(part))  # type: ignore[arg-type]
    assert counts.tolist() == [3, 1, 1, 0]
    assert LanguageModelTask(prompt="q").label_column == "q" and KEY
    with pytest.raises(UnfitModelError):
        ChatTemplate("{% if %}", {})


def test_a_busy_machine_says_nothing_of_a_chat_template(
    models_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chatting(models_root, tmp_path / "m")
    ends = [LimitError("a test")]

    def once_busy(*arguments: Any, **how: Any) -> dict[str, Any]:
        if ends:
            raise ends.pop()
        return run_limited(*arguments, **how)

    monkeypatch.setattr(model_folders, "run_limited", once_busy)
    model_folders._chat_refusal.cache_clear()
    chatty = HfModel(path="m", max_length=8, chat=True)
    with pytest.raises(LimitError):
        model_folders.resolved(chatty, tmp_path, 2, prompts=True)
    assert model_folders.resolved(chatty, tmp_path, 2, prompts=True).sha256  # type: ignore[union-attr]
    ends.append(WorkLimitError("a test"))
    model_folders._chat_refusal.cache_clear()
    for _ in range(2):  # the folder's own fault is kept
        with pytest.raises(InvalidRequest, match="more than 10 s of a processor"):
            model_folders.resolved(chatty, tmp_path, 2, prompts=True)
