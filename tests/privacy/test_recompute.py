"""The script that recomputes a certificate's ε: it shares nothing with the service, and is not fooled."""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from core.contracts.job_spec import AdaptiveNorm
from core.privacy.events import Truncation
from core.privacy.price_requests import FilterChoice, PlanRequest
from core.privacy.pricing import price
from core.privacy.releases import NoisyHistogram, NoisyMean
from scrimp.cli import app
from tests.privacy.support import release, request

SCRIPT = Path(__file__).resolve().parents[2] / "scrimp" / "recompute.py"
KEY = Ed25519PrivateKey.generate()
PUBLIC = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()

FULL = request("full_batch", 20_000, 20_000, 50, epsilon=1.0, filter_=("gdp", None), releases=[release(0.05)])
POISSON = request("poisson", 500, 10_000, 60, epsilon=1.0)
ADAPTIVE = POISSON.model_copy(
    update={
        "training": POISSON.training.model_copy(update={"clipping": "adaptive", "adaptive": AdaptiveNorm()}),
    }
)


TRUNCATED = POISSON.model_copy(
    update={
        "training": POISSON.training.model_copy(update={"truncation": Truncation(records=10_564, largest_batch=560)}),
    }
)


def body_of(asked: PlanRequest) -> dict[str, Any]:
    priced = price(asked)
    mechanism = priced.mechanism
    assert mechanism is not None
    answer = priced.model_dump(mode="json")
    training, pld = answer["mechanism"]["training"], answer["epsilon"]["accountant"] == "pld"
    return {
        "version": 1,
        "certificate_id": "cert_1",
        "job": "job_1",
        "dataset": {"id": "ds_1", "name": "réviews", "content_hmac": "00"},
        "unit": "example",
        "relation": "add_or_remove_one",
        "mechanism": answer["mechanism"],
        "events": mechanism.events.model_dump(mode="json"),
        "sampling": {"kind": training["sampling"], "sample_rate": training["sample_rate"]},
        "noise_multiplier": training["noise_multiplier"],
        "gradient_noise_multiplier": mechanism.training.gradient_noise_multiplier,
        "max_grad_norm": training["max_grad_norm"],
        "expected_batch_size": training["expected_batch_size"],
        "steps": {"planned": training["steps"], "started": training["steps"], "effective": training["steps"]},
        "accountant": {"name": "pld" if pld else "gdp", "grid": 1e-4 if pld else None},
        "epsilon": answer["epsilon"],
        "charge": answer["charge"],
    }


def signed(body: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signature = base64.b64encode(KEY.sign(text)).decode()
    return {"certificate": body, "signature": signature, "public_key": PUBLIC, "algorithm": "Ed25519"}


@pytest.fixture
def recompute(tmp_path: Path) -> Callable[..., int]:
    spec = importlib.util.spec_from_file_location("recompute_certificate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def run(document: Any, *options: str) -> int:
        path = tmp_path / "certificate.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return int(script.main([str(path), *options]))

    return run


MEAN = FULL.model_copy(update={"releases": (NoisyMean(noise_mu=0.0173, max_norm=1.0, records=20_000), *FULL.releases)})
COUNTED = FULL.model_copy(
    update={
        "releases": (NoisyHistogram(noise_mu=0.1, max_items=50), *FULL.releases),
        "filter": FilterChoice(kind="rdp", order=6.0),
    }
)


@pytest.mark.parametrize(
    "asked",
    [FULL, POISSON, ADAPTIVE, MEAN, COUNTED, TRUNCATED],
    ids=["full batch", "poisson", "adaptive", "mean", "frequencies", "truncated"],
)
def test_an_honest_certificate_holds(asked: PlanRequest, recompute: Callable[..., int]) -> None:
    assert recompute(signed(body_of(asked)), "--public-key", PUBLIC) == 0


def test_a_chance_of_full_batches_at_too_few_records_does_not_hold(
    recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything printed agrees, also ε: but one record more is declared than the price knows."""
    few = TRUNCATED.training.model_copy(update={"truncation": Truncation(records=9999, largest_batch=560)})
    assert recompute(signed(body_of(TRUNCATED.model_copy(update={"training": few})))) == 1
    assert capsys.readouterr().out.count("FAULT") == 1


@pytest.mark.parametrize(
    "changes",
    [{"sampling": "cyclic", "cycle": 20}, {"sampling": "full_batch"}, {"sample_rate": 1.0}],
    ids=["cyclic", "full batch", "rate 1"],
)
def test_a_largest_batch_of_what_is_no_sample_does_not_hold(
    changes: dict[str, Any], recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.loads(json.dumps(body_of(TRUNCATED)))
    body["mechanism"]["training"].update(changes)
    body["sampling"].update(
        {"kind": changes.get("sampling", "poisson"), "sample_rate": changes.get("sample_rate", 0.05)}
    )
    body["events"]["train"]["events"][0]["event"]["sample_rate"] = changes.get("sample_rate", 0.05)
    assert recompute(signed(body)) == 1
    assert "a largest batch is named where" in capsys.readouterr().out


def test_a_mean_that_was_left_out_is_missed(recompute: Callable[..., int]) -> None:
    body = json.loads(json.dumps(body_of(MEAN)))
    del body["events"]["train"]["events"][1]
    assert recompute(signed(body)) == 1


def test_alone_in_another_directory_it_still_recomputes(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(signed(body_of(FULL))), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(path), "--public-key", PUBLIC],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ε = 1.000000; recomputed 1.000000" in done.stdout
    assert "50 × Gaussian(26.3795)" in done.stdout


def test_it_imports_nothing_of_the_service() -> None:
    nodes = list(ast.walk(ast.parse(SCRIPT.read_text(encoding="utf-8"))))
    named = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert named - set(sys.stdlib_module_names) == {"dp_accounting", "cryptography", "scrimp"}


def change(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        body = body[int(name)] if isinstance(body, list) else body[name]
    body[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("epsilon.value", 0.99),
        ("epsilon.delta", 1e-4),
        ("noise_multiplier", 30.0),
        ("steps.planned", 40),
        ("sampling.sample_rate", 0.5),
        ("mechanism.training.steps", 40),
        ("relation", "replace_one"),
        ("events.train.events.0.count", 40),
        ("events.holdout", None),
    ],
)
def test_a_certificate_that_says_less_than_it_spent_does_not_hold(
    path: str, value: Any, recompute: Callable[..., int]
) -> None:
    body = json.loads(json.dumps(body_of(FULL)))
    change(body, path, value)
    assert recompute(signed(body)) == 1


def gaussian(sigma: Any) -> dict[str, Any]:
    return {"kind": "gaussian", "noise_multiplier": sigma}


def poisson(rate: Any, sigma: Any = 1.0) -> dict[str, Any]:
    return {"kind": "poisson_sampled", "sample_rate": rate, "event": gaussian(sigma)}


def truncated(records: Any, most: Any) -> dict[str, Any]:
    return poisson(0.1) | {"kind": "truncated_sampled", "records": records, "largest_batch": most}


def repeated(count: Any, event: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"kind": "self_composed", "count": count, "event": event or gaussian(1.0)}


NUMBERS = (0.0, -1.0, 1e-200, 1e200, 10**400, float("nan"), float("inf"), None, "1e-200", [])
FORGED: list[Any] = [
    *(gaussian(each) for each in NUMBERS),
    *(poisson(0.1, each) for each in NUMBERS),
    *(poisson(each) for each in NUMBERS),
    *(repeated(each) for each in (-1, 1.5, 10**400, float("inf"), None, "3")),
    repeated(10**12, repeated(10**12)),
    repeated(3000, poisson(0.5)),
    *(truncated(each, 2) for each in (-1, 0.5, 10**11, None)),
    *(truncated(10, each) for each in (-1, 0.5, 10**11, None)),
    {"kind": "laplace"},
    {},
    None,
    [],
    "gaussian",
]


@pytest.mark.parametrize("event", FORGED, ids=lambda event: str(event)[:60])
@pytest.mark.parametrize("honest", [FULL, POISSON], ids=["full batch", "poisson"])
def test_a_forged_event_is_refused_in_one_line(
    event: Any, honest: PlanRequest, recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever signed it: no traceback, no long computation, no verdict."""
    body = json.loads(json.dumps(body_of(honest)))
    body["events"]["train"]["events"][0] = event
    assert recompute(signed(body), "--public-key", PUBLIC) == 2
    message = capsys.readouterr().err
    assert message.startswith("cannot read ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("epsilon.delta", 0.0),
        ("accountant.grid", -1.0),
        ("accountant.grid", 1e-300),
        ("mechanism.training.noise_multiplier", float("inf")),
        ("mechanism.training.adaptive.count_noise_multiplier", 0.0),
        ("mechanism.training.cycle", 0.1),
    ],
)
def test_a_forged_number_is_refused_in_one_line(
    path: str, value: Any, recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.loads(json.dumps(body_of(ADAPTIVE)))
    change(body, path, value)
    assert recompute(signed(body), "--public-key", PUBLIC) in {1, 2}
    assert capsys.readouterr().err.count("\n") <= 1


def test_a_file_nested_too_deeply_is_refused_in_one_line(
    recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert recompute("[" * 200_000) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gradient_noise_multiplier", 1.792),
        ("mechanism.training.adaptive.count_noise_multiplier", 1.0),
        ("mechanism.training.adaptive", None),
    ],
)
def test_a_count_that_is_not_paid_for_is_found(path: str, value: Any, recompute: Callable[..., int]) -> None:
    body = json.loads(json.dumps(body_of(ADAPTIVE)))
    change(body, path, value)
    assert recompute(signed(body)) == 1


def test_an_epsilon_that_is_too_large_is_no_lie(recompute: Callable[..., int]) -> None:
    body = body_of(FULL)
    body["epsilon"] = body["epsilon"] | {"value": 1.5}
    assert recompute(signed(body), "--public-key", PUBLIC) == 0


def test_an_understated_poisson_epsilon_does_not_hold(recompute: Callable[..., int]) -> None:
    body = body_of(POISSON)
    body["epsilon"] = body["epsilon"] | {"value": body["epsilon"]["value"] - 1e-3}
    assert recompute(signed(body)) == 1


def test_a_coarse_grid_buys_no_tolerance(recompute: Callable[..., int]) -> None:
    body = body_of(POISSON)
    body["accountant"] = body["accountant"] | {"grid": 0.05}
    body["epsilon"] = body["epsilon"] | {"value": body["epsilon"]["value"] - 0.04}
    assert recompute(signed(body)) == 1


def test_a_poisson_job_is_not_recomputed_as_if_exact(recompute: Callable[..., int]) -> None:
    body = body_of(POISSON)
    body["accountant"] = {"name": "gdp", "grid": None}
    body["epsilon"] = body["epsilon"] | {"value": 0.5, "accountant": "gdp"}
    assert recompute(signed(body)) == 1


def test_a_job_that_stopped_early_is_recomputed_as_planned(
    recompute: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    body = body_of(FULL)
    body["steps"] = {"planned": 50, "started": 20, "effective": 20}
    assert recompute(signed(body), "--public-key", PUBLIC) == 0
    assert "stopped after 20 of 50 steps" in capsys.readouterr().out


def test_a_public_data_set_claims_nothing(recompute: Callable[..., int]) -> None:
    body = body_of(FULL) | {"mechanism": None, "epsilon": None}
    assert recompute(signed(body), "--public-key", PUBLIC) == 0


def test_a_signature_must_be_the_owners(recompute: Callable[..., int], tmp_path: Path) -> None:
    document = signed(body_of(FULL))
    stranger = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()
    assert recompute(document, "--public-key", stranger) == 1
    key = tmp_path / "key"
    key.write_text(PUBLIC + "\n")
    assert recompute(document, "--public-key", str(key)) == 0
    document["certificate"] = document["certificate"] | {"job": "job_2"}
    assert recompute(document, "--public-key", PUBLIC) == 1
    assert recompute(document) == 2, "the numbers hold; anybody could have signed them"
    assert recompute(document | {"algorithm": "none"}, "--public-key", PUBLIC) == 1


def test_the_command_does_the_same_without_a_service(tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(signed(body_of(FULL))))
    asked = ["certificates", "recompute", str(file), "--public-key", PUBLIC, "--url", "http://127.0.0.1:1"]
    held = CliRunner().invoke(app, asked)
    assert held.exit_code == 0 and "the certificate holds" in held.stdout, held.output
    file.write_text(json.dumps(signed(body_of(FULL) | {"noise_multiplier": 1.0})))
    assert CliRunner().invoke(app, asked).exit_code == 1
    file.write_text("{}")
    assert CliRunner().invoke(app, asked).exit_code == 2


@pytest.mark.parametrize("document", ["", "[]", "{}", '{"certificate": {"mechanism": 1}}'])
def test_a_file_that_is_no_certificate_says_so(document: str, recompute: Callable[..., int]) -> None:
    assert recompute(document) == 2
