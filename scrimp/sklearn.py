"""Estimators in the manner of scikit-learn that train privately: `PrivateClassifier(epsilon=1).fit(X, y)`.

They register X and y as a data set of a service, submit one job of a linear model, wait, and keep the weights and the
signed certificate. Without `url` the service is one of this machine: `scrimp serve` on loopback in a temporary home,
which ends with the process. A service's accounting is the same in both.

What is private is every record of X and y. What becomes public: ε, the number of records, rounded, and what the
parameters say (`classes`, `target_range`, `feature_range`): declare them from public knowledge. Labels that are taken
from y, where `classes` is None, are read off the data, and are not protected.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scrimp.client import Client
from scrimp.declare import rounded
from scrimp.errors import Conflict, MissingPackage, ScrimpError
from scrimp.extensions import SERVER, extension

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingPackage("scrimp.sklearn", str(error.name), "scrimp-client[sklearn]") from error

if TYPE_CHECKING:
    from sklearn.utils import Tags

READY_S, STOP_S = 330.0, 20.0  # `scrimp serve` itself gives up after five minutes
POLL_S = 0.1
JUST_FITS = 0.9999  # of a cap: its ε in the ledger's units is rounded down, and a job's up


class Embedded:
    """`scrimp serve` of this process, with a temporary home; it ends with the process."""

    _running: ClassVar[Embedded | None] = None

    def __init__(self) -> None:
        if extension("commands") is None:
            raise MissingPackage(
                "a service in this process", "the service's package", SERVER.removeprefix("pip install ")
            )
        self.home = Path(tempfile.mkdtemp(prefix="scrimp-embedded-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        options = ["--home", str(self.home), "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.home / "serve.out").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scrimp.cli", "serve", *options], stdout=output, stderr=output
            )
        atexit.register(self.stop)
        self._wait()

    @classmethod
    def running(cls) -> Embedded:
        """The one of this process; starts it if there is none, or if it has ended.

        Raises:
            ScrimpError: it does not start.
            MissingPackage: the service's package is not installed.
        """
        if cls._running is None or cls._running.process.poll() is not None:
            cls._running = cls()
        return cls._running

    def client(self) -> Client:
        """A client with the service's first admin key."""
        return Client(f"http://127.0.0.1:{self.port}", (self.home / "admin.key").read_text().strip())

    def stop(self) -> None:
        """Ends the service and deletes its home."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        shutil.rmtree(self.home, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if "ready in" in (self.home / "serve.out").read_text():
                return
            time.sleep(POLL_S)
        message = (self.home / "serve.out").read_text().strip()
        self.stop()
        raise ScrimpError(f"the embedded service does not start: {message[-500:]}")


class _Private(BaseEstimator):  # type: ignore[misc]
    """What both estimators share.

    Args:
        epsilon: of one fit.
        delta: of the guarantee; None: the largest 10⁻ᵏ ≤ 1/records.
        max_epsilon: what all fits on the same records may spend together, the data set's cap; None: epsilon, one fit.
        feature_range: (least, most) of all features, from public knowledge: they are clipped to it and scaled to
            [−1, 1]. None: features are taken as they are.
        url: the service's address; None: an embedded service.
        key_file: a file with an API key; None: the environment's SCRIMP_KEY. No key is a parameter, as scikit-learn
            prints parameters.
        timeout: the most seconds of a fit.

    Attributes:
        coef_, intercept_: as of scikit-learn's linear models.
        epsilon_: ε that was charged, as the certificate prints it.
        certificate_: the signed certificate, whose signature was checked with the service's key.
        job_: the job's id.
        n_features_in_: how many features X had.
    """

    _known: ClassVar[dict[tuple[str, str], str]] = {}  # service and content → data set, for later fits on the same

    def _fit(self, x: Any, y: Any, task: dict[str, Any]) -> None:
        if not (isinstance(self.epsilon, int | float) and self.epsilon > 0):
            raise ValueError(f"epsilon must be a positive number, not {self.epsilon!r}")
        with self._client() as client, tempfile.TemporaryDirectory() as folder:
            dataset = self._registered(client, Path(folder), self._scaled(x), y, task)
            job = client.jobs.submit(self._job(dataset)).wait(self.timeout)
            if job.status != "succeeded":
                raise ScrimpError(
                    f"{job.id} is {job.status}: {(job.last.failure or {}).get('message', 'see its events')}"
                )
            model: Any = job.model(folder)
            self.certificate_ = job.certificate(next(client.signing_keys()).public_key).model_dump(mode="json")
            self.job_, self.epsilon_ = job.id, self.certificate_["certificate"]["epsilon"]["value"]
            weight = model.tensors["weight"]
            bias = model.tensors.get("bias", np.zeros(len(weight)))
        self._keep(weight, bias)

    def _keep(self, weight: Any, bias: Any) -> None:
        self.coef_, self.intercept_ = weight, bias

    def _client(self) -> Client:
        if self.url is None:
            return Embedded.running().client()
        file = None if self.key_file is None else Path(self.key_file)
        return Client(self.url, os.environ.get("SCRIMP_KEY") if file is None else file.read_text().strip())

    def _registered(self, client: Client, folder: Path, x: Any, y: Any, task: dict[str, Any]) -> str:
        """The data set with these records; a second fit on the same ones spends from the same cap."""
        cap = {"epsilon": self.epsilon if self.max_epsilon is None else self.max_epsilon}
        cap |= {} if self.delta is None else {"delta": self.delta}
        content = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(y).tobytes()).hexdigest()
        at = client.base_url, f"{content}{x.shape}{task}"
        if at in self._known:
            return self._known[at]
        np.savez(folder / "records.npz", x=x, y=y)
        name = f"sklearn-{secrets.token_hex(6)}"
        privacy = {"sensitivity": "private", "unit": "example", "records": rounded(len(x)), "cap": cap, "filter": "gdp"}
        spec = {
            "name": name,
            "format": "npz",
            "task": task | {"label": "y"},
            "features": {"kind": "tensor", "array": "x"},
            "privacy": privacy,
        }
        try:
            client.create_dataset(spec, folder / "records.npz")
        except Conflict as error:
            if error.code != "duplicate-content":
                raise
            raise ScrimpError(
                f"{error.detail}: fits on the same records spend from one cap. Submit to that data set with "
                "`client.jobs.submit`, or fit again in the process that registered it"
            ) from error
        self._known[at] = name
        return name

    def _job(self, dataset: str) -> dict[str, Any]:
        return {
            "name": f"{type(self).__name__} on {dataset}",
            "dataset": dataset,
            "model": {"kind": "linear", "bias": True},
            "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "learning_rate": "auto"},
            "clipping": {"kind": "flat", "max_grad_norm": "auto"},
            "sampling": {"kind": "full_batch"},
            "length": {"steps": "auto"},
            "privacy": {"target_epsilon": self.epsilon if self.max_epsilon is not None else JUST_FITS * self.epsilon},
            "evaluation": None,
        }

    def _scaled(self, x: Any) -> Any:
        """Features as the model takes them, in single precision."""
        if self.feature_range is None:
            return np.asarray(x, dtype=np.float32)
        low, high = self.feature_range
        if not low < high:
            raise ValueError(f"feature_range must be (least, most), not {self.feature_range!r}")
        return (2.0 * (np.clip(x, low, high) - low) / (high - low) - 1.0).astype(np.float32)

    def _outputs(self, x: Any) -> Any:
        check_is_fitted(self)
        scaled = self._scaled(validate_data(self, x, reset=False)).astype(np.float64)
        return scaled @ np.atleast_2d(self.coef_).T + self.intercept_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise is secret: no seed repeats it
        return tags


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A private linear classifier: softmax(W x + b), trained by DP-SGD in full batch.

    >>> PrivateClassifier(epsilon=1.0, feature_range=(0.0, 30.0)).epsilon
    1.0
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        max_epsilon: float | None = None,
        classes: Any = None,
        feature_range: tuple[float, float] | None = None,
        url: str | None = None,
        key_file: str | Path | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.epsilon, self.delta, self.max_epsilon = epsilon, delta, max_epsilon
        self.classes, self.feature_range = classes, feature_range
        self.url, self.key_file, self.timeout = url, key_file, timeout

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Trains privately; charges `epsilon` to the records' cap.

        Args:
            X: (n, d) numbers. y: (n,) labels; those outside `classes` are refused.

        Raises:
            BudgetRefused: the records' cap does not cover another fit.
            ValueError: X and y do not fit together.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise ValueError("the classifier needs at least two classes; give `classes` if y has only one class")
        order = np.argsort(self.classes_)
        places = order[np.clip(np.searchsorted(self.classes_[order], y), 0, len(order) - 1)]
        if (self.classes_[places] != y).any():
            raise ValueError("y has labels that are not in `classes`")
        task = {"kind": "classification", "classes": list(range(len(self.classes_)))}
        self._fit(X, places.astype(np.int64), task)
        return self

    def decision_function(self, X: Any) -> Any:
        """The outputs before the softmax: (n, classes); of two classes the second's minus the first's, (n,)."""
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, (n, classes), in the order of `classes_`."""
        outputs = self._outputs(X)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """The most probable class of each record."""
        places = self._outputs(X).argmax(axis=1)
        return self.classes_[places]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on a few dozen records noise is larger than what they say
        return tags


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A private linear regression: w · x + b, trained by DP-SGD in full batch."""

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        max_epsilon: float | None = None,
        target_range: tuple[float, float] | None = None,
        feature_range: tuple[float, float] | None = None,
        url: str | None = None,
        key_file: str | Path | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.epsilon, self.delta, self.max_epsilon = epsilon, delta, max_epsilon
        self.target_range, self.feature_range = target_range, feature_range
        self.url, self.key_file, self.timeout = url, key_file, timeout

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        """Trains privately; charges `epsilon` to the records' cap. Needs `target_range`: what y can be, from public
        knowledge; targets beyond it count as its ends. Raises as `PrivateClassifier.fit`."""
        if self.target_range is None or not self.target_range[0] < self.target_range[1]:
            raise ValueError(f"target_range must be (least, most) of what y can be, not {self.target_range!r}")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        bounds = [float(end) for end in self.target_range]
        self._fit(X, np.asarray(y, dtype=np.float64), {"kind": "regression", "range": bounds})
        return self

    def _keep(self, weight: Any, bias: Any) -> None:
        self.coef_, self.intercept_ = weight[0], float(bias[0])

    def predict(self, X: Any) -> Any:
        """The target of each record, (n,), within `target_range`."""
        ends: Any = self.target_range  # `fit` refuses None
        outputs, (low, high) = self._outputs(X)[:, 0], ends
        return low + (np.clip(outputs, -1.0, 1.0) + 1.0) / 2.0 * (high - low)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
