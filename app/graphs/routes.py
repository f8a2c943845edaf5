"""/v1/graphs: models that a key uploads as graphs, for its own jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import StringConstraints

from app.db.models import Graph
from app.db.row_view import Computed, Moment, RowView, Whole
from app.graphs import uploads as graph_uploads
from app.keys.auth import SubmitterKey
from app.web import examples
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document

router = APIRouter(prefix="/v1/graphs", tags=["catalogue"])
Sha256 = Annotated[str, Path(max_length=64)]


class GraphRequest(Document):
    """A complete upload in pieces (`/v1/uploads`), of a file that `scrimp.export_graph` wrote."""

    upload: Annotated[str, StringConstraints(pattern=r"^up_[a-z2-7]{21}$")]


def _fact(name: str) -> Computed:
    return Computed(lambda row: getattr(row.facts, name), "facts")


class GraphView(RowView):
    """A graph of the caller's. Jobs name it by its `sha256`: `model: {"kind": "graph", "upload": …}`.

    `inputs`, `outputs`: the numbers of a record, and of its answer. `trained`: of its `parameters`. `used_at`: when a
    job with it was last submitted; before the first, `created_at`.
    """

    sha256: str
    bytes: int
    parameters: Annotated[int, _fact("parameters")]
    trained: Annotated[int, _fact("trained")]
    inputs: Annotated[int, _fact("inputs")]
    outputs: Annotated[int, _fact("outputs")]
    created_at: Annotated[str, Moment("created_at")]
    used_at: Annotated[str, Moment("used_at")]


class GraphList(Document, Whole[GraphView]):
    """Every graph of the caller's."""


def graphs_of(db: Db, key_id: str) -> list[Graph]:
    """A key's graphs, the newest first."""
    with db.read() as session:
        return graph_uploads.every(session, key_id)


@router.post("", status_code=201)
@Operation(
    "The graph; of a content that the key has uploaded before, that one.",
    audience="submitters",
    leaves=leaves.NO_DATA,
    command="graphs upload",
    audit="graph.uploaded",
    problems=("forbidden", "too-many-uploads", "too-large", "storage-full", "limit-exceeded"),
    requests={"an upload in pieces": {"upload": examples.UPLOAD["id"]}},
    answer=examples.GRAPH,
)
def add_graph(body: GraphRequest, db: Db, settings: ServiceSettings, caller: SubmitterKey) -> GraphView:
    """Keeps an upload in pieces as a model of the caller's. It is read in a process of its own, under limits: whatever
    it holds besides a graph and raw tensors is refused by its name, and so is a graph that mixes records.
    """
    return GraphView.of(graph_uploads.add(db, settings, caller.id, body.upload))


@router.get("")
@Operation(
    "Every graph of the caller's.",
    audience="submitters",
    leaves=leaves.NO_DATA,
    command="graphs list",
    problems=("forbidden",),
    answer={"items": [examples.GRAPH], "next": None},
)
def list_graphs(db: Db, caller: SubmitterKey) -> GraphList:
    """Lists the models that the caller has uploaded, the newest first. No other key sees them."""
    return GraphList(items=[GraphView.of(row) for row in graphs_of(db, caller.id)])


@router.delete("/{sha256}", status_code=204)
@Operation(
    "The graph is gone.",
    audience="submitters",
    leaves=leaves.NO_DATA,
    command="graphs delete",
    audit="graph.deleted",
    problems=("forbidden", "wrong-state"),
)
def delete_graph(sha256: Sha256, db: Db, settings: ServiceSettings, caller: SubmitterKey) -> None:
    """Deletes a graph of the caller's; 409 while a job with it is not finished. Models that were trained stay; the
    service answers no more predictions with them, and `scrimp.load_model` does.
    """
    graph_uploads.delete(db, settings, caller.id, sha256)
