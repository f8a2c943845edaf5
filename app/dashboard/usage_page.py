"""/dashboard/usage: what jobs took, as plots, as a table and as a file: the rows of GET /v1/usage.

A line is a team, or a key that has none; of ε one on a data set. The smallest ones are a line together, but for ε,
which does not add up: there they are left to the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.dashboard.chart import SERIES, Axis, Chart, Line, Point
from app.dashboard.numbers import significant, up
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.usage.service import UsageRow, UsageView, as_csv, usage
from app.web.deps import Db
from app.web.route_operation import Page
from core.contracts.base import NO_NUL

router = APIRouter(prefix=f"{HOME}/usage", include_in_schema=False, route_class=PageRoute)
Month = Annotated[str | None, Query(pattern=r"^(20\d\d-(0[1-9]|1[0-2]))?$")]
OfDataset = Annotated[str | None, Query(max_length=100, pattern=NO_NUL)]
MOST_ROWS = 500
HOUR, MEGABYTE = 3600.0, 1e6


@router.get("")
@Page("every key")
def usage_page(
    request: Request,
    db: Db,
    viewer: CurrentViewer,
    dataset: OfDataset = None,
    since: Month = None,
    until: Month = None,
) -> Response:
    """Shows what jobs took, on one data set or on all that the viewer sees."""
    with db.read() as session:
        view = usage(session, viewer.caller, dataset or None, since or None, until or None)
    return render(
        request,
        "usage.html",
        viewer=viewer,
        usage=view,
        rows=view.items[:MOST_ROWS],
        dataset=dataset or "",
        charts_of=_charts(view),
        who=who,
    )


@router.get("/usage.csv")
@Page("every key")
def usage_csv(
    db: Db, viewer: CurrentViewer, dataset: OfDataset = None, since: Month = None, until: Month = None
) -> Response:
    """Sends all rows."""
    with db.read() as session:
        view = usage(session, viewer.caller, dataset or None, since or None, until or None)
    headers = {"Content-Disposition": f'attachment; filename="usage-{view.since}-{view.until}.csv"'}
    return Response(as_csv(view), media_type="text/csv; charset=utf-8", headers=headers)


def who(row: UsageRow) -> str:
    """Whose row it is, in words."""
    return row.team or row.key_name or row.key_id or "others"


def _charts(view: UsageView) -> list[Chart]:
    def spender(row: UsageRow) -> str:
        return f"{row.dataset_name}, {who(row)}"

    drawn = [
        _summed(view, "processor", "processor hours", " h", lambda row: row.processor_s / HOUR),
        _summed(view, "gpu", "GPU hours", " h", lambda row: row.gpu_s / HOUR),
        _summed(view, "files", "megabytes of files", " MB", lambda row: row.bytes / MEGABYTE),
        _drawn(view, "epsilon", "posts' ε", "", _largest(view, spender)),
    ]
    return [each for each in drawn if each is not None]


def _summed(view: UsageView, name: str, label: str, unit: str, amount_of: Callable[[UsageRow], float]) -> Chart | None:
    """A line for each of those who took most, and one for the rest."""
    sums: dict[str, dict[str, float]] = {}
    for row in view.items:
        months = sums.setdefault(who(row), {})
        months[row.month] = months.get(row.month, 0.0) + amount_of(row)
    order = sorted(sums, key=lambda name: -sum(sums[name].values()))
    last = len(SERIES) - 1
    first = {each: sums[each] for each in order[: last + (len(order) == len(SERIES))]}
    others_sums = [sums[each] for each in order[len(first) :]]
    if others_sums:
        first[f"{len(others_sums)} more"] = {
            month: sum(each.get(month, 0.0) for each in others_sums)
            for month in {key for each in others_sums for key in each}
        }
    return _drawn(view, name, label, unit, first)


def _largest(view: UsageView, line: Callable[[UsageRow], str]) -> dict[str, dict[str, float]]:
    """By line and month the ε, of those lines that have the largest one."""
    spent: dict[str, dict[str, float]] = {}
    for row in view.items:
        if row.epsilon:
            spent.setdefault(line(row), {})[row.month] = row.epsilon
    order = sorted(spent, key=lambda name: -max(spent[name].values()))
    return {each: spent[each] for each in order[: len(SERIES)]}


def _drawn(view: UsageView, name: str, label: str, unit: str, lines: dict[str, dict[str, float]]) -> Chart | None:
    """A chart by month; None if there is nothing to draw."""
    top = max((value for each in lines.values() for value in each.values()), default=0.0)
    if top <= 0.0:
        return None
    months = view.months
    shown_as = up if name == "epsilon" else significant
    return Chart(
        name,
        f"{label} by month",
        Axis("month of the end (UTC)", -0.3, len(months) - 0.7, "names", names=months),
        Axis(label, 0.0, top * 1.08, unit=unit),
        [
            Line(
                who_,
                [
                    Point(at, values.get(month, 0.0), month, shown_as(values.get(month, 0.0)) + unit)
                    for at, month in enumerate(months)
                ],
                SERIES[number],
            )
            for number, (who_, values) in enumerate(lines.items())
        ],
    )
