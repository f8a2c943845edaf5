"""/v1/jobs/{job_id}/predict and …/predictions/{prediction_id}: a model on the caller's own inputs."""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.keys.auth import CurrentKey
from app.predictions import service
from app.predictions.schemas import PredictionRequest, PredictionView
from app.web import examples
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import LOCATION, Operation
from core import leaves

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.post("/jobs/{job_id}/predict", status_code=202, operation_id="predict")
@Operation(
    "The prediction, queued.",
    audience="train",
    leaves=leaves.PREDICTIONS,
    command="predict",
    audit="prediction.asked",
    problems=("not-found", "forbidden", "wrong-state", "too-many-predictions", "ledger-behind"),
    headers=LOCATION,
    requests={"a text": {"records": ["a fine film"]}, "the next item": {"records": [["50", "172"]], "top": 5}},
    answer=examples.PREDICTION,
)
def predict(
    job_id: str, request: PredictionRequest, response: Response, db: Db, settings: ServiceSettings, caller: CurrentKey
) -> PredictionView:
    """Queues a prediction with a trained model, to be polled at its Location. It costs no privacy.

    For keys that may train on the data set. Inputs are kept until a worker takes them, outputs until `expires_at`, for
    this key alone.
    """
    prediction = service.ask(db, caller, job_id, request, settings)
    response.headers["Location"] = f"/v1/jobs/{job_id}/predictions/{prediction.id}"
    return PredictionView.of(prediction)


@router.get("/jobs/{job_id}/predictions/{prediction_id}", operation_id="show_prediction")
@Operation(
    "The prediction.",
    name="show_prediction",
    audience="every key",
    leaves=leaves.PREDICTIONS,
    command="predict",
    problems=("forbidden", "ledger-behind"),
    answer={
        **examples.PREDICTION,
        "status": "succeeded",
        "predictions": [{"class": 1, "probabilities": {"1": 0.83, "0": 0.17}}],
    },
)
def show(job_id: str, prediction_id: str, db: Db, settings: ServiceSettings, caller: CurrentKey) -> PredictionView:
    """Shows one of this key's predictions, until it expires."""
    return PredictionView.of(service.find(db, caller, job_id, prediction_id, settings))
