"""Brown text in three parts by a hash of the file: public (a small GPT is pretrained on it), private, held out."""

from __future__ import annotations

import csv
import hashlib
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from benchmarks.reproduce.runs import ROOT, Data
from core.parts import model_folder
from core.parts.stored_records import StoredPart, Texts
from worker.data.loaded_parts import records_of
from worker.data.sequence_records import SequenceRecords
from worker.models.hf.tokens import Tokens

sys.path.insert(0, str(ROOT / "scripts"))
import add_model
import fetch_data

MODELS = fetch_data.cache_folder() / "models"
SMALL, SMOL = "small-gpt-brown", "SmolLM2-135M-Instruct"
VOCABULARY, WIDTH, BLOCKS, LENGTH = 2048, 96, 3, 32
PRETRAINING = {"steps": 600, "batch": 48, "learning_rate": 2e-3}


@cache
def texts(part: str) -> list[str]:
    """Paragraphs of at least five words: `public` 40 % of the files, `private` 50 %, `holdout` 10 %."""
    with fetch_data.fetch_brown().open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if len(row["text"].split()) >= 5]
    return [row["text"] for row in rows if _part(row["file"]) == part]


def _part(file: str) -> str:
    place = hashlib.sha256(file.encode()).digest()[0] % 10
    return "public" if place < 4 else "private" if place < 9 else "holdout"


def data(path: str, length: int, scored: int) -> Data:
    """The private part to train on, and so many paragraphs of the hold-out, as a model reads them."""
    tokens = Tokens(model_folder.read(MODELS, path), length)
    return Data(
        task={"kind": "language_model"},
        features={"kind": "text", "column": "text"},
        train=_records(tokens, texts("private")),
        holdout=_records(tokens, texts("holdout")[:scored]),
        features_count=1,
        outputs=1,
        models_root=MODELS,
    )


def few(path: str, length: int, rows: int) -> SequenceRecords:
    """Long paragraphs of the private part: to time a step with."""
    long = [text for text in texts("private") if len(text.split()) > length][:rows]
    return _records(Tokens(model_folder.read(MODELS, path), length), long)


def _records(tokens: Tokens, of: list[str]) -> SequenceRecords:
    part = tokens.of_part(StoredPart(Texts.of(of), np.zeros(len(of))), lambda: None)
    found = records_of(part)
    assert isinstance(found, SequenceRecords)
    return found


def smol() -> Path:
    return add_model.fetch_smollm2(MODELS / SMOL)


def small() -> Path:
    """A GPT-2 of 3 blocks of 96, pretrained on the public part with a tokenizer made of it; kept in the cache."""
    folder = MODELS / SMALL
    if (folder / "model.safetensors").exists():
        return folder
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts("public"), VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False)
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_positions": 64, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": 4, "vocab_size": VOCABULARY}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ends, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
    stream = torch.tensor([id_ for text in texts("public") for id_ in (*tokenizer.encode(text).ids, 0)])
    _pretrain(model, stream)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    model.save_pretrained(folder)
    return folder


def _pretrain(model: torch.nn.Module, stream: torch.Tensor) -> None:
    steps, batch, rate = (PRETRAINING[name] for name in ("steps", "batch", "learning_rate"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=int(steps))
    for _ in range(int(steps)):
        starts = torch.randint(0, len(stream) - 64, (int(batch),))
        ids = stream[starts[:, None] + torch.arange(64)]
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
