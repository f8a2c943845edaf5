"""A job as a run of MLflow: `client.log_to_mlflow(job)`. Only what the job released is logged, and its certificate."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrimp.errors import MissingPackage

if TYPE_CHECKING:
    from scrimp.jobs import JobHandle

LONGEST_VALUE = 500  # characters of a parameter
AT_ONCE = 1000  # metrics of one request


def log_job(job: JobHandle, experiment: str | None, tracking_uri: str | None, files: bool) -> str:
    """Writes a run with the specification as parameters, scores with the std of their noise as metrics, ε and δ,
    the certificate and the model's files; returns the run's id.

    Raises:
        MissingPackage: mlflow is not installed.
        ScrimpError: the job has no certificate yet.
    """
    try:
        mlflow = import_module("mlflow")
        entities = import_module("mlflow.entities")
    except ImportError:
        raise MissingPackage("log_to_mlflow", "mlflow", "scrimp-client[mlflow]") from None
    tracking = mlflow.MlflowClient(tracking_uri=tracking_uri)
    certificate = job.certificate().model_dump(mode="json")
    epsilon = certificate["certificate"]["epsilon"]
    tags = {"scrimp.job": job.id, "scrimp.status": job.status, "scrimp.public_key": certificate["public_key"]}
    run = tracking.create_run(_experiment(tracking, experiment), run_name=job.name or job.id, tags=tags)
    run_id: str = run.info.run_id
    parameters = [entities.Param(name, value[:LONGEST_VALUE]) for name, value in _flat(job.spec)]
    stamp = run.info.start_time
    metrics = [entities.Metric(name, value, stamp, step) for name, value, step in _numbers(job)]
    if epsilon is not None:
        metrics += [
            entities.Metric(name, epsilon[key], stamp, 0) for name, key in (("epsilon", "value"), ("delta", "delta"))
        ]
    for at in range(0, len(parameters), 100):
        tracking.log_batch(run_id, params=parameters[at : at + 100])
    for at in range(0, len(metrics), AT_ONCE):
        tracking.log_batch(run_id, metrics=metrics[at : at + AT_ONCE])
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "certificate.json").write_text(json.dumps(certificate, indent=2, ensure_ascii=False))
        for file in [path, *(job.fetch(Path(folder) / "model") if files else ())]:
            tracking.log_artifact(run_id, str(file), None if file is path else "model")
    tracking.set_terminated(run_id, "FINISHED" if job.status == "succeeded" else "FAILED")
    return run_id


def _experiment(tracking: Any, name: str | None) -> str:
    """The id of an experiment of this name, which is made if there is none; None: MLflow's default."""
    experiment = tracking.get_experiment_by_name(name or "Default")
    return str(experiment.experiment_id if experiment is not None else tracking.create_experiment(name or "Default"))


def _numbers(job: JobHandle) -> Iterator[tuple[str, float, int]]:
    """Each released number, and the std of its noise beside it; a group's score has its group after a slash."""
    for point in job.metrics():
        name = point.name.replace(":", "/")
        yield name, point.value, point.step
        if point.std:
            yield f"{name}_noise_std", point.std, point.step


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _flat(item, f"{prefix}{name}.")
        elif item is not None:
            yield prefix + name, item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
