"""What an owner declares about a data set. Written by scripts/write_specs.py from core/contracts."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from scrimp.spec import Spec


class Cap(Spec):
    """The most that all jobs together may spend. `delta` defaults to the largest 10⁻ᵏ ≤ 1/records."""

    epsilon: Annotated[float, Field(ge=0.0001, le=100.0)]
    delta: Annotated[float, Field(ge=1e-15, lt=0.01)] | None = None


class CategoryColumn(Spec):
    """One of the declared values, compared as text: a feature each, and one for `other` where used. `unknown` decides
    about other values, `missing` about missing cells: `refuse` the file, or count them as `other`.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    missing_cells: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=20)] = []
    kind: Literal["category"] = "category"
    values: Annotated[
        list[
            Annotated[int, Field(ge=-9007199254740992, le=9007199254740992)]
            | Annotated[str, Field(min_length=1, max_length=200)]
        ],
        Field(min_length=1, max_length=10000),
    ]
    unknown: Literal["refuse", "other"] = "refuse"
    missing: Literal["refuse", "other"] = "refuse"


class ClassificationTask(Spec):
    """Predicts one of the declared classes.

    `shares`: about which part of the records has each class, from public knowledge, in the order of `classes`. Weights
    of classes can balance them. Never computed from these records: it becomes public.
    """

    kind: Literal["classification"] = "classification"
    label: Annotated[str, Field(min_length=1, max_length=200)]
    classes: Annotated[
        list[
            Annotated[int, Field(ge=-9007199254740992, le=9007199254740992)]
            | Annotated[str, Field(min_length=1, max_length=200)]
        ],
        Field(min_length=2, max_length=10000),
    ]
    shares: Annotated[list[Annotated[float, Field(ge=1e-06, le=1.0)]], Field(max_length=10000)] | None = None


class Columns(Spec):
    """Dense numeric columns, used as they are.

    `columns`: of several wrong ones the first is told.
    `typical_length`: about ‖x‖ of a record, from public knowledge: learning rates that are "auto" use it.
    """

    kind: Literal["columns"] = "columns"
    columns: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100000)
    ]
    typical_length: Annotated[float, Field(ge=1e-06, le=1000000.0)] | None = None


class CsvDialect(Spec):
    """How a CSV file is written: what separates its cells, and what its numbers' decimals."""

    separator: Literal[",", ";", "\t", "|"] = ","
    decimal: Literal[".", ","] = "."


class DeclaredSlots(Spec):
    """At most this many units, and records, of each part; public. A number left out has its default (docs/data.md,
    "Slots"): ⌈1.05 d⌉ + 64 + 6 √(f (1 − f) `records`) for d units declared of a part, never fewer, and a split with
    `fraction` f.

    `train` and `holdout` count what `records` counts. `train_rows` and `holdout_rows` count records where a unit is a
    user with up to k of them; the default is k times the units. A file with more is refused, and its owner alone is
    told.
    """

    train: Annotated[int, Field(ge=1, le=9007199254740991)] | None = None
    holdout: Annotated[int, Field(ge=1, le=9007199254740991)] | None = None
    train_rows: Annotated[int, Field(ge=1, le=9007199254740991)] | None = None
    holdout_rows: Annotated[int, Field(ge=1, le=9007199254740991)] | None = None


class TypicalJob(Spec):
    """The typical job: the order of an `rdp` filter is chosen so that most jobs like it fit the cap."""

    epsilon: Annotated[float, Field(ge=0.0001, le=100.0)]
    expected_batch_size: Annotated[int, Field(ge=1)]
    epochs: Annotated[float, Field(gt=0, le=100000.0)]


class DatasetPrivacy(Spec):
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
    unit: Literal["example", "user"] = "example"
    user_column: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    max_records_per_user: Annotated[int, Field(ge=1, le=10000)] | None = None
    records: Annotated[int, Field(ge=1, le=1000000000000)] | None = None
    cap: Cap | None = None
    filter: Literal["rdp", "gdp"] = "rdp"
    plan: Literal["models mostly", "mixed", "any mechanism"] | None = None
    order: Annotated[float, Field(gt=1.0, le=1024.0)] | None = None
    typical_job: TypicalJob | None = None
    slots: DeclaredSlots | None = None


class Governance(Spec):
    """Who answers for a data set, and what it may be used for.

    Attributes:
        controller: the organisation that decides on the data.
        purposes: what jobs may be for; a job that names another is refused.
        legal_basis, region, retention, contact: in words.
        requires: what every job must say of its use.
    """

    controller: Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\\x00]*$")]
    purposes: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200, pattern="^[^\\x00]*$")]], Field(max_length=50)
    ] = []
    legal_basis: Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\\x00]*$")] | None = None
    region: Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\\x00]*$")] | None = None
    retention: Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\\x00]*$")] | None = None
    contact: Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\\x00]*$")] | None = None
    requires: Annotated[list[Literal["purpose", "permit"]], Field(max_length=2)] = []


class HashedText(Spec):
    """A text column as hashed n-grams, L2-normalized and sparse, for all jobs. Nothing is fitted to the data.

    Features of kind `text` store the texts themselves: then each job chooses its features, hashed words too.
    """

    kind: Literal["hashed_text"] = "hashed_text"
    column: Annotated[str, Field(min_length=1, max_length=200)]
    buckets: Annotated[int, Field(ge=2, le=4194304)] = 32768
    binary: bool = True
    ngrams: tuple[Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(ge=1, le=5)]] = (1, 1)


class HashedIds(Spec):
    """Any id, mapped to the first 64 bits of its SHA-256 modulo `buckets`. No list is needed; some ids share a row."""

    kind: Literal["hashed"] = "hashed"
    buckets: Annotated[int, Field(ge=1, le=10000000)]


class ListedIds(Spec):
    """A public list of ids."""

    kind: Literal["listed"] = "listed"
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=50000)]


class NumberedIds(Spec):
    """The whole numbers first, first + 1, …, first + count − 1."""

    kind: Literal["numbered"] = "numbered"
    count: Annotated[int, Field(ge=1, le=10000000)]
    first: Annotated[int, Field(ge=0, le=9007199254740992)] = 1


class Interactions(Spec):
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
    users: Annotated[NumberedIds | ListedIds | HashedIds, Field(discriminator="kind")] | None = None
    items: Annotated[NumberedIds | ListedIds | HashedIds, Field(discriminator="kind")]
    unknown: Literal["refuse", "drop"] = "refuse"
    item_frequencies: (
        Annotated[list[Annotated[float, Field(ge=0.0, le=1.0)]], Field(min_length=1, max_length=50000)] | None
    ) = None


class LanguageModelTask(Spec):
    """Predicts each token of a text from the tokens before it. A record is one row's text, which is its own label.

    Where users are protected, a record is all rows of one user. With `prompt`, a record is the text of that column and
    then the features' text: the model reads both, and the loss is that of the second one's tokens.
    """

    kind: Literal["language_model"] = "language_model"
    prompt: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class LastItemHoldout(Spec):
    """For task 'next_item': each user's last item. Those users are also trained on, so scores on private data are
    charged to the training account.
    """

    kind: Literal["last_item"] = "last_item"


class NextItemTask(Spec):
    """Which item a user chooses next. One record is one user's whole sequence, so ε protects the user.

    A user's rows are ordered by `time`; rows with the same time by a hash of user and item. A row's place therefore
    depends on its user's rows alone, not on its place in the file.

    `min_length`: users with fewer rows are dropped; this depends on each user alone. `core`, for public data only:
    users and items with fewer rows than this are removed, repeatedly, until none is left.
    """

    kind: Literal["next_item"] = "next_item"
    user: Annotated[str, Field(min_length=1, max_length=200)] = "user_id"
    item: Annotated[str, Field(min_length=1, max_length=200)] = "item_id"
    time: Annotated[str, Field(min_length=1, max_length=200)] = "timestamp"
    min_length: Annotated[int, Field(ge=1, le=1000)] = 1
    core: Annotated[int, Field(ge=2, le=1000)] | None = None


class EdgeColumns(Spec):
    """A second file, of edges: two ids a row. The source lists the target; where `undirected`, both list each other.

    The file has the format of the nodes' (for CSV its separator too). Repeated edges count once, and an edge from a
    node to itself is none. What ε protects is still a node with its label, its columns and its own list: with the edges
    that it is the source of; or, if `undirected`, an end of. That others list it is in their lists.
    """

    source: Annotated[str, Field(min_length=1, max_length=200)] = "source"
    target: Annotated[str, Field(min_length=1, max_length=200)] = "target"
    undirected: bool


class NodeColumns(Spec):
    """Nodes of a graph, one a row: dense numeric columns, an id, and a list of other nodes' ids, with spaces between.

    A row is what ε protects: a node with its label, its columns and its list. The nodes that it lists may read its
    columns (models of kind `gcn`); those of its list that are no rows of the file read nothing. Other models read the
    columns alone. Of an undirected graph both ends of an edge list each other.

    `keep`: so many of a list are stored, in an order of the node's own. No id may have two rows.
    `edges`: the lists are made from a file of edges. Then `neighbours` is no column; predictions name lists so.
    """

    kind: Literal["nodes"] = "nodes"
    columns: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100000)
    ]
    typical_length: Annotated[float, Field(ge=1e-06, le=1000000.0)] | None = None
    node: Annotated[str, Field(min_length=1, max_length=200)] = "id"
    neighbours: Annotated[str, Field(min_length=1, max_length=200)] = "neighbours"
    keep: Annotated[int, Field(ge=1, le=64)] = 16
    edges: EdgeColumns | None = None


class PublicHoldout(Spec):
    """A separate public file: scores on it are free."""

    kind: Literal["public"] = "public"


class RatingTask(Spec):
    """How a user rates an item. One rating is one record, so unit `example` protects a rating, not a user.

    `scale` is the public range of ratings: predictions start at its middle, and scores are computed within it.
    """

    kind: Literal["rating"] = "rating"
    user: Annotated[str, Field(min_length=1, max_length=200)] = "user_id"
    item: Annotated[str, Field(min_length=1, max_length=200)] = "item_id"
    rating: Annotated[str, Field(min_length=1, max_length=200)] = "rating"
    scale: tuple[
        Annotated[float, Field(ge=-1000000.0, le=1000000.0)], Annotated[float, Field(ge=-1000000.0, le=1000000.0)]
    ]


class RegressionTask(Spec):
    """Predicts a number.

    `range`: [least, most], what the target can be, from public knowledge. Targets beyond it count as its ends; models
    learn it as [−1, 1], and predict within it, in the target's unit. Without it a model learns the number as it is.
    """

    kind: Literal["regression"] = "regression"
    label: Annotated[str, Field(min_length=1, max_length=200)]
    range: tuple[Annotated[float, Field(ge=-1e30, le=1e30)], Annotated[float, Field(ge=-1e30, le=1e30)]] | None = None


class SplitHoldout(Spec):
    """A part split off by a keyed hash of each record's own content. It has an account of its own."""

    kind: Literal["split"] = "split"
    fraction: Annotated[float, Field(gt=0.0, lt=1.0)]


class DateColumn(Spec):
    """A day, scaled by its range like a number. `format` is "iso" (2024-05-01, a time after it is not read) or a
    pattern such as "%d.%m.%Y". A time's day is that of its zone; years 1 to 9999.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    missing_cells: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=20)] = []
    kind: Literal["date"] = "date"
    range: tuple[date, date]
    format: Annotated[str, Field(pattern="^(iso|[%dmYybB/. ,:HMS-]{4,40})$")] = "iso"
    missing: Literal["refuse", "middle", "flag"] = "refuse"


class NumberColumn(Spec):
    """A number. With `range` [lo, hi], values beyond it are clipped, and x becomes 2 (x − lo) / (hi − lo) − 1, of logs
    with `scale` "log". Cells are stored as read: a range can be declared anew.

    `scale`: "log" for sums of money, counts and other quantities over several decades, with a range above 0: its
    lowest end is the smallest value that is told from zero.

    `bins`: a number of bins that are equally wide on the scale, or the edges between them: (18, 65) makes three bins,
    and 18 is in the second. Each bin is a feature, 1 for a number in it.

    `missing`: `refuse` the file; take the `middle` of the range, or a number; the middle with a `flag`, a further
    feature that is 1 where the cell is missing; or, with `bins`, a bin of its `own`.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    missing_cells: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=20)] = []
    kind: Literal["number"] = "number"
    range: tuple[Annotated[float, Field(ge=-1e30, le=1e30)], Annotated[float, Field(ge=-1e30, le=1e30)]] | None = None
    scale: Literal["linear", "log"] = "linear"
    bins: (
        Annotated[int, Field(ge=2, le=1000)]
        | Annotated[list[Annotated[float, Field(ge=-1e30, le=1e30)]], Field(min_length=1, max_length=999)]
        | None
    ) = None
    missing: Literal["refuse", "middle", "flag", "own"] | Annotated[float, Field(ge=-1e30, le=1e30)] = "refuse"


class TextColumn(Spec):
    """A text whose values nobody has to know: at most `longest` of the declared `characters`. An empty or missing cell
    is no value; any other text refuses the file, or drops its row with `wrong_rows` "drop".

    No model reads it. Statistics count which values are frequent (`categories`), and filter by values (`where`).
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    longest: Annotated[int, Field(ge=1, le=40)]
    characters: Annotated[str, Field(min_length=2, max_length=1000)] = (
        " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
    )


class TableFeatures(Spec):
    """Columns of several kinds, scaled by declared ranges. A record's features depend on its own cells alone. Where all
    columns have bins or categories, each record has length √columns, and linear models read it as a sparse row.

    `pairs` of columns with bins or categories: one more feature for each pair of their places, so that a linear model
    can learn what the two do together. `texts`: columns that no model reads.
    """

    kind: Literal["table"] = "table"
    columns: Annotated[
        list[Annotated[NumberColumn | DateColumn | CategoryColumn, Field(discriminator="kind")]],
        Field(min_length=1, max_length=10000),
    ]
    pairs: Annotated[
        list[
            tuple[
                Annotated[str, Field(min_length=1, max_length=200)], Annotated[str, Field(min_length=1, max_length=200)]
            ]
        ],
        Field(max_length=100),
    ] = []
    texts: Annotated[list[TextColumn], Field(max_length=100)] = []


class ImageShape(Spec):
    """The size of every image of an archive, in pixels; 1 channel for grey, 3 for colours (grey ones become coloured).

    The archive has `boot/1.png`, `coat/2.jpg` and so on: folders are classes, each PNG or JPEG is a record. Features
    are its values, row by row, channels last. In a folder on disk links are left out. Anything else in an archive
    (deeper folders, links, animations, transparency, damage) refuses the file; errors tell counts and no names.
    """

    height: Annotated[int, Field(ge=1, le=1024)]
    width: Annotated[int, Field(ge=1, le=1024)]
    channels: Literal[1, 3] = 3


class Tensor(Spec):
    """One array of an NPZ file, records first; or, with `image`, the images of an archive, their values over 255.

    `typical_length`: about ‖x‖ of a record, from public knowledge: learning rates that are "auto" use it.
    """

    kind: Literal["tensor"] = "tensor"
    array: Annotated[str, Field(min_length=1, max_length=200)]
    image: ImageShape | None = None
    typical_length: Annotated[float, Field(ge=1e-06, le=1000000.0)] | None = None


class Text(Spec):
    """A text column as it is. Each job makes its own features: a `linear` model hashed words, or those of another
    `extractor` that it names; an `hf` model reads the text.
    """

    kind: Literal["text"] = "text"
    column: Annotated[str, Field(min_length=1, max_length=200)]


class DatasetSpec(Spec):
    """The declaration of a data set: format, task, features, privacy and hold-out. All of it is public.

    `wrong_rows`: what happens to a row with a cell that cannot be used, or with another number of cells: the file is
    refused, or the row is dropped. A row is dropped for its own cells alone. Only the owner learns how many were, at
    registration.
    """

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    format: Literal["csv", "parquet", "npz", "jsonl", "arrow", "images", "interactions"]
    task: Annotated[
        ClassificationTask | RegressionTask | RatingTask | NextItemTask | LanguageModelTask, Field(discriminator="kind")
    ]
    features: Annotated[
        HashedText | Text | Columns | NodeColumns | TableFeatures | Tensor | Interactions, Field(discriminator="kind")
    ]
    csv: CsvDialect | None = None
    wrong_rows: Literal["refuse", "drop"] = "refuse"
    privacy: DatasetPrivacy
    governance: Governance | None = None
    holdout: Annotated[SplitHoldout | LastItemHoldout | PublicHoldout, Field(discriminator="kind")] | None = None
    path: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    holdout_path: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    upload: Annotated[str, Field(pattern="^up_[a-z2-7]{21}$")] | None = None
    holdout_upload: Annotated[str, Field(pattern="^up_[a-z2-7]{21}$")] | None = None
    edges_path: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    edges_upload: Annotated[str, Field(pattern="^up_[a-z2-7]{21}$")] | None = None
