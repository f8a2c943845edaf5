"""DatasetSpec: what an owner declares about a data set. Everything in it is public."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import FailFast, Field, StringConstraints, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from core.contracts import filter_names
from core.contracts.base import DeltaValue, Document, EpsilonValue, Unit, is_none
from core.contracts.declared_ids import Ids
from core.contracts.feature_settings import ColumnName, FeatureSettings, TypicalLength
from core.contracts.filter_names import FilterName
from core.contracts.governance import Governance
from core.contracts.neighbourhoods import Fan, Tree
from core.contracts.slots import DeclaredSlots
from core.contracts.table import CsvDialect, RangeEnd, TableFeatures

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ScaleEnd = Annotated[float, Field(ge=-1e6, le=1e6)]
ClassLabel = (
    Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[str, StringConstraints(min_length=1, max_length=200)]
)


ClassShare = Annotated[float, Field(ge=1e-6, le=1.0)]
SHARES_SLACK = 0.01  # rounded shares add up to about 1
LIKELY_GUESS = 6.0  # the loss of a guess among 400 tokens: hardly any model's losses fit under a lower bound


class TaskSettings(Document):
    """What is predicted.

    Attributes:
        of_interactions: records are made of rows with a user and an item.
        record_is_user: each record is all rows of one user.
    """

    of_interactions: ClassVar[bool] = False
    record_is_user: ClassVar[bool] = False

    @property
    def label_column(self) -> str | None:
        """The column that is read besides the features; None if records are their own labels."""
        return None

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record: the number of classes, or 1."""
        return 1

    @property
    def is_classification(self) -> bool:
        """True if one of several classes is predicted."""
        return self.outputs > 1

    def clipped(self, bound: float, items: int) -> str | None:
        """What a score tells less of if losses are clipped to `bound`; None if that is unlikely.

        Args:
            items: the declared number of items.
        """
        return None


def _guess(bound: float, among: int, unit: str) -> str | None:
    guess = math.log(among)
    return (
        f"losses above loss_bound = {bound:g} count as that; a guess among all {unit} has {guess:.3g}"
        if (bound < guess)
        else None
    )


class ClassificationTask(TaskSettings):
    """Predicts one of the declared classes.

    `shares`: about which part of the records has each class, from public knowledge, in the order of `classes`. Weights
    of classes can balance them. Never computed from these records: it becomes public.
    """

    kind: Literal["classification"] = "classification"
    label: ColumnName
    classes: Annotated[list[ClassLabel], Field(min_length=2, max_length=10_000)]
    shares: Annotated[tuple[ClassShare, ...], Field(max_length=10_000)] | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _shares_of_all(self) -> ClassificationTask:
        if self.shares is None:
            return self
        if len(self.shares) != len(self.classes) or abs(math.fsum(self.shares) - 1.0) > SHARES_SLACK:
            raise ValueError("`shares` must have a number for each class, which add up to 1")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> ClassificationTask:
        if len({str(c) for c in self.classes}) != len(self.classes):
            raise ValueError("classes must be distinct, also when written as text")
        return self

    @property
    def label_column(self) -> str:
        return self.label

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def clipped(self, bound: float, items: int) -> str | None:
        """See TaskSettings.clipped."""
        return _guess(bound, len(self.classes), "classes")


class RegressionTask(TaskSettings):
    """Predicts a number.

    `range`: [least, most], what the target can be, from public knowledge. Targets beyond it count as its ends; models
    learn it as [−1, 1], and predict within it, in the target's unit. Without it a model learns the number as it is.
    """

    kind: Literal["regression"] = "regression"
    label: ColumnName
    range: tuple[RangeEnd, RangeEnd] | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _ordered(self) -> RegressionTask:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError("`range` must be [least, most]")
        return self

    @property
    def label_column(self) -> str:
        return self.label


class RatingTask(TaskSettings):
    """How a user rates an item. One rating is one record, so unit `example` protects a rating, not a user.

    `scale` is the public range of ratings: predictions start at its middle, and scores are computed within it.
    """

    of_interactions: ClassVar[bool] = True
    kind: Literal["rating"] = "rating"
    user: ColumnName = "user_id"
    item: ColumnName = "item_id"
    rating: ColumnName = "rating"
    scale: tuple[ScaleEnd, ScaleEnd]

    @property
    def label_column(self) -> str:
        return self.rating

    def clipped(self, bound: float, items: int) -> str | None:
        """See TaskSettings.clipped."""
        largest = (self.scale[1] - self.scale[0]) ** 2
        message = f"squared errors above loss_bound = {bound:g} count as that; they reach {largest:g}"
        return message if bound < largest else None

    @model_validator(mode="after")
    def _ordered(self) -> RatingTask:
        if self.scale[0] >= self.scale[1]:
            raise ValueError("`scale` must be [lowest, highest]")
        if len({self.user, self.item, self.rating}) < 3:
            raise ValueError("`user`, `item` and `rating` must be three different columns")
        return self


class NextItemTask(TaskSettings):
    """Which item a user chooses next. One record is one user's whole sequence, so ε protects the user.

    A user's rows are ordered by `time`; rows with the same time by a hash of user and item. A row's place therefore
    depends on its user's rows alone, not on its place in the file.

    `min_length`: users with fewer rows are dropped; this depends on each user alone. `core`, for public data only:
    users and items with fewer rows than this are removed, repeatedly, until none is left.
    """

    of_interactions: ClassVar[bool] = True
    record_is_user: ClassVar[bool] = True
    kind: Literal["next_item"] = "next_item"
    user: ColumnName = "user_id"
    item: ColumnName = "item_id"
    time: ColumnName = "timestamp"
    min_length: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    core: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = None

    @property
    def label_column(self) -> str:
        return self.time

    def clipped(self, bound: float, items: int) -> str | None:
        """See TaskSettings.clipped."""
        return _guess(bound, items, "items")

    @model_validator(mode="after")
    def _distinct(self) -> NextItemTask:
        if len({self.user, self.item, self.time}) < 3:
            raise ValueError("`user`, `item` and `time` must be three different columns")
        return self


class LanguageModelTask(TaskSettings):
    """Predicts each token of a text from the tokens before it. A record is one row's text, which is its own label.

    Where users are protected, a record is all rows of one user. With `prompt`, a record is the text of that column and
    then the features' text: the model reads both, and the loss is that of the second one's tokens.
    """

    kind: Literal["language_model"] = "language_model"
    prompt: ColumnName | None = None

    @property
    def label_column(self) -> str | None:
        return self.prompt

    def clipped(self, bound: float, items: int) -> str | None:
        """See TaskSettings.clipped."""
        message = f"losses above loss_bound = {bound:g} count as that; a guess among V tokens has ln V, 10.8 for 50,257"
        return message if bound < LIKELY_GUESS else None


class HashedText(FeatureSettings):
    """A text column as hashed n-grams, L2-normalized and sparse, for all jobs. Nothing is fitted to the data.

    Features of kind `text` store the texts themselves: then each job chooses its features, hashed words too.
    """

    is_sparse: ClassVar[bool] = True
    kind: Literal["hashed_text"] = "hashed_text"
    column: ColumnName
    buckets: Annotated[int, Field(ge=2, le=2**22)] = 32768
    binary: bool = True
    ngrams: tuple[Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(ge=1, le=5)]] = (1, 1)

    @model_validator(mode="after")
    def _ordered(self) -> HashedText:
        if self.ngrams[0] > self.ngrams[1]:
            raise ValueError("`ngrams` must be [shortest, longest]")
        return self

    @property
    def names(self) -> list[str]:
        return [self.column]

    def length(self, features: int) -> float:
        """See FeatureSettings.length: rows are normalized."""
        return 1.0


class Text(FeatureSettings):
    """A text column as it is. Each job makes its own features: a `linear` model hashed words, or those of another
    `extractor` that it names; an `hf` model reads the text."""

    kind: Literal["text"] = "text"
    column: ColumnName

    @property
    def names(self) -> list[str]:
        return [self.column]


class Columns(FeatureSettings):
    """Dense numeric columns, used as they are.

    `columns`: of several wrong ones the first is told.
    `typical_length`: about ‖x‖ of a record, from public knowledge: learning rates that are "auto" use it.
    """

    kind: Literal["columns"] = "columns"
    # 100,000 faults are not listed: no other thread runs while pydantic lists them.
    columns: Annotated[list[ColumnName], FailFast(), Field(min_length=1, max_length=100_000)]
    typical_length: TypicalLength | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Columns:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("`columns` must be distinct")
        return self

    @property
    def names(self) -> list[str]:
        return self.columns

    def length(self, features: int) -> float:
        """See FeatureSettings.length."""
        return self.typical_length or super().length(features)


class EdgeColumns(Document):
    """A second file, of edges: two ids a row. The source lists the target; where `undirected`, both list each other.

    The file has the format of the nodes' (for CSV its separator too). Repeated edges count once, and an edge from a
    node to itself is none. What ε protects is still a node with its label, its columns and its own list: with the edges
    that it is the source of; or, if `undirected`, an end of. That others list it is in their lists.
    """

    source: ColumnName = "source"
    target: ColumnName = "target"
    undirected: Annotated[bool, Field(strict=True)]

    @model_validator(mode="after")
    def _apart(self) -> EdgeColumns:
        if self.source == self.target:
            raise ValueError("`source` and `target` must be different columns")
        return self


class NodeColumns(Columns):
    """Nodes of a graph, one a row: dense numeric columns, an id, and a list of other nodes' ids, with spaces between.

    A row is what ε protects: a node with its label, its columns and its list. The nodes that it lists may read its
    columns (models of kind `gcn`); those of its list that are no rows of the file read nothing. Other models read the
    columns alone. Of an undirected graph both ends of an edge list each other.

    `keep`: so many of a list are stored, in an order of the node's own. No id may have two rows.
    `edges`: the lists are made from a file of edges. Then `neighbours` is no column; predictions name lists so.
    """

    kind: Literal["nodes"] = "nodes"  # type: ignore[assignment] # columns by another tag
    node: ColumnName = "id"
    neighbours: ColumnName = "neighbours"
    keep: Fan = 16
    edges: EdgeColumns | None = Field(default=None, exclude_if=is_none)
    # What a job's model reads of the graph (core.contracts.job_spec.seen_by); no declaration has it.
    tree: SkipJsonSchema[Tree | None] = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _apart(self) -> NodeColumns:
        if len({self.node, self.neighbours, *self.columns}) < len(self.columns) + 2:
            raise ValueError("`node`, `neighbours` and `columns` must be different columns")
        return self

    def numbers(self, stored: int) -> int:
        """See FeatureSettings.numbers: what is stored are columns and ids."""
        return len(self.columns) if self.tree is None else self.tree.width(len(self.columns))


class ImageShape(Document):
    """The size of every image of an archive, in pixels; 1 channel for grey, 3 for colours (grey ones become coloured).

    The archive has `boot/1.png`, `coat/2.jpg` and so on: folders are classes, each PNG or JPEG is a record. Features
    are its values, row by row, channels last. In a folder on disk links are left out. Anything else in an archive
    (deeper folders, links, animations, transparency, damage) refuses the file; errors tell counts and no names.
    """

    height: Annotated[int, Field(strict=True, ge=1, le=1024)]
    width: Annotated[int, Field(strict=True, ge=1, le=1024)]
    channels: Literal[1, 3] = 3


class Tensor(FeatureSettings):
    """One array of an NPZ file, records first; or, with `image`, the images of an archive, their values over 255.

    `typical_length`: about ‖x‖ of a record, from public knowledge: learning rates that are "auto" use it.
    """

    kind: Literal["tensor"] = "tensor"
    array: ColumnName
    image: ImageShape | None = None
    typical_length: TypicalLength | None = None

    @property
    def names(self) -> list[str]:
        return [self.array]

    def length(self, features: int) -> float:
        """See FeatureSettings.length."""
        return self.typical_length or super().length(features)


class Interactions(FeatureSettings):
    """Pairs of a user and an item. The ids are declared: a list made from the data would leak them.

    `layout`: `inter` has a header `user_id:token`, `item_id:token`, … between tabs; `dat` has no header,
    `1::1193::5::978300760`, and the columns `user_id`, `item_id`, `rating`, `timestamp`; `csv` and `tsv` have a header,
    and other columns are not read; `parquet` has ids as strings or integers, ratings as numbers.

    Declare `users` where users have rows in the model, that is for task 'rating'. Where each user is a record, users
    are counted like records, and any id is valid.

    `item_frequencies`, for task 'next_item': for each declared item, in order, the share of users whose sequence
    contains it, from public knowledge.

    `unknown`: what happens to a row with an undeclared id: the file is refused, or the row is dropped. Only the owner
    learns how many rows were dropped, at registration.
    """

    kind: Literal["interactions"] = "interactions"
    layout: Literal["inter", "dat", "csv", "tsv", "parquet"]
    users: Ids | None = None
    items: Ids
    unknown: Literal["refuse", "drop"] = "refuse"
    item_frequencies: (
        Annotated[list[Annotated[float, Field(ge=0.0, le=1.0)]], Field(min_length=1, max_length=50_000)] | None
    ) = None

    @model_validator(mode="after")
    def _one_each(self) -> Interactions:
        if self.item_frequencies is not None and len(self.item_frequencies) != self.items.rows:
            raise ValueError(f"`item_frequencies` must have one number for each of the {self.items.rows} rows of items")
        return self

    @property
    def rows(self) -> tuple[int, int]:
        return (self.users.rows if self.users else 0, self.items.rows)


class Cap(Document):
    """The most that all jobs together may spend. `delta` defaults to the largest 10⁻ᵏ ≤ 1/records."""

    epsilon: EpsilonValue
    delta: DeltaValue | None = None


class TypicalJob(Document):
    """The typical job: the order of an `rdp` filter is chosen so that most jobs like it fit the cap."""

    epsilon: EpsilonValue
    expected_batch_size: Annotated[int, Field(ge=1)]
    epochs: Annotated[float, Field(gt=0, le=1e5)]


class DatasetPrivacy(Document):
    """What is protected, and how much privacy may be spent.

    `unit` "example" protects one record; "user" protects all records with the same value of `user_column`. At most
    `max_records_per_user` records of a user are kept, in all blocks together; the choice depends on that user alone.
    `records` counts units. Where a record is a user (task 'next_item'), unit "user" needs neither.

    `filter` decides for ever which jobs the ledger admits: `gdp` full-batch jobs only, and its ε is exact; `rdp` also
    Poisson-sampled jobs (mini-batches), and its ε is an upper bound. Choose `gdp` for linear models, ratings and
    studies, and `rdp` for networks and language models (docs/data.md has a table).

    `plan`, in the place of `filter`, names the jobs that are expected. "any mechanism": `rdp`. "mixed": `gdp`, until
    the first job or charge that it cannot count moves the ledger to `rdp`, with all that was spent, for good. "models
    mostly": the same, but only once the owner declares "mixed". Each of the two filters has all of ε and half of δ.

    `slots`: at most this many units are registered. Choose them before counting the data.
    """

    sensitivity: Literal["private", "public"]
    unit: Unit = "example"
    user_column: ColumnName | None = None
    max_records_per_user: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    records: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    cap: Cap | None = None
    filter: FilterName = "rdp"
    plan: filter_names.Plan | None = Field(default=None, exclude_if=is_none)
    order: Annotated[float, Field(gt=1.0, le=1024.0)] | None = None
    typical_job: TypicalJob | None = None
    slots: DeclaredSlots | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="before")
    @classmethod
    def _plan_chooses(cls, declared: Any) -> Any:
        if isinstance(declared, dict) and declared.get("plan") in filter_names.PLANS:
            return {"filter": filter_names.filter_of_plan(declared["plan"])} | declared
        return declared

    @model_validator(mode="after")
    def _private_declares(self) -> DatasetPrivacy:
        given_fields = {self.user_column is not None, self.max_records_per_user is not None}
        if len(given_fields) > 1 or (self.unit == "example" and True in given_fields):
            raise ValueError("unit 'user' needs `user_column` and `max_records_per_user`; unit 'example' takes neither")
        if self.sensitivity == "private" and (self.records is None or self.cap is None):
            raise ValueError("a private data set must declare its public `records` and a `cap`")
        if self.sensitivity == "public" and self.cap is not None:
            raise ValueError("a public data set has no cap: leave `cap` out, or declare the data private")
        if self.sensitivity == "public" and self.slots is not None:
            raise ValueError("a public data set has no slots, as its number of records is public: leave `slots` out")
        if self.plan is not None and (
            self.sensitivity == "public" or self.filter != filter_names.filter_of_plan(self.plan)
        ):
            raise ValueError("a `plan` chooses the filters of a private data set: leave `filter` out, or the plan")
        has_order = self.plan is not None or filter_names.rule_of(self.filter).has_order
        if not has_order and (self.order is not None or self.typical_job is not None):
            ordered = " or ".join(f"`{name}`" for name in filter_names.FILTERS if filter_names.rule_of(name).has_order)
            raise ValueError(f"`order` and `typical_job` are for the {ordered} filter only")
        if self.order is not None and self.typical_job is not None:
            raise ValueError("give `order` or `typical_job`, not both")
        return self


class SplitHoldout(Document):
    """A part split off by a keyed hash of each record's own content. It has an account of its own."""

    kind: Literal["split"] = "split"
    fraction: Annotated[float, Field(gt=0.0, lt=1.0)]


class LastItemHoldout(Document):
    """For task 'next_item': each user's last item. Those users are also trained on, so scores on private data are
    charged to the training account."""

    kind: Literal["last_item"] = "last_item"


class PublicHoldout(Document):
    """A separate public file: scores on it are free."""

    kind: Literal["public"] = "public"


Task = Annotated[
    ClassificationTask | RegressionTask | RatingTask | NextItemTask | LanguageModelTask, Field(discriminator="kind")
]
# Files with one record a row, or an image (app.formats.readers).
TableFormat = Literal["csv", "parquet", "npz", "jsonl", "arrow", "images"]
Features = Annotated[
    HashedText | Text | Columns | NodeColumns | TableFeatures | Tensor | Interactions, Field(discriminator="kind")
]


# The files of a registration, and what begins the members that name them: `path`, `holdout_upload`.
PREFIXES = {"file": "", "holdout_file": "holdout_", "edges_file": "edges_"}
NAMED_BY = ("path", "upload")
UploadId = Annotated[str, StringConstraints(pattern=r"^up_[a-z2-7]{21}$")]


class DatasetSpec(Document):
    """The declaration of a data set: format, task, features, privacy and hold-out. All of it is public.

    `wrong_rows`: what happens to a row with a cell that cannot be used, or with another number of cells: the file is
    refused, or the row is dropped. A row is dropped for its own cells alone. Only the owner learns how many were, at
    registration.
    """

    name: Name
    format: Literal[TableFormat, "interactions"]
    task: Task
    features: Features
    csv: CsvDialect | None = None
    wrong_rows: Literal["refuse", "drop"] = Field(default="refuse", exclude_if=lambda rule: rule == "refuse")
    privacy: DatasetPrivacy
    governance: Governance | None = Field(default=None, exclude_if=is_none)
    holdout: Annotated[SplitHoldout | LastItemHoldout | PublicHoldout, Field(discriminator="kind")] | None = None
    path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    holdout_path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    upload: UploadId | None = None
    holdout_upload: UploadId | None = None
    edges_path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = Field(
        default=None, exclude_if=is_none
    )
    edges_upload: UploadId | None = Field(default=None, exclude_if=is_none)

    @property
    def has_edges_file(self) -> bool:
        """Whether a file of edges belongs to it."""
        return isinstance(self.features, NodeColumns) and self.features.edges is not None

    def without_files(self) -> DatasetSpec:
        """The declaration, whichever files it names."""
        return self.model_copy(update=dict.fromkeys(f"{prefix}{by}" for prefix in PREFIXES.values() for by in NAMED_BY))

    @field_validator("name")
    @classmethod
    def _is_no_id(cls, name: str) -> str:
        # A data set can be requested by its id: a name must not look like one.
        if name.startswith("ds_"):
            raise ValueError("a name must not begin with `ds_`: ids do")
        return name

    @model_validator(mode="after")
    def _protects(self) -> DatasetSpec:
        """For task 'next_item' records are users; for other tasks a column names each record's user."""
        privacy = self.privacy
        if self.task.record_is_user:
            if privacy.user_column is not None or (privacy.sensitivity == "private" and privacy.unit != "user"):
                raise ValueError(
                    "with task 'next_item' a record is one user: give `privacy.unit` 'user' without `user_column`"
                )
        elif privacy.unit == "user" and privacy.user_column is None:
            raise ValueError("unit 'user' needs `user_column` and `max_records_per_user`")
        return self

    @model_validator(mode="after")
    def _interacts(self) -> DatasetSpec:
        task, features = self.task, self.features
        declared = features if isinstance(features, Interactions) else None
        if len({self.format == "interactions", task.of_interactions, declared is not None}) > 1:
            raise ValueError(
                "format 'interactions', a task of kind 'rating' or 'next_item', and features of kind 'interactions' "
                "go together"
            )
        if declared is not None and (declared.users is None) != task.record_is_user:
            raise ValueError("declare `features.users` for task 'rating' only; with 'next_item' each user is a record")
        if not task.record_is_user and isinstance(self.holdout, LastItemHoldout):
            raise ValueError("hold-out kind 'last_item' needs task 'next_item'")
        if not task.record_is_user and declared is not None and declared.item_frequencies is not None:
            raise ValueError("`features.item_frequencies` are for task 'next_item' only")
        if isinstance(self.task, NextItemTask) and self.task.core and self.privacy.sensitivity == "private":
            raise ValueError(
                "`task.core` is for public data only: on private data another user's rows would change a user's "
                "record; use `task.min_length`"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> DatasetSpec:
        is_tensor = isinstance(self.features, Tensor)
        if is_tensor and self.format not in ("npz", "images"):
            raise ValueError("features of kind 'tensor' need an npz file, or an archive of images")
        has_image = isinstance(self.features, Tensor) and self.features.image is not None
        if has_image != (self.format == "images"):
            raise ValueError("format 'images' and a tensor's `image` go together")
        if has_image and not (isinstance(self.task, ClassificationTask) and self.privacy.user_column is None):
            raise ValueError("an archive of images has a class for each image, and no users: use task 'classification'")
        if not is_tensor and self.format == "npz":
            raise ValueError("an npz file holds arrays: use features of kind 'tensor'")
        if self.wrong_rows == "drop" and self.format in ("interactions", "images"):
            raise ValueError("`wrong_rows` is for files with one record a row; interactions have `features.unknown`")
        if self.csv is not None and self.format != "csv":
            raise ValueError("`csv` describes a CSV file: leave it out for other formats")
        if isinstance(self.task, LanguageModelTask) and not isinstance(self.features, Text):
            raise ValueError("task 'language_model' needs features of kind 'text'")
        if isinstance(self.features, NodeColumns):
            self._graph(self.features)
        label = self.task.label_column
        if label in self.features.names:
            name = "prompt" if isinstance(self.task, LanguageModelTask) else "label"
            raise ValueError(f"the {name} cannot also be a feature")
        user = self.privacy.user_column
        if user is not None and isinstance(self.task, RatingTask):
            raise ValueError("unit 'user' is not available for task 'rating': a record is one rating")
        if user is not None and user in (label, *self.features.names):
            raise ValueError("the user column cannot be the label or a feature")
        return self

    def _graph(self, features: NodeColumns) -> None:
        if features.tree is not None:
            raise ValueError("`tree` is what a job's model reads: leave it out")
        if self.privacy.user_column is not None:
            raise ValueError("features of kind 'nodes' have one row a node: use the unit 'example'")
        if self.task.label_column in (features.node, features.neighbours):
            raise ValueError("the label cannot also be the node's id or its list")
