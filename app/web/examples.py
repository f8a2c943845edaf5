"""The examples of the OpenAPI document. A test checks each against its schema."""

from __future__ import annotations

from typing import Any

JOB, DATASET, KEY = "job_y5mdddr75d43fzczji4ic", "ds_oieyack5x3pk6waktav42", "key_x74jpfzj3f4pmhwgi7u4q"
SHA = "c0286b6da732cee2e7488bbe3f718a66af999e2951f1e2130897ff107e6e8d4f"
UNIT = "mu^2 * 1e-12"

JOB_SPECS: dict[str, Any] = {
    "a target ε, full batch": {
        "dataset": DATASET,
        "name": "logistic regression, ε = 1",
        "model": {"kind": "linear", "bias": False},
        "optimizer": {"kind": "dp_sgd", "learning_rate": 30.0, "momentum": 0.9, "free_step": True},
        "privacy": {"target_epsilon": 1.0},
        "clipping": {"kind": "flat", "max_grad_norm": 1.0},
        "sampling": {"kind": "full_batch"},
        "length": {"steps": 50},
        "evaluation": {"on": "holdout", "noise_mu": 0.05},
    },
    "a noise multiplier, Poisson sampling": {
        "dataset": DATASET,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5},
        "privacy": {"noise_multiplier": 2.0, "target_delta": 1e-5},
        "sampling": {"kind": "poisson", "expected_batch_size": 512},
        "length": {"epochs": 5.0},
    },
    "a convolutional network on images, clipped layer by layer": {
        "dataset": DATASET,
        "model": {"kind": "cnn", "preset": "conv2", "input_scale": 1 / 255},
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5},
        "privacy": {"target_epsilon": 2.0},
        "clipping": {"kind": "per_layer", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 512},
        "length": {"epochs": 10.0},
    },
    "a study of learning rate and steps, on one total": {
        "dataset": DATASET,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9, "free_step": True},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 50},
        "hpo": {
            "strategy": "linear_scaling",
            "levels": [0.1, 0.2],
            "runs_per_level": 3,
            "space": {"learning_rate": [0.01, 100.0], "steps": [5, 100]},
            "score": {"kind": "private_count", "noise_mu": 0.01},
        },
    },
    "adapters in a language model": {
        "dataset": DATASET,
        "model": {"kind": "hf", "path": "distilgpt2", "tuning": "lora", "lora": {"rank": 8}, "max_length": 128},
        "optimizer": {"kind": "dp_adam", "learning_rate": 1e-3},
        "privacy": {"target_epsilon": 3.0},
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 256},
        "length": {"epochs": 3.0},
        "evaluation": {"on": "holdout", "noise_mu": 0.1, "loss_bound": 12.0},
    },
    "public data, without privacy": {
        "dataset": DATASET,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5},
        "privacy": None,
        "length": {"steps": 200},
        "evaluation": {"on": "holdout", "points": 4},
        "seed": 7,
    },
}

PRIVATE = {"sensitivity": "private", "records": 25000, "cap": {"epsilon": 4.0, "delta": 1e-5}}
DATASET_SPECS: dict[str, Any] = {
    "csv, text": {
        "name": "imdb-reviews",
        "format": "csv",
        "task": {"kind": "classification", "label": "label", "classes": [0, 1]},
        "features": {"kind": "text", "column": "text"},
        "privacy": {**PRIVATE, "filter": "gdp"},
        "holdout": {"kind": "split", "fraction": 0.2},
    },
    "parquet, columns": {
        "name": "incomes",
        "format": "parquet",
        "task": {"kind": "regression", "label": "income"},
        "features": {"kind": "columns", "columns": ["age", "hours", "education_years"]},
        "privacy": {
            **PRIVATE,
            "filter": "rdp",
            "typical_job": {"epsilon": 0.5, "expected_batch_size": 512, "epochs": 5.0},
        },
        "holdout": {"kind": "public"},
    },
    "npz, a tensor": {
        "name": "digits",
        "format": "npz",
        "task": {"kind": "classification", "label": "y", "classes": list(range(10))},
        "features": {"kind": "tensor", "array": "x"},
        "privacy": {"sensitivity": "public"},
        "holdout": {"kind": "split", "fraction": 0.2},
    },
}
SPECS_WITHOUT_FILE: dict[str, Any] = {
    "jsonl, by path": {
        "name": "tickets",
        "format": "jsonl",
        "task": {"kind": "classification", "label": "queue", "classes": ["billing", "delivery", "other"]},
        "features": {"kind": "hashed_text", "column": "text", "ngrams": [1, 2]},
        "privacy": {**PRIVATE, "filter": "rdp", "order": 8.0},
        "path": "tickets/2026.jsonl",
    },
    "csv, by upload in pieces": {
        "name": "visits",
        "format": "csv",
        "task": {"kind": "classification", "label": "came_back", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["age", "days"]},
        "privacy": {**PRIVATE, "filter": "gdp"},
        "upload": "up_4zq7x2m5k3v6n2b7c4d5f",
    },
}
UPLOAD = {
    "id": "up_4zq7x2m5k3v6n2b7c4d5f",
    "size": 5368709120,
    "offset": 67108864,
    "expires_at": "2026-03-02T09:30:00.000000Z",
}
GRAPH = {
    "sha256": "3f5d2ab17c09e84466d1c7a59be2f0837d64a1c5e9b20f8d7613ac42e5908b7d",
    "bytes": 41216,
    "parameters": 2410,
    "trained": 2410,
    "inputs": 36,
    "outputs": 2,
    "created_at": "2026-03-01T09:30:00.000000Z",
    "used_at": "2026-03-01T09:31:00.000000Z",
}


def _epsilon(value: float, accountant: str = "gdp") -> dict[str, Any]:
    return {
        "value": value,
        "delta": 1e-5,
        "accountant": accountant,
        "unit": "example",
        "relation": "add_or_remove_one",
    }


def _events(count: int, noise_multiplier: float) -> dict[str, Any]:
    gaussian = {"kind": "gaussian", "noise_multiplier": noise_multiplier}
    return {"kind": "composed", "events": [{"kind": "self_composed", "count": count, "event": gaussian}]}


QUOTE: dict[str, Any] = {
    "noise_multiplier": 26.379549270876705,
    "sample_rate": 1.0,
    "steps": 50,
    "expected_batch_size": 20000,
    "mechanism": {"train": _events(50, 26.379549270876705), "holdout": _events(1, 20.0)},
    "epsilon": _epsilon(1.0),
    "comparison": {"gdp": 1.0, "rdp": 1.0926, "pld": 1.0000033},
    "charge": {"train": 71851404655, "holdout": 2500000001, "unit": UNIT},
    "lines": [
        {"what": "training", "account": "train", "epsilon": _epsilon(1.0), "charge": 71851404655},
        {"what": "evaluation", "account": "holdout", "epsilon": _epsilon(0.16), "charge": 2500000001},
    ],
    "scores": [{"name": "accuracy", "std": 0.004}],
    "fits": True,
    "remaining_after": {"train": 783645760800, "holdout": 852997165454, "unit": UNIT},
    "largest_epsilon_that_fits": 3.986,
    "jobs_that_fit": 11,
    "estimated_duration_s": 4.2,
    "start": {"claims_before": 3, "at_least": False, "in_s": 9.0},
    "warnings": [],
}

SWEEP: dict[str, Any] = {
    "spec": {
        "dataset": DATASET,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 30.0, "momentum": 0.9, "free_step": True},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 50},
        "hpo": {"strategy": "linear_scaling", "space": {"learning_rate": [1.0, 1000.0], "steps": [5, 100]}},
    },
    "total_epsilon": [0.2, 1.0, 4.0],
    "levels": [[0.05, 0.1], [0.1, 0.2]],
    "runs_per_level": [1, 3],
}
SWEPT: dict[str, Any] = {
    "points": [
        {
            "total_epsilon": 1.0,
            "levels": [0.1, 0.2],
            "runs_per_level": 3,
            "runs": 7,
            "final": _epsilon(0.879),
            "smallest_total_epsilon": None,
            "reason": None,
        },
        {
            "total_epsilon": 0.2,
            "levels": [0.1, 0.2],
            "runs_per_level": 3,
            "runs": 7,
            "final": None,
            "smallest_total_epsilon": 0.4272,
            "reason": "trials and scores leave nothing of the total for the final trial: the smallest total that "
            "works is ε = 0.4272",
        },
    ]
}

METRIC = {
    "name": "accuracy",
    "step": 50,
    "value": 0.8246,
    "std": 0.004,
    "on": "holdout",
    "released_by": "noisy_count",
}
JOB_VIEW: dict[str, Any] = {
    "id": JOB,
    "name": "logistic regression, ε = 1",
    "dataset": DATASET,
    "status": "running",
    "spec": JOB_SPECS["a target ε, full batch"],
    "quote": QUOTE,
    "progress": {"step": 12, "steps": 50, "elapsed_s": 1.1, "remaining_s": 3.5},
    "epsilon_spent": _epsilon(1.0),
    "charged": None,
    "attempts": [
        {
            "number": 1,
            "worker": "node-1:4711",
            "status": "running",
            "started_at": "2026-03-01T09:00:00Z",
            "ended_at": None,
        }
    ],
    "metrics": {},
    "failure": None,
    "warnings": [],
    "artifacts": [],
    "created_at": "2026-03-01T08:59:58Z",
    "started_at": "2026-03-01T09:00:00Z",
    "finished_at": None,
}
TRIALS: dict[str, Any] = {
    "items": [
        {
            "job": "job_wxy3vqkyiwcxjxkyuuopa",
            "number": 0,
            "role": "pilot",
            "level": 0,
            "status": "succeeded",
            "learning_rate": 0.61,
            "steps": 14,
            "max_grad_norm": None,
            "r": 8.54,
            "mu": 0.0325208,
            "epsilon": _epsilon(0.1),
            "charge": {"train": 1157601396, "holdout": 0},
            "score": {"name": "accuracy", "value": 0.7413, "std": 0.004, "on": "train"},
            "chosen": False,
        }
    ],
    "next": None,
    "study": {
        "strategy": "linear_scaling",
        "seed": "5b1f0c6f0a4e4f0f9c2d7e8a1b3c4d5e",
        "runs": 7,
        "ended": 1,
        "fit": None,
        "chosen": None,
        "procedure": _epsilon(1.0),
        "final_run": _epsilon(0.879),
        "keeps_weights": False,
    },
}
EVENTS: list[dict[str, Any]] = [
    {
        "seq": 1,
        "type": "queued",
        "data": {"charge": {"train": 71851404655, "holdout": 2500000001, "unit": UNIT}},
        "at": "2026-03-01T08:59:58Z",
    },
    {
        "seq": 2,
        "type": "attempt_started",
        "data": {"attempt": 1, "worker": "node-1:4711"},
        "at": "2026-03-01T09:00:00Z",
    },
]
EVENT_STREAM = (
    'id: 2\nevent: attempt_started\ndata: {"seq":2,"type":"attempt_started",'
    '"data":{"attempt":1,"worker":"node-1:4711"},"at":"2026-03-01T09:00:00Z"}\n\n'
    ": keep-alive\n\n"
    'event: end\ndata: {"after": 2}\n\n'
)

ACCOUNT = {
    "filter": "gdp",
    "order": None,
    "unit": UNIT,
    "budget": 855497165455,
    "spent": 71851404655,
    "held": 0,
    "remaining": 783645760800,
    "share_spent": 0.08398790,
    "share_held": 0.0,
}
VERDICT = {"valid": True, "entries": 3, "head": SHA, "first_bad_entry": None, "problem": None, "heads": 2}
OF_CHECK = {"checked_at": "2026-03-01T09:00:00Z", "checked_entries": 3, "checked_head": SHA}
OF_CHECK |= {"went_on_after": 0, "in_full_at": "2026-03-01T09:00:00Z"}
CHECK = VERDICT | OF_CHECK | {"stale": False, "queued": False}
HOLDOUT_ACCOUNT = {**ACCOUNT, "spent": 2500000001, "remaining": 852997165454, "share_spent": 0.00292227}
PER_JOB = {"train": 71851404655, "holdout": 2500000001}
FORECAST = {"jobs_that_fit": 10, "per_job": PER_JOB, "share_per_job": 0.08398790}
FIXED = _epsilon(1.0, "pld")
COMPARISON = {"basic": _epsilon(1.0), "rdp_best_order": _epsilon(1.093, "rdp"), "pld_if_fixed_in_advance": FIXED}
LEDGER: dict[str, Any] = {
    "cap": _epsilon(4.0),
    "largest_cap": _epsilon(4.0),
    "accounts": {"train": ACCOUNT, "holdout": HOLDOUT_ACCOUNT},
    "epsilon_spent": _epsilon(1.0),
    "epsilon_spent_and_held": _epsilon(1.0),
    "epsilon_filter": _epsilon(1.0),
    "epsilon_remaining": _epsilon(3.8),
    "comparison": COMPARISON,
    "entries": 3,
    "head": SHA,
    "cap_version": "5f1b7c3e9d2a4068",
}
DATASET_VIEW: dict[str, Any] = {
    "id": DATASET,
    **{name: DATASET_SPECS["csv, text"][name] for name in ("name", "format", "task", "features", "privacy", "holdout")},
    "owner": KEY,
    "access": "train",
    "max_epsilon_per_job": None,
    "shape": {"records_train": 20000, "records_holdout": 5000, "features": 1, "outputs": 2, "sparse": False}
    | {"slots": {"train": {"units": 21444, "rows": 21444}, "holdout": {"units": 5694, "rows": 5694}}},
    "content_hmac": SHA,
    "content_sha256": None,
    "ledger": {**LEDGER, "comparison": None},
    "created_at": "2026-02-27T12:00:00Z",
}

# What is too long to stand at its route.
PREDICTION: dict[str, Any] = {
    "id": "pred_4zq7x2m5k3v6n1b8c9d0fa",
    "job": JOB_VIEW["id"],
    "status": "queued",
    "predictions": None,
    "failure": None,
    "created_at": "2026-02-27T12:00:00.000000Z",
    "expires_at": "2026-02-27T13:00:00.000000Z",
}

RESERVE_CHARGE_REQUESTS: dict[str, Any] = {
    "a histogram with Laplace noise": {
        "dataset": DATASET,
        "unit": "example",
        "mechanism": {"kind": "laplace", "scale": 10.0},
        "attested": "OpenDP 0.14: visits by decade of age",
    },
    "ρ-zCDP of the training part": {
        "dataset": DATASET,
        "account": "train",
        "unit": "user",
        "mechanism": {"kind": "zcdp", "rho": 0.005},
        "attested": "Tumult Analytics: weekly report",
    },
}
SUBMIT_JOB_ANSWER: dict[str, Any] = {
    **JOB_VIEW,
    "status": "queued",
    "attempts": [],
    "started_at": None,
    "epsilon_spent": _epsilon(0.0),
}

# By problem: its members beyond type, title and status.
PROBLEMS: dict[str, dict[str, Any]] = {
    "budget-exceeded": {
        "detail": "it needs 95.7 % of the train account, and 77.4 % is left; the largest target_epsilon that fits "
        "is 3.455",
        "requested": {"train": 818674651358, "holdout": 2500000001},
        "remaining": {"train": 662723255993, "holdout": 821497165451},
        "account": "train",
        "unit": UNIT,
        "largest_epsilon_that_fits": 3.455,
        "budget": None,
    },
    "budget-too-low": {
        "detail": "what is spent and held of this budget needs about ε = 1.72: ask for at least that",
        "smallest_epsilon": 1.72,
    },
    "invalid-request": {
        "detail": "the request is not valid; see `errors`",
        "errors": [{"pointer": "/privacy/target_epsilon", "detail": "Input should be less than or equal to 100"}],
    },
    "duplicate-label": {"detail": "a block '2026-10' exists already: choose another label", "label": "2026-10"},
    "duplicate-name": {"detail": "a data set named 'incomes' exists already: choose another name", "name": "incomes"},
    "idempotency-key-reused": {"detail": "this Idempotency-Key was used for another job: use a new one", "job": JOB},
    "policy-exceeded": {
        "detail": "the data set's owner allows this key at most ε = 0.5 for one job; this one costs ε = 1",
        "requested": _epsilon(1.0),
        "allowed": _epsilon(0.5),
    },
    "too-many-egresses": {
        "detail": "this key has 8 egresses that are not made, its limit: wait, or deny the approvals of some",
        "limit": 8,
    },
    "too-many-jobs": {
        "detail": "this key has 100 jobs in the queue, and may have 100: wait until some have started",
        "limit": 100,
        "queued": 100,
    },
    "too-many-predictions": {
        "detail": "this key has 20 predictions in the queue, and may have 20: wait until some are done",
        "limit": 20,
    },
    "too-many-uploads": {"detail": "this key has 8 open uploads, its limit: register or give them up", "limit": 8},
    "wrong-offset": {"detail": "this upload ends at 67108864, not at 0: continue there", "offset": 67108864},
    "too-many-requests": {"detail": "this key may make 6000 requests a minute", "retry_after_s": 12},
    "duplicate-content": {"detail": "you have this content already", "dataset": "ds_4zq7x2m5k3v6n1b8c9d0fa"},
    "cap-too-low": {
        "detail": "the spent and held budget needs a cap of about ε = 1.72: ask for at least that",
        "smallest_epsilon": 1.72,
    },
    "quota-exceeded": {
        "detail": "your key may store 1000000 bytes, and 900000 are taken: 200000 more do not fit; delete a data set's "
        "content, or give an upload up",
        "limit_bytes": 1000000,
        "stored_bytes": 900000,
    },
    "not-ready": {
        "detail": "the file of 'imdb-reviews' is being read",
        "dataset": "ds_4zq7x2m5k3v6n1b8c9d0fa",
        "state": "reading",
    },
    "wrong-state": {"detail": "there is nothing to cancel: the job is succeeded", "job_status": "succeeded"},
}
