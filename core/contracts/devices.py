"""What a worker computes on: its processor or one GPU, as it found them when it started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.contracts.base import Document

Kind = Literal["cpu", "cuda"]


class Device(Document):
    """A processor or a GPU.

    Attributes:
        index: a GPU's place among those that the worker may see, in the order of the PCI bus; 0 for the processor.
        memory_bytes: its whole memory; null: not known.
        capability: of a GPU, such as "9.0".
        driver: the version of the GPU's driver; null: not known.
        cuda: the CUDA version that torch was built for; null on a processor.
        cudnn: the version of cuDNN, as it counts itself; null: not known.
        processes: the most processes that its worker runs for one job; null: not known.
        gpus: of a worker that runs jobs on a cluster's GPUs, the most that it runs one job on; null: this one alone.
    """

    kind: Kind
    index: Annotated[int, Field(ge=0)]
    name: str
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    processes: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None

    @property
    def most_gpus(self) -> int:
        """The most GPUs that its worker runs one job on."""
        return 0 if self.kind == "cpu" else 1 if self.gpus is None else self.gpus

    @property
    def label(self) -> str:
        """The device as an operator names it: `cpu` or `cuda:1`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def card(self) -> str | None:
        """What a GPU's bits depend on besides code and packages; None for a processor.

        >>> Device(kind="cuda", index=1, name="A GPU", capability="9.0", driver="580.65", cudnn="91002").card
        'A GPU 9.0, driver 580.65, cuDNN 91002'
        """
        if self.kind == "cpu":
            return None
        return f"{self.name} {self.capability}, driver {self.driver}, cuDNN {self.cudnn}"


def kind_of(device: str, ready: str | None) -> Kind:
    """Returns the kind of device that a job's attempts run on, as its plan says.

    Args:
        device: its stored `runtime.device`. An admission settles `auto`; a job of an earlier release that still says
            so has the passes of a processor.
        ready: the kind of its earlier ready attempts, which of such a job may have been a GPU.

    >>> kind_of("cuda", None), kind_of("auto", None), kind_of("auto", "cuda")
    ('cuda', 'cpu', 'cuda')
    """
    return "cuda" if (ready or device) == "cuda" else "cpu"
