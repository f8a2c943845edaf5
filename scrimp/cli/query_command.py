"""`scrimp query`: statistics of a data set, by options, as one job with one privacy cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from scrimp.cli import show
from scrimp.cli.command_session import Session
from scrimp.query import StatisticsAnswer, StatisticsQuery

QUERIES = (
    "count, histogram:COLUMN, histogram:COLUMN=18,65 (edges between bins), histogram:COLUMN/10 (bins of its range), "
    "contingency:COLUMN,COLUMN, mean:COLUMN,…, sum:…, variance:…, covariance:COLUMN,COLUMN,…, quantile:COLUMN=0.5,0.9, "
    "categories:COLUMN (the frequent values of a text)."
)
WHERE = "Keep records: COLUMN=VALUE,VALUE or COLUMN=LOWEST..HIGHEST. Repeat it: all must hold."


def query(
    session: Session,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set's name or id.")],
    queries: Annotated[list[str], typer.Argument(metavar="QUERY…", help=QUERIES)],
    epsilon: Annotated[float, typer.Option(help="What all queries together may cost.")],
    where: Annotated[list[str] | None, typer.Option(help=WHERE)] = None,
    quote: Annotated[bool, typer.Option("--quote", help="Only say the cost, and how exact answers are.")] = False,
    timeout: Annotated[float, typer.Option(help="The most seconds to wait; the job continues.")] = 600.0,
) -> None:
    """Ask for counts, means, quantiles …: one job, one cost, answers with their noise. --quote is free."""
    statistics = session.client.query(dataset)
    for text in queries:
        statistics = _asked(statistics, text)
    for text in where or ():
        statistics = _filtered(statistics, text)
    if quote:
        price = statistics.quote(epsilon)
        session.result(price, lambda: show.quote(session.console, price))
    else:
        answers = statistics.run(epsilon, timeout_s=timeout)
        session.result(answers, lambda: _table(session.console, answers))


def _asked(statistics: StatisticsQuery, text: str) -> StatisticsQuery:
    """Adds a query that is written as KIND:COLUMNS."""
    kind, _, argument = text.partition(":")
    match kind:
        case "count" if not argument:
            return statistics.count()
        case "histogram" if argument:
            return _histogram(statistics, argument)
        case "categories" if argument:
            return statistics.categories(argument)
        case "contingency" if argument:
            columns, bins = _with_bins(argument)
            return statistics.contingency(*_pair(columns), bins=bins)
        case "mean" | "sum" | "variance" | "covariance" if argument:
            longer: StatisticsQuery = getattr(statistics, kind)(*_names(argument))
            return longer
        case "quantile" if argument:
            column, ranks = _numbers(argument)
            return statistics.quantile(column, *ranks)
    raise typer.BadParameter(f"{text!r} is no query: write {QUERIES}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _pair(text: str) -> tuple[str, str]:
    names = _names(text)
    if len(names) != 2:
        raise typer.BadParameter(f"{text!r} is not two columns, such as sex,age")
    return names[0], names[1]


def _with_bins(text: str) -> tuple[str, int | None]:
    """COLUMN/10 as its two parts; a name may hold a /, which no number follows."""
    name, slash, bins = text.rpartition("/")
    return (name, int(bins)) if slash and bins.isdecimal() else (text, None)


def _numbers(text: str) -> tuple[str, list[float]]:
    """COLUMN=1,2 as its two parts."""
    name, equals, numbers = text.rpartition("=")
    try:
        edges = [float(each) for each in numbers.split(",")]
    except ValueError:
        edges = []
    if not equals or not edges:
        raise typer.BadParameter(f"{text!r} is not a column and numbers, such as age=18,65")
    return name, edges


def _histogram(statistics: StatisticsQuery, text: str) -> StatisticsQuery:
    if "=" in text:
        name, edges = _numbers(text)
        return statistics.histogram(name, edges=edges)
    name, bins = _with_bins(text)
    return statistics.histogram(name, bins=bins)


def _filtered(statistics: StatisticsQuery, text: str) -> StatisticsQuery:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise typer.BadParameter(f"{text!r} is not a filter, such as sex=f or age=18..65")
    low, dots, high = values.partition("..")
    if dots:
        return statistics.where(name, between=[_end(low), _end(high)])
    return statistics.where(name, one_of=[_value(each) for each in _names(values)])


def _end(text: str) -> float | str:
    """A number, or a day as it is written."""
    try:
        return float(text)
    except ValueError:
        return text


def _value(text: str) -> int | str:
    """A whole number, or a text: 0042 is none, as it would be written 42."""
    return int(text) if text.removeprefix("-").isdecimal() and str(int(text)) == text else text


def _table(console: Console, answers: Iterable[StatisticsAnswer]) -> None:
    heads = ("query", "of", "cell", "value", "95 % of the noise")
    show.table(console, heads, ([each.kind, each.of or "", " | ".join(each.cell), *_shown(each)] for each in answers))


def _shown(answer: StatisticsAnswer) -> tuple[str, str]:
    if answer.value is None or answer.interval is None:
        return "too few records", ""
    low, high = answer.interval
    return f"{answer.value:.6g}", f"{low:.6g} to {high:.6g}"
