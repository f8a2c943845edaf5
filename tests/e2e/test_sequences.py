"""Next items through the real service, on MovieLens-100k where it was fetched: priced, trained, scored, and used."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrimp.errors import InvalidRequest
from tests.e2e.conftest import Service, until
from tests.e2e.test_spine import finished, submit

ITEMS = 1682


def histories(folder: Path) -> Path:
    """MovieLens-100k from the cache of scripts/fetch_data.py; else users who walk through the items."""
    known = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scrimp" / "ml-100k.inter"
    return known if known.exists() else walks(folder)


def walks(folder: Path, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    rows = [
        f"{user}\t{1 + (start + step) % ITEMS}\t{step}"
        for user, start in enumerate(generator.integers(0, 50, 943))
        for step in range(int(generator.integers(1, 40)))
    ]
    (folder / "walks.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n" + "\n".join(rows) + "\n")
    return folder / "walks.inter"


def spec() -> dict[str, Any]:
    return {
        "name": "histories",
        "format": "interactions",
        "task": {"kind": "next_item"},
        "features": {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": ITEMS}},
        "privacy": {
            "sensitivity": "private",
            "unit": "user",
            "records": 943,
            "cap": {"epsilon": 20.0, "delta": 1e-4},
            "filter": "rdp",
            "order": 4.0,
        },
        "holdout": {"kind": "last_item"},
    }


def job() -> dict[str, Any]:
    return {
        "dataset": "histories",
        "model": {
            "kind": "transformer_rec",
            "dim": 8,
            "max_length": 12,
            "re_attention": {"mode": "logits", "frequencies": "noisy", "noise_mu": 0.1},
        },
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.3, "momentum": 0.9},
        "privacy": {"target_epsilon": 5.0},
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 64},
        "length": {"steps": 20},
        "evaluation": {"on": "holdout", "noise_mu": 0.1, "points": 2, "ranking": {"k": 10}},
    }


@pytest.mark.nightly  # ranks are scored below, studies run in test_studies.py
@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_search_by_ranks(service: Service, tmp_path: Path) -> None:
    """Pilots are compared by a noisy NDCG, which is charged to the users who are trained on."""
    with service.client() as client:
        dataset = client.create_dataset(spec() | {"name": "searched-by-ranks"}, walks(tmp_path, seed=1)).id
    score = {"kind": "private_ranking", "noise_mu": 0.1, "k": 5}
    hpo = {"levels": [1.0, 2.0], "runs_per_level": 1, "space": {"learning_rate": [0.1, 1.0]}, "score": score}
    model = {"kind": "gru_rec", "dim": 4, "max_length": 6}
    ended = finished(service, study := submit(service, job() | {"dataset": dataset, "model": model, "hpo": hpo}))
    assert ended["status"] == "succeeded", ended["failure"]
    runs = service.get(f"/v1/jobs/{study}/trials")["items"]
    assert [run["score"] and (run["score"]["name"], run["score"]["on"]) for run in runs] == [
        ("ndcg@5", "train"),
        ("ndcg@5", "train"),
        None,
    ]
    assert all(list(service.get(f"/v1/jobs/{run['job']}")["metrics"]) == ["hit@5", "ndcg@5"] for run in runs[:2])
    (scores,) = [line for line in ended["quote"]["lines"] if line["what"] == "scores"]
    assert (scores["account"], scores["count"]) == ("train", 2) and scores["charge"] > 0
    spent = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (spent["spent"], spent["held"]) == (ended["quote"]["charge"]["train"], 0)


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_next_items_from_post_to_prediction(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with service.client() as client:
        client.create_dataset(spec(), histories(tmp_path))
    ended = finished(service, job_id := submit(service, job()))
    assert ended["status"] == "succeeded", ended["failure"]
    ndcg, hit = ended["metrics"]["ndcg@10"], ended["metrics"]["hit@10"]
    # How good the model is, is drawn with its noise: users who walk through the items are easily foreseen.
    assert ndcg["released_by"] == "noisy_sum" and ndcg["value"] >= 0.0 and 0 < hit["std"] < 0.1
    assert ndcg["value"] <= hit["value"] + 6 * hit["std"] and hit["value"] <= 1.0 + 6 * hit["std"]
    assert ended["epsilon_spent"]["unit"] == "user"
    assert [(each["what"], each["account"]) for each in ended["quote"]["lines"]] == [
        ("training", "train"),
        ("frequencies", "train"),
        ("evaluation", "train"),
    ]
    certificate = until(lambda: service.get(f"/v1/jobs/{job_id}/certificate").get("certificate"))
    assert certificate["unit"] == certificate["mechanism"]["unit"] == certificate["epsilon"]["unit"] == "user"
    with service.client() as client:
        page = client._http.get(f"/v1/jobs/{job_id}/metrics").json()
        assert sorted((each["name"], each["step"]) for each in page["items"]) == [
            (name, step) for name in ("hit@10", "ndcg@10") for step in (10, 20)
        ]
        for artifact in ("model.safetensors", "model.json"):
            (tmp_path / artifact).write_bytes(client._http.get(f"/v1/jobs/{job_id}/artifacts/{artifact}").content)
    card = json.loads((tmp_path / "model.json").read_text())
    monkeypatch.chdir(tmp_path)  # in a process of its own: test_ratings.py
    exec(card["usage"], {})  # noqa: S102 - our own snippet, as a user would run it
    (own,) = ast.literal_eval(capsys.readouterr().out)
    with service.client() as client:
        (answer,) = client.predict(job_id, [["1"]], top=10)
        with pytest.raises(InvalidRequest):
            client.predict(job_id, [[ITEMS + 1]])
    rows, best = ([each["row"] for each in of["items"]] for of in (answer, own))
    assert len(set(best)) == 10 and all(0 <= row < ITEMS for row in best)
    assert rows[0] == best[0] and answer["items"][0]["item"] == str(best[0] + 1)
    assert len(set(rows) & set(best)) >= 9, "float32 in passes of another shape may order two differently"
