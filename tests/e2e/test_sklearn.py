"""Estimators in the manner of scikit-learn, on a real service; and its own checks of them, on an embedded one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import scrimp
from scrimp.signatures import is_authentic
from scrimp.sklearn import Embedded, PrivateClassifier, PrivateRegressor
from tests.e2e.conftest import Service

# Two fits differ: their noise is secret and drawn anew.
COMPARED = [f"check_{each}_data_not_an_array" for each in ("classifier", "regressor")]
COMPARED += ["check_regressors_int", "check_supervised_y_2d", "check_fit_idempotent"]
NOISY = dict.fromkeys(COMPARED, "noise is drawn anew in each fit")


@pytest.fixture
def at(served: Callable[[str], Service], tmp_path: Path) -> dict[str, Any]:
    service = served("sqlite")
    return {"url": f"http://127.0.0.1:{service.port}", "key_file": service.home / "admin.key"}


def test_a_classifier_is_fitted_used_and_kept(at: dict[str, Any]) -> None:
    x, y = make_blobs(400, centers=[[-3.0, 0.0], [3.0, 1.0]], random_state=3)
    labels = np.array(["ill", "well"])[y]
    bare = PrivateClassifier(epsilon=2.0, feature_range=(-8.0, 8.0), classes=["well", "ill"], **at)
    with pytest.raises(NotFittedError):
        bare.predict(x)
    fitted = clone(bare).fit(x, labels)
    assert fitted.score(x, labels) > 0.9
    shares = fitted.predict_proba(x[:5])
    assert shares.shape == (5, 2) and shares.sum(axis=1) == pytest.approx(np.ones(5))
    assert (fitted.classes_[shares.argmax(axis=1)] == fitted.predict(x[:5])).all()
    assert 1.99 < fitted.epsilon_ <= 2.0 and fitted.n_features_in_ == 2
    assert is_authentic(fitted.certificate_, fitted.certificate_["public_key"])
    assert (pickle.loads(pickle.dumps(fitted)).predict(x) == fitted.predict(x)).all()  # noqa: S301 - its own bytes
    assert "scrimp_key" not in repr(fitted), "no key is a parameter"
    with pytest.raises(scrimp.BudgetRefused):
        clone(bare).fit(x, labels)  # the same records: their cap is one fit's ε
    with pytest.raises(ValueError, match="not in `classes`"):
        PrivateClassifier(classes=["well", "dead"], **at).fit(x, labels)


def test_a_regressor_answers_in_the_target_s_unit(at: dict[str, Any]) -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (500, 2))
    y = 50.0 + 20.0 * x[:, 0] - 10.0 * x[:, 1]
    fitted = PrivateRegressor(epsilon=4.0, feature_range=(-1.0, 1.0), target_range=(0.0, 100.0), **at).fit(x, y)
    assert fitted.score(x, y) > 0.6 and fitted.coef_.shape == (2,)
    assert fitted.predict(1e3 * x).max() <= 100.0
    with pytest.raises(ValueError, match="target_range must be"):
        PrivateRegressor(**at).fit(x, y)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [PrivateClassifier(max_epsilon=60.0), PrivateRegressor(max_epsilon=60.0, target_range=(-5.0, 5.0))]
)
def test_scikit_learn_s_own_checks_pass_on_an_embedded_service(estimator: Any) -> None:
    try:
        check_estimator(estimator, expected_failed_checks=NOISY, on_skip=None)
    finally:
        Embedded.running().stop()


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_job_is_a_run_of_mlflow(at: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    x, y = make_blobs(100, random_state=4)
    fitted = PrivateClassifier(feature_range=(-20.0, 20.0), **at).fit(x, y)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.chdir(tmp_path)  # MLflow keeps files beside
    with scrimp.Client(at["url"], at["key_file"].read_text().strip()) as client:
        run_id = client.log_to_mlflow(fitted.job_, "private", tracking_uri=uri)
    tracking = mlflow.MlflowClient(tracking_uri=uri)
    run = tracking.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.tags["scrimp.job"] == fitted.job_
    assert run.data.metrics["epsilon"] == fitted.epsilon_ and run.data.params["model.kind"] == "linear"
    assert [each.path for each in tracking.list_artifacts(run_id)] == ["certificate.json", "model"]
