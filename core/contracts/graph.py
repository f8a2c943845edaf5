"""Settings of a model that a user brings: a graph of operations from a file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from core.contracts.base import Document, is_none
from core.contracts.extractor import Sha256Hex
from core.contracts.hf import ModelPath
from core.contracts.model_settings import ModelSettings, RecordSizes

Count = Annotated[int, Field(ge=1)]


class GraphFacts(Document):
    """What follows from a graph's file. None: not looked at yet.

    Attributes:
        places: the most rows of one product that belong to a record.
        pass_numbers: about how many numbers a pass holds for one record.
    """

    sha256: Sha256Hex | None = None
    parameters: Count | None = None
    trained: Count | None = None
    inputs: Count | None = None
    outputs: Count | None = None
    places: Count | None = None
    pass_numbers: Count | None = None


class GraphModel(ModelSettings, GraphFacts):
    """A model of the user's own: a file that `scrimp.export_graph` wrote from a torch module.

    `upload` names a file that the key uploaded, by its SHA-256; `path` one of the models root. Give one of them.

    A record's numbers are the graph's one input, in the shape that the file says. The output has a number for each
    class, or one for regression. Training begins at the file's weights; those with `requires_grad=False` stay.

    What mixes records, such as BatchNorm in training mode, is refused by name.

    `sha256` pins the file's content. It and the other facts are filled in when the job is admitted.
    """

    kind: Literal["graph"] = "graph"
    path: ModelPath | None = Field(None, exclude_if=is_none)
    upload: Sha256Hex | None = Field(None, exclude_if=is_none)

    @model_validator(mode="after")
    def _check_named(self) -> Self:
        if (self.path is None) == (self.upload is None):
            raise ValueError("give `upload`, the SHA-256 of a file that your key uploaded, or `path`: one of them")
        return self

    @property
    def facts(self) -> GraphFacts:
        """What a request says of the file."""
        return GraphFacts.model_validate(self.model_dump(include=set(GraphFacts.model_fields)))

    def held(self, sizes: RecordSizes) -> int | None:
        """See ModelSettings.held."""
        return self.pass_numbers

    def positions(self) -> int:
        """See ModelSettings.positions."""
        return self.places or 1
