"""What a statistics job answers, from its answers.json: a chart for each list of cells, and all answers as a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.dashboard.chart import Axis, Chart, Line, Point, around
from app.dashboard.job_document import document_of
from app.dashboard.numbers import significant
from app.db.database import Database
from app.db.models import Artifact
from app.storage.objects import Objects
from core.contracts.queries import Categories, Histogram, Where
from core.statistics.answer import Answer, AnsweredQuery, AnswersFile

MOST_ROWS = 500  # of a query's table
MOST_CHARTS = 40
MOST_POINTS = 200  # of a chart: more names cannot be read


@dataclass(frozen=True)
class QueryAnswers:
    """A query's answers: rows of (what, value, ± of 95 %), and a chart of its cells. `left_out`: further rows."""

    title: str
    rows: list[tuple[str, str, str]]
    chart: Chart | None
    left_out: int


@dataclass(frozen=True)
class Answers:
    """All queries of a job; `where`: its filters in words."""

    queries: list[QueryAnswers]
    where: list[str] = field(default_factory=list)


def answers_of(db: Database, store: Objects, file: Artifact) -> Answers | None:
    """Reads answers.json; None if it is too large, not there, or damaged."""
    content = document_of(db, store, file, AnswersFile)
    if content is None:
        return None
    return Answers(
        [_query(number, each) for number, each in enumerate(content.queries)], list(map(_filter, content.where))
    )


def _query(number: int, query: AnsweredQuery) -> QueryAnswers:
    rows = [(_what(each), *_numbers(each)) for each in query.answers[:MOST_ROWS]]
    names = query.query.named
    title = f"{query.query.kind} of {', '.join(names)}" if names else query.query.kind
    chart = _chart(number, title, query) if number < MOST_CHARTS else None
    title += f", from {significant(query.threshold, 3)} records on" if query.threshold else ""
    return QueryAnswers(title.capitalize(), rows, chart, len(query.answers) - len(rows))


def _what(answer: Answer) -> str:
    return ": ".join(filter(None, (answer.of, " | ".join(answer.cell)))) or "records"


def _numbers(answer: Answer) -> tuple[str, str]:
    if answer.value is None or answer.interval is None:
        return "too few records", ""
    low, high = answer.interval
    return significant(answer.value, 4), f"{significant(low, 4)} to {significant(high, 4)}"


def _chart(number: int, title: str, query: AnsweredQuery) -> Chart | None:
    """A dot with its interval for each cell of a histogram."""
    cells = [each for each in query.answers if len(each.cell) == 1 and each.value is not None]
    if not isinstance(query.query, Histogram | Categories) or not 1 < len(cells) <= MOST_POINTS:
        return None
    points = [
        Point(at, each.value or 0.0, each.cell[0], _numbers(each)[0], *(each.interval or (None, None)))
        for at, each in enumerate(cells)
    ]
    ends = [end for each in cells for end in (each.interval or ())]
    low, high = around([0.0, *ends])
    names = [each.cell[0] for each in cells]
    x = Axis(query.query.column, -0.5, len(cells) - 0.5, "names", names=names)
    line = Line("records", points, shape="dots", spread="bars")
    return Chart(f"answers-{number}", title, x, Axis("records", low, high), [line])


def _filter(conditions: Where) -> str:
    if conditions.one_of is not None:
        return f"{conditions.column} is one of {', '.join(map(str, conditions.one_of))}"
    low, high = conditions.between or ("", "")
    return f"{conditions.column} from {low} to {high}"
