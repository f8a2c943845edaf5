"""`scrimp.load_model`: a finished model from its files. It needs torch, which importing `scrimp` does not load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.predicting.loaded import LoadedModel

NEEDED = {"torch": "worker", "safetensors": "worker", "mpmath": "worker", "opacus": "worker"} | dict.fromkeys(
    ("transformers", "tokenizers"), "hf"
)


def load_model(folder: str | Path, models_root: str | Path | None = None) -> LoadedModel:
    """Loads a finished model: `scrimp.load_model(folder).predict(records)`.

    Args:
        folder: the job's files, as `scrimp jobs fetch JOB --to FOLDER` writes them: model.json and the weights.
        models_root: the folder of extractors, and of the models that adapters were tuned from; default: the
            environment's SCRIMP_MODELS_ROOT.

    Raises:
        ValueError: the folder holds no model, or a file in it differs from its card.
        ImportError: torch or transformers is not installed; the text says what to install.
    """
    root = models_root or os.environ.get("SCRIMP_MODELS_ROOT")
    try:
        from worker.predicting.loaded import load

        return load(Path(folder), Path(root) if root else None)
    except ModuleNotFoundError as error:
        extra = NEEDED.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ImportError(f"load_model needs {error.name}: pip install 'scrimp[{extra}]'") from error
