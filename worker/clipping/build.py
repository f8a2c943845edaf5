"""Builds the engine that sums a model's gradients, from the model and its mechanism."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from core.contracts.job_spec import Clipping, LinearModel
from core.errors import PrivacyError
from core.privacy.mechanism import TrainingMechanism
from core.privacy.numerics import SumType
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import ClippingKind, GradientEngine
from worker.clipping.linear_clipping import LinearClipping, LinearGradient
from worker.clipping.plain import PlainGradient
from worker.clipping.rating_clipping import RatingClipping, RatingGradient
from worker.clipping.totals import ONE_PROCESS, Floats, Grid
from worker.models.base import Model
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.modules import ModuleModel
from worker.models.networks import Network
from worker.models.views import Views

if TYPE_CHECKING:
    from worker.clipping.opacus import OpacusClipping


def build_engine(
    model: Model,
    clipping: Clipping | None,
    training: TrainingMechanism,
    *,
    positions: int | None = None,
    group: int | None = None,
    grid: Grid | None = None,
    views: Views | None = None,
) -> GradientEngine:
    """The engine of a private job.

    Args:
        model: the job's.
        clipping: the requested clipping, which selects the engine.
        training: what is charged: kind and norm of the clip.
        positions: see Bookkeeping.
        group: how many records a network adds in float32; None: sums are in float64. A linear model adds as many as
            GROUP says.
        grid: how passes are added, if as integers.
        views: of each record, over which its gradient is averaged; None: the record itself.

    Raises:
        PrivacyError: a layer has no per-record gradients, or the model's engine cannot average views.
    """
    _require_views(model, views)
    opacus = clipping is not None and clipping.engine == "opacus"
    kind: ClippingKind = "flat" if training.clipping == "adaptive" else training.clipping
    norm, of_unit = training.max_grad_norm, training.terms_per_unit
    if isinstance(model, Linear) and not opacus:
        return LinearClipping(model, kind, norm, of_unit, "float64" if group is None else "float32", grid, views)
    if isinstance(model, MatrixFactorization):
        return RatingClipping(model, kind, norm, grid)
    network = _module_model(model)
    module = network.module()
    engine = _reference() if opacus else partial(Bookkeeping[Any], group=group, tf32=network.tf32)
    if opacus and isinstance(model, Linear):
        module = next(module.children())  # its tensors have the linear model's names
    return engine(
        module,
        network.record_losses,
        rows=network.rows_per_pass,
        positions=positions,
        dtype=network.dtype,
        kind=kind,
        max_grad_norm=norm,
        records_per_unit=of_unit,
        grid=grid,
        views=views,
    )


def _reference() -> type[OpacusClipping[Any]]:
    from worker.clipping.opacus import OpacusClipping  # noqa: PLC0415 - slow, and only a reference

    return OpacusClipping


def unclipped_engine(
    model: Model,
    sums: SumType = "float64",
    over: Floats = ONE_PROCESS,
    views: Views | None = None,
) -> GradientEngine:
    """The engine for public data: sums gradients without clipping. Raises PrivacyError: see build_engine."""
    _require_views(model, views)
    if isinstance(model, Linear):
        return LinearGradient(model, sums, over, views)
    if isinstance(model, MatrixFactorization):
        return RatingGradient(model, over)
    network = _module_model(model)
    module, rows, dtype, tf32 = network.module(), network.rows_per_pass, network.dtype, network.tf32
    return PlainGradient(module, network.record_losses, rows=rows, dtype=dtype, over=over, views=views, tf32=tf32)


def _require_views(model: Model, views: Views | None) -> None:
    if views is not None and isinstance(model, MatrixFactorization):
        raise PrivacyError("ratings have one view")


def _module_model(model: Model) -> ModuleModel:
    if isinstance(model, Linear):
        spec = LinearModel(bias=model.bias)
        return Network(
            model.features,
            model.outputs,
            spec,
            dtype=model.dtype,
            rows_per_pass=model.rows_per_pass,
            device=model.device,
            class_weights=model.class_weights,
        )
    if isinstance(model, ModuleModel):
        return model
    raise TypeError("no engine for this kind of model")
