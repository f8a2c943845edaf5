"""/v1/datasets/{id}/declarations: declares a data set anew."""

from __future__ import annotations

from fastapi import APIRouter

from app.datasets import declaring
from app.datasets.schemas import (
    DatasetView,
    RedeclaredDataset,
    findings_of,
)
from app.grants import service as grants
from app.keys.auth import CurrentKey
from app.ledger import summary
from app.web.deps import Db, Parsing, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.redeclaration import Redeclaration
from core.contracts.slots import rounded

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


@router.post("/{dataset_id}/declarations", status_code=201)
@Operation(
    "The data set with its new declaration.",
    audience="own",
    leaves=leaves.FOR_OWNER,
    command="datasets declare",
    audit="dataset.redeclared",
    problems=("forbidden", "content-deleted", "wrong-state", "ledger-behind", "limit-exceeded", "not-ready"),
    requests={"another number of records": {"records": 24000}, "what it would say": {"dry_run": True}},
)
def redeclare_dataset(
    dataset_id: str, body: Redeclaration, db: Db, settings: ServiceSettings, parsers: Parsing, caller: CurrentKey
) -> RedeclaredDataset:
    """Declares a data set's records, slots, classes, scale or ranges anew. Jobs keep the version that they were priced
    with.

    Fewer slots than stored records are refused. Unit, relation, filter, order and split never change. An exact number
    of records becomes public: the answer suggests a rounded one. `dry_run` answers the same and changes nothing.
    """
    declaration = declaring.redeclare(db, settings, parsers, caller, dataset_id, body)
    with db.read() as session:
        access = grants.find(session, caller, declaration.dataset.id)[1]
        ledger = (
            None if declaration.account is None else summary.brief(session, declaration.dataset, declaration.account)
        )
    view = DatasetView.of(declaration.dataset, ledger, access)
    readings, warnings = findings_of(declaration.findings, caller)
    return RedeclaredDataset(
        **view.model_dump(),
        read=readings,
        warnings=warnings,
        suggested_records=None if readings is None else rounded(readings.units),
        slots=declaration.slots,
        default_slots=declaration.default_slots,
    )
