"""Recipes: JobSpecs that lack only the data set and the total ε."""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A recipe: a JobSpec without data set and total ε, with advice on its use."""

    summary: str
    when_to_use: str
    source: str
    spec: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "linear_probe": Preset(
        "A linear layer on the features as they are, or as a frozen public extractor computes them "
        "(`model.extractor`): no bias, from zeros, full batch, momentum 0.9, no weight decay, the free step at "
        "the end; steps, clipping norm and learning rate from public numbers. One run gets the whole total.",
        "Classification with good features. Give the data set and the total ε; nothing else needs a choice. The quote "
        "says which numbers, and why there is no search (`resolved`). To search, set `hpo` to `linear_scaling`. "
        "If the data set has a hold-out, set `evaluation.on` to `holdout`: its own account pays for the score then.",
        'Panda, Tang, Mahloujifar, Sehwag & Mittal 2024, "A New Linear Scaling Rule for Private Adaptive '
        'Hyperparameter Optimization", Section 3. Its centring of features by a private mean is `model.center`; '
        "one mean serves a whole study.",
        {
            "model": {"kind": "linear", "bias": False, "init": "zeros"},
            "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "free_step": True},
            "clipping": {"kind": "flat", "max_grad_norm": "auto"},
            "sampling": {"kind": "full_batch"},
            "length": {"steps": "auto"},
            "evaluation": {"on": "train", "noise_mu": 0.01},
            "hpo": {"strategy": "auto"},
        },
    ),
}
