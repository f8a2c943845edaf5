"""`scrimp bench-extractors`: which extractor's features make the best linear probe of a public data set."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from scrimp_server.commands.service import Home, refused, settings_of

if TYPE_CHECKING:
    from scrimp_server.extractor_bench import Row


def bench_extractors(
    dataset: Annotated[str, typer.Argument(help="A data set that is declared public: its name or id.")],
    extractor: Annotated[list[str] | None, typer.Option(help="Only these. Default: all that read its records.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Also a private probe at this ε.", min=0.01)] = None,
    records: Annotated[int, typer.Option(help="So many at random; 0: all, and the features are kept.", min=0)] = 2000,
    folds: Annotated[int, typer.Option(help="Of the cross-validation.", min=2, max=20)] = 5,
    image: Annotated[str | None, typer.Option(help="How arrays are images, as in a job: JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Home = None,
) -> None:
    """Say which extractor's features make the best linear probe of a public data set: cross-validated accuracy.

    On a machine of the service, with its models root. A private data set is refused: this charges nothing.
    """
    settings = settings_of(home)
    from pydantic import ValidationError

    from app.db.database import Database
    from core.contracts.extractor import ImageInput
    from core.errors import ServiceError
    from core.parts.damage import DataDamagedError
    from scrimp_server import extractor_bench
    from worker.extractors.extractor_files import ExtractorMissingError

    errors = (extractor_bench.BenchRefusedError, ExtractorMissingError, ServiceError, ValidationError)
    with refused("bench-extractors", *errors), closing(Database.of(settings)) as db:
        form = ImageInput.model_validate_json(image) if image else None
        try:
            with extractor_bench.opened(db, settings, dataset, records or None) as public:
                rows = extractor_bench.bench(public, settings.models_root, extractor or (), epsilon or (), folds, form)
                rows_kept = list(rows)
        except DataDamagedError as error:
            raise extractor_bench.BenchRefusedError(f"{error}; was its content deleted?") from None
    ranked = sorted(rows_kept, key=lambda row: -row.scores[-1].mean)
    if as_json:
        print(json.dumps({"dataset": dataset, "rows": [dataclasses.asdict(row) for row in ranked]}, indent=2))
        return
    for line in table(ranked):
        print(line)


def table(ranked: list[Row]) -> list[str]:
    """The rows, the best first, and what is best."""
    heads = ["without privacy" if each.epsilon is None else f"ε = {each.epsilon:g}" for each in ranked[0].scores]
    lines = [f"{'extractor':<28} {'features':>8} {'ms/record':>9}  " + "  ".join(f"{head:>15}" for head in heads)]
    for row in ranked:
        cells = "  ".join(f"{each.mean:>7.4f} ± {each.deviation:.3f}" for each in row.scores)
        spent = "cached" if row.milliseconds is None else f"{row.milliseconds:.1f}"
        lines.append(f"{row.extractor:<28} {row.features:>8} {spent:>9}  {cells}")
    return [*lines, f"Best {heads[-1]}: {ranked[0].extractor}"]
