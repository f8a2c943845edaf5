"""A declaration before its file is read: its name, its files, its defaults, and its public sizes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sqlalchemy.orm import Session

from app.datasets import repository
from app.datasets.sizes import ON_TOP, REGISTRATION, check_fits, declared_slots, split_sizes
from app.formats.asked import ParsedFiles
from app.ledger import accounts
from core.contracts import filter_names
from core.contracts.dataset_spec import DatasetPrivacy, DatasetSpec, PublicHoldout
from core.contracts.stored_documents import Shape
from core.errors import Conflict, InvalidRequest
from core.privacy.derive import default_delta
from core.privacy.price_requests import OrderRequest


class OrderChooser(Protocol):
    """Finds, in a limited process, the order under which most typical jobs fit."""

    def choose_order(self, request: OrderRequest) -> float: ...


def resolved(spec: DatasetSpec, pricing: OrderChooser) -> DatasetSpec:
    """The declaration with its defaults filled in: the cap's δ, and the filter's order in place of the typical job.
    Paths and uploads are dropped.

    Raises:
        InvalidRequest: the cap has no budget under the filter, the hold-out leaves one side without a record, or as
            `declared_slots`.
    """
    plain = spec.without_files()
    privacy = spec.privacy
    declared_slots(spec)
    if privacy.records is not None:
        split_sizes(spec, privacy.records)
    if privacy.cap is None or privacy.records is None:
        return plain
    epsilon, delta = privacy.cap.epsilon, privacy.cap.delta or default_delta(privacy.records)
    of_each = filter_names.delta_of_each(privacy.plan, delta)
    order = _order(privacy, epsilon, of_each, split_sizes(spec, privacy.records)[0], pricing)
    for name in {privacy.filter, *(["rdp"] if order is not None else [])}:
        accounts.filter_for(name, order).budget(epsilon, of_each)  # refused now rather than after the parsing
    changes = {"cap": privacy.cap.model_copy(update={"delta": delta}), "order": order, "typical_job": None}
    return plain.model_copy(update={"privacy": privacy.model_copy(update=changes)})


def wants_holdout_file(spec: DatasetSpec) -> bool:
    return isinstance(spec.holdout, PublicHoldout)


def check_files(spec: DatasetSpec, files: Collection[str]) -> None:
    """Raises InvalidRequest if a file is missing among those that are there, or undeclared."""
    if "file" not in files:
        raise InvalidRequest.at("/file", "there is no data file: send the part `file`, or JSON with `path` or `upload`")
    has = "holdout_file" in files
    if wants_holdout_file(spec) and not has:
        raise InvalidRequest.at(
            "/holdout_file", "a public hold-out needs its own file: send it as the part `holdout_file`"
        )
    if has and not wants_holdout_file(spec):
        raise InvalidRequest.at(
            "/holdout", 'a hold-out file was sent but not declared: add "holdout": {"kind": "public"}'
        )
    if spec.has_edges_file and "edges_file" not in files:
        detail = "these nodes' edges are in a file of their own: send it as `edges_file`, or name it in `edges_path`"
        raise InvalidRequest.at("/edges_file", detail)
    if "edges_file" in files and not spec.has_edges_file:
        raise InvalidRequest.at(
            "/features", "a file of edges was sent but not declared: add `edges` to nodes' features"
        )


def check_name(session: Session, name: str, dataset_id: str | None = None) -> None:
    """Raises Conflict if another data set than this one has the name."""
    if repository.name_is_taken(session, name, dataset_id):
        raise Conflict("duplicate-name", f"a data set named {name!r} exists already: choose another name", name=name)


def _order(
    privacy: DatasetPrivacy, cap_epsilon: float, cap_delta: float, records: int, pricing: OrderChooser
) -> float | None:
    has_order = privacy.plan is not None or filter_names.rule_of(privacy.filter).has_order
    if not has_order or privacy.order is not None:
        return privacy.order
    return pricing.choose_order(
        OrderRequest(cap_epsilon=cap_epsilon, cap_delta=cap_delta, records=records, typical_job=privacy.typical_job)
    )


def shape_of(spec: DatasetSpec, parsed: ParsedFiles, *, is_block: bool = False) -> Shape:
    """The public sizes. Private data: from the declaration. Public data, and a public hold-out: the actual sizes.

    Raises:
        InvalidRequest: the file has more records than slots.
    """
    at = ON_TOP if is_block else REGISTRATION
    counts, slots = parsed.counts, declared_slots(spec, at)
    train, holdout = counts.train, counts.holdout
    if slots is not None and spec.privacy.records is not None:
        train, declared = split_sizes(spec, spec.privacy.records)
        holdout = holdout if wants_holdout_file(spec) else declared
        check_fits(spec, slots, parsed.stored, at)
    return Shape(
        records_train=train,
        records_holdout=holdout,
        features=parsed.features,
        outputs=parsed.outputs,
        sparse=parsed.sparse,
        slots=slots,
    )
