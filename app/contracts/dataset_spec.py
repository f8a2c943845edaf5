"""DatasetSpec: what an owner declares about a data set. Everything in it is public."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from app.contracts.base import DeltaValue, Document, EpsilonValue, Unit

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
ScaleEnd = Annotated[float, Field(ge=-1e6, le=1e6)]
ClassLabel = (
    Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[str, StringConstraints(min_length=1, max_length=200)]
)


IdText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MAX_IDS = 10_000_000


class ClassificationTask(Document):
    kind: Literal["classification"] = "classification"
    label: ColumnName
    classes: Annotated[list[ClassLabel], Field(min_length=2, max_length=10_000)]

    @model_validator(mode="after")
    def _distinct(self) -> ClassificationTask:
        if len({str(c) for c in self.classes}) != len(self.classes):
            raise ValueError("classes must be distinct, also as text")
        return self


class RegressionTask(Document):
    kind: Literal["regression"] = "regression"
    label: ColumnName


class RatingTask(Document):
    """How a user rates an item. One rating is one record, and unit `example` protects one rating, not a user.

    `scale` is the public range of ratings: predictions start at its middle and are scored within it.
    """

    kind: Literal["rating"] = "rating"
    user: ColumnName = "user_id"
    item: ColumnName = "item_id"
    rating: ColumnName = "rating"
    scale: tuple[ScaleEnd, ScaleEnd]

    @property
    def label(self) -> str:
        return self.rating

    @model_validator(mode="after")
    def _ordered(self) -> RatingTask:
        if self.scale[0] >= self.scale[1]:
            raise ValueError("scale is (lowest, highest)")
        if len({self.user, self.item, self.rating}) < 3:
            raise ValueError("user, item and rating are three columns")
        return self


class NextItemTask(Document):
    """Which item a user comes to next. One record is one user's whole sequence: ε's unit is the user.

    Rows of one user stand in the order of `time`, and rows of one time in that of a hash of user and item: what becomes
    of a row depends on its user's rows alone, wherever in the file they are.

    `min_length`: users with fewer rows are no records; that depends on each user alone. `core`, on public data only:
    users and items with fewer rows than this are left out, again and again until none is.
    """

    kind: Literal["next_item"] = "next_item"
    user: ColumnName = "user_id"
    item: ColumnName = "item_id"
    time: ColumnName = "timestamp"
    min_length: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    core: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = None

    @property
    def label(self) -> str:
        """The column that is read beside the ids."""
        return self.time

    @model_validator(mode="after")
    def _distinct(self) -> NextItemTask:
        if len({self.user, self.item, self.time}) < 3:
            raise ValueError("user, item and time are three columns")
        return self


class LanguageModelTask(Document):
    """The next token of a text from those before. A record is one row's text: it is its own label.

    Where users are protected, all of a user's rows are.
    """

    kind: Literal["language_model"] = "language_model"


class HashedText(Document):
    """A text column as hashed n-grams, L2-normalized, sparse. Nothing is fitted to the data."""

    kind: Literal["hashed_text"] = "hashed_text"
    column: ColumnName
    buckets: Annotated[int, Field(ge=2, le=2**22)] = 32768
    binary: bool = True
    ngrams: tuple[Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(ge=1, le=5)]] = (1, 1)

    @model_validator(mode="after")
    def _ordered(self) -> HashedText:
        if self.ngrams[0] > self.ngrams[1]:
            raise ValueError("ngrams is (shortest, longest)")
        return self


class Text(Document):
    """A text column as it is: for a job's frozen extractor to make features of, or its `hf` model to read."""

    kind: Literal["text"] = "text"
    column: ColumnName


class Columns(Document):
    """Dense numeric columns, used as they are."""

    kind: Literal["columns"] = "columns"
    columns: Annotated[list[ColumnName], Field(min_length=1, max_length=100_000)]

    @model_validator(mode="after")
    def _distinct(self) -> Columns:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("columns must be distinct")
        return self


class Tensor(Document):
    """One array of an NPZ file, records first."""

    kind: Literal["tensor"] = "tensor"
    array: ColumnName


class NumberedIds(Document):
    """The whole numbers first, first + 1, …, first + count − 1."""

    kind: Literal["numbered"] = "numbered"
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_IDS)]
    first: Annotated[int, Field(strict=True, ge=0, le=2**53)] = 1

    @property
    def rows(self) -> int:
        return self.count


class ListedIds(Document):
    """A public list."""

    kind: Literal["listed"] = "listed"
    ids: Annotated[list[IdText], Field(min_length=1, max_length=50_000)]

    @model_validator(mode="after")
    def _distinct(self) -> ListedIds:
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("ids must be distinct")
        return self

    @property
    def rows(self) -> int:
        return len(self.ids)


class HashedIds(Document):
    """Any id, by the first 64 bits of its SHA-256 modulo `buckets`: no list is needed, and some ids share a row."""

    kind: Literal["hashed"] = "hashed"
    buckets: Annotated[int, Field(strict=True, ge=1, le=MAX_IDS)]

    @property
    def rows(self) -> int:
        return self.buckets


Ids = Annotated[NumberedIds | ListedIds | HashedIds, Field(discriminator="kind")]


class Interactions(Document):
    """Pairs of a user and an item. Which of them there are is declared: a list made of the data would tell of them.

    `users` are declared where they have rows of a model: where the task is to rate. Where each is a record, they are
    counted like records, and any id is one.

    `item_frequencies`, of task 'next_item': of each declared item, in order, the share of users in whose sequences it
    is, from public knowledge.

    `unknown`: a row with an id that is not declared makes the file refused, or is dropped; how many are, the owner is
    told when the data set is registered, and nobody else.
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
            raise ValueError(f"`item_frequencies` has one number for each of the {self.items.rows} rows of items")
        return self


class Cap(Document):
    """The most that all jobs together may spend. `delta` defaults to the largest 10⁻ᵏ ≤ 1/records."""

    epsilon: EpsilonValue
    delta: DeltaValue | None = None


class TypicalJob(Document):
    """The job whose number under the cap chooses the order of an `rdp` filter."""

    epsilon: EpsilonValue
    expected_batch_size: Annotated[int, Field(ge=1)]
    epochs: Annotated[float, Field(gt=0, le=1e5)]


class DatasetPrivacy(Document):
    """What is protected, and how much of it may be spent.

    `unit` "example" protects one record, "user" all records of one value of `user_column`: at most
    `max_records_per_user` of a user's are kept, which ones depending on that user alone. `records` counts units.
    Where a record is a user (task 'next_item'), unit "user" needs neither.
    """

    sensitivity: Literal["private", "public"]
    unit: Unit = "example"
    user_column: ColumnName | None = None
    max_records_per_user: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    records: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    cap: Cap | None = None
    filter: Literal["rdp", "gdp"] = "rdp"
    order: Annotated[float, Field(gt=1.0, le=1024.0)] | None = None
    typical_job: TypicalJob | None = None

    @model_validator(mode="after")
    def _private_declares(self) -> DatasetPrivacy:
        named = {self.user_column is not None, self.max_records_per_user is not None}
        if len(named) > 1 or (self.unit == "example" and True in named):
            raise ValueError(
                "unit 'user' goes with `user_column` and `max_records_per_user`, unit 'example' with neither"
            )
        if self.sensitivity == "private" and (self.records is None or self.cap is None):
            raise ValueError("a private data set declares its public `records` and a `cap`")
        if self.sensitivity == "public" and self.cap is not None:
            raise ValueError("a public data set has no cap: leave it out, or declare the data private")
        if self.filter == "gdp" and (self.order is not None or self.typical_job is not None):
            raise ValueError("`order` and `typical_job` belong to the `rdp` filter")
        if self.order is not None and self.typical_job is not None:
            raise ValueError("give `order` or `typical_job`, not both")
        return self


class SplitHoldout(Document):
    """A part split off by a keyed hash of each record's own content: with an account of its own."""

    kind: Literal["split"] = "split"
    fraction: Annotated[float, Field(gt=0.0, lt=1.0)]


class LastItemHoldout(Document):
    """Of task 'next_item': each user's last item. It is held out of the users who are trained on, so that scores on
    private data are charged to the training account."""

    kind: Literal["last_item"] = "last_item"


class PublicHoldout(Document):
    """A separate file that is public: scores on it are free."""

    kind: Literal["public"] = "public"


Task = Annotated[
    ClassificationTask | RegressionTask | RatingTask | NextItemTask | LanguageModelTask, Field(discriminator="kind")
]
INTERACTION_TASKS = ("rating", "next_item")
Features = Annotated[HashedText | Text | Columns | Tensor | Interactions, Field(discriminator="kind")]


class DatasetSpec(Document):
    name: Name
    format: Literal["csv", "parquet", "npz", "jsonl", "interactions"]
    task: Task
    features: Features
    privacy: DatasetPrivacy
    holdout: Annotated[SplitHoldout | LastItemHoldout | PublicHoldout, Field(discriminator="kind")] | None = None
    path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    holdout_path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None

    @field_validator("name")
    @classmethod
    def _is_no_id(cls, name: str) -> str:
        # Where a data set is asked for by its id, no other one may answer to it.
        if name.startswith("ds_"):
            raise ValueError("a name does not begin with `ds_`, as ids do")
        return name

    @model_validator(mode="after")
    def _protects(self) -> DatasetSpec:
        """Records of task 'next_item' are users; elsewhere a column says whose they are."""
        privacy = self.privacy
        if self.task.kind == "next_item":
            if privacy.user_column is not None or (privacy.sensitivity == "private" and privacy.unit != "user"):
                raise ValueError("a record of task 'next_item' is all of a user: give `privacy.unit` 'user', alone")
        elif privacy.unit == "user" and privacy.user_column is None:
            raise ValueError("unit 'user' goes with `user_column` and `max_records_per_user`")
        return self

    @model_validator(mode="after")
    def _interacts(self) -> DatasetSpec:
        task, features = self.task.kind, self.features
        if len({self.format == "interactions", task in INTERACTION_TASKS, features.kind == "interactions"}) > 1:
            raise ValueError(
                "format 'interactions', a task of kind 'rating' or 'next_item', and features of kind 'interactions' "
                "go together"
            )
        if features.kind == "interactions" and (features.users is None) != (task == "next_item"):
            raise ValueError("`features.users` are declared for task 'rating'; for 'next_item' each user is a record")
        if task != "next_item" and self.holdout is not None and self.holdout.kind == "last_item":
            raise ValueError("last items are held out of task 'next_item'")
        if task != "next_item" and features.kind == "interactions" and features.item_frequencies is not None:
            raise ValueError("`features.item_frequencies` belong to task 'next_item'")
        if isinstance(self.task, NextItemTask) and self.task.core and self.privacy.sensitivity == "private":
            raise ValueError(
                "`task.core` is for public data: on private ones another user's rows would change a user's record; use "
                "`task.min_length`"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> DatasetSpec:
        if self.features.kind == "tensor" and self.format != "npz":
            raise ValueError("features of kind 'tensor' come from an npz file")
        if self.features.kind != "tensor" and self.format == "npz":
            raise ValueError("an npz file has arrays: use features of kind 'tensor'")
        named = {
            "hashed_text": [getattr(self.features, "column", None)],
            "text": [getattr(self.features, "column", None)],
            "columns": getattr(self.features, "columns", []),
        }
        if self.task.kind == "language_model" and self.features.kind != "text":
            raise ValueError("task 'language_model' is on features of kind 'text'")
        label = None if self.task.kind == "language_model" else self.task.label
        if label in named.get(self.features.kind, []) or label == getattr(self.features, "array", ""):
            raise ValueError("the label cannot be a feature")
        user = self.privacy.user_column
        if user is not None and self.task.kind == "rating":
            raise ValueError("of ratings, unit 'user' is not offered: a record is one rating")
        if user is not None and user in (label, *named.get(self.features.kind, [])):
            raise ValueError("the user column is neither label nor feature")
        return self
