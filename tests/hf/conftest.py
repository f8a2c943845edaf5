"""One folder of tiny models for all tests here: importing transformers takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hf.tiny import SIZES, write


@pytest.fixture(scope="session")
def models_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `gpt2`, `llama`, `roberta`, `bert`, and Llama's kind with a tied head; nobody changes them."""
    root = tmp_path_factory.mktemp("models")
    for kind in SIZES:
        write(root / kind, kind)
    write(root / "llama-tied", "llama", tie_word_embeddings=True)
    return root
