"""The jobs whose stored documents are written down in stored_v1.json: one of each kind of plan."""

from __future__ import annotations

from typing import Any

from tests.factories import job_spec

RDP = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "rdp"}
PUBLIC = {"sensitivity": "public"}
USERS = RDP | {"filter": "gdp", "unit": "user", "user_column": "u", "max_records_per_user": 5}
INTERACTIONS: dict[str, Any] = {
    "privacy": RDP | {"filter": "gdp", "unit": "user"},
    "format": "interactions",
    "task": {"kind": "next_item"},
    "features": {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "first": 1, "count": 50}},
    "holdout": {"kind": "last_item"},
}
TEXTS = {"task": {"kind": "language_model"}, "features": {"kind": "text", "column": "text"}, "format": "jsonl"}

BATCHES = {"kind": "poisson", "expected_batch_size": 80}
DP2 = {
    "kind": "dp2_rmsprop",
    "learning_rate": 0.5,
    "learning_rate_adaptive": 0.1,
    "max_grad_norm_adaptive": 3.0,
    "delay": 3,
}
LM = {
    "kind": "hf",
    "path": "gpt2",
    "sha256": "0" * 64,
    "architecture": "gpt2",
    "parameters": 10_000,
    "trained": 1000,
    "vocabulary": 400,
    "pass_numbers": 5000,
}
REC = {"kind": "transformer_rec", "max_length": 20, "re_attention": {"mode": "logits"}}
CENTER = {"kind": "linear", "center": {"max_norm": 2.0, "noise_mu": 0.05}}
SPACE = {"learning_rate": [0.1, 10.0], "steps": [5, 100]}
SCORE = {"kind": "private_count", "noise_mu": 0.01}
SCALING = {"space": SPACE, "levels": [0.1, 0.2], "runs_per_level": 2, "score": SCORE}

# name: changes of the job, changes of the data set
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full batch": ({}, {}),
    "sigma given": ({"privacy": {"noise_multiplier": 20.0, "target_delta": 1e-6}}, {}),
    "poisson": ({"sampling": BATCHES, "length": {"epochs": 2}}, {"privacy": RDP}),
    "adaptive": ({"clipping": {"kind": "adaptive", "max_grad_norm": 0.1}}, {}),
    "adaptive, its count given": (
        {"clipping": {"kind": "adaptive", "adaptive": {"count_noise_multiplier": 500.0}}},
        {"privacy": RDP},
    ),
    "per layer": ({"clipping": {"kind": "per_layer", "max_grad_norm": 0.5}, "evaluation": None}, {}),
    "two metrics": ({"evaluation": {"metrics": ["accuracy", "loss"], "loss_bound": 0.5, "points": 2}}, {}),
    "groups": ({"evaluation": {"on": "train", "noise_mu": 0.02, "groups": {"rare": [1]}}}, {}),
    "users": ({}, {"privacy": USERS}),
    "phases": ({"optimizer": DP2}, {}),
    "two queries": ({"optimizer": DP2 | {"variant": "extra_query"}, "sampling": BATCHES}, {"privacy": RDP}),
    "mean": ({"model": CENTER}, {}),
    "histogram": (
        {
            "model": REC | {"re_attention": {"mode": "logits", "frequencies": "noisy", "noise_mu": 0.05}},
            "evaluation": {"ranking": {"k": 10}},
        },
        INTERACTIONS,
    ),
    "tokens": ({"model": LM, "evaluation": {"loss_bound": 8.0, "by_frequency": True}}, TEXTS),
    "private on public data": ({}, {"privacy": PUBLIC}),
    "public": ({"privacy": None, "seed": 7}, {"privacy": PUBLIC}),
    "scaling": ({"hpo": SCALING, "model": CENTER}, {}),
    "scaling, batches": (
        {"hpo": SCALING | {"space": {"learning_rate": [0.1, 10.0]}}, "sampling": BATCHES, "evaluation": None},
        {"privacy": RDP},
    ),
    "scaling, phases": ({"hpo": SCALING | {"score": SCORE | {"on": "holdout"}}, "optimizer": DP2}, {}),
    "scaling, adaptive, users": (
        {"hpo": SCALING, "evaluation": {"noise_mu": 0.05, "groups": {"rare": [1]}}},
        {"privacy": USERS},
    ),
    "random_k": (
        {
            "hpo": {"strategy": "random_k", "space": SPACE, "runs": 3, "score": SCORE},
            "evaluation": None,
            "clipping": {"kind": "adaptive"},
        },
        {},
    ),
    "oracle": (
        {
            "hpo": {"strategy": "grid_oracle", "space": {"learning_rate": [0.1, 1.0], "points": {"learning_rate": 2}}},
            "evaluation": None,
            "seed": 3,
        },
        {"privacy": PUBLIC},
    ),
    "search without privacy": (
        {
            "hpo": {"strategy": "random_k", "space": SPACE, "runs": 2, "score": {"kind": "public"}},
            "privacy": None,
            "evaluation": None,
            "seed": 3,
        },
        {"privacy": PUBLIC},
    ),
}


def job_of(name: str) -> dict[str, Any]:
    """The specification of a case, as it is sent."""
    spec = job_spec("ds_x", **CASES[name][0])
    if "hpo" in CASES[name][0] and spec["privacy"] is not None:
        spec["privacy"] = {"target_epsilon": 2.0}
    return spec
