"""`python -m tests.fuzz.worker FORMAT ENGINE SEED COUNT FOLDER`: feeds one parser, or any, a line on stdout an input.

It has a limit on memory and may die or hang at any input: the input stands in FOLDER/current before it is parsed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings

ROUND = 2000  # inputs of one hypothesis run: its memory of what it tried grows
LIMITED_EVERY = 1000
# What of Python is worth guiding: the C and C++ of csv, json, zlib, numpy and Arrow is not instrumented.
INSTRUMENTED = ["app.formats", "zipfile", "numpy.lib._format_impl", "json.decoder"]


def main(format: str, engine: str, first: int, count: int, folder: Path) -> None:
    run = (structured if engine == "structured" else guided)(format, first, count, folder)
    from tests.fuzz.cases import Case
    from tests.fuzz.examine import MEMORY_BYTES, examine

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print where they like
    done = 0
    told: set[str] = set()
    scratch = folder / "scratch"

    def one(case: Case) -> None:
        nonlocal done
        if done >= count:
            return
        done += 1
        (folder / "current").write_bytes(case.to_bytes())
        began = time.monotonic()
        try:
            kind = examine(case, scratch)
            if done % LIMITED_EVERY == LIMITED_EVERY // 2:
                through = examine(case, scratch, limited=True)
                kind = kind if through in (kind, "limit") else f"finding: {kind} here, {through} in a process"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = str(error) if isinstance(error, AssertionError) else type(error).__name__
            kind = f"finding: {what} at {Path(last.filename).name}:{last.lineno}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        keep = case.to_bytes().hex() if kind.startswith("finding") and kind not in told else None
        told.add(kind)
        lines.write(json.dumps([kind, time.monotonic() - began, peak, keep, case.parser]) + "\n")

    run(one)


def structured(format: str, first: int, count: int, _folder: Path) -> Callable[[Callable[..., None]], None]:
    from tests.fuzz.cases import cases

    def run(one: Callable[..., None]) -> None:
        for start in range(0, count, ROUND):
            examples = min(ROUND, count - start)
            options = settings(
                max_examples=examples,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            seed(first + start)(options(given(cases(format))(one)))()

    return run


def guided(format: str, first: int, count: int, folder: Path) -> Callable[[Callable[..., None]], None]:
    import atheris

    if format != "npz":
        import sklearn.feature_extraction.text  # noqa: F401 - its modules cannot be imported under libFuzzer

    with atheris.instrument_imports(include=INSTRUMENTED):
        import app.formats.parse
        import app.formats.readers
        from tests.fuzz import examine  # noqa: F401

        module = format if format == "interactions" else app.formats.readers.reader_of(format).module
        __import__(f"app.formats.{module}")
    from tests.fuzz.cases import from_bytes, seeds

    corpus = folder / "guided"
    if not corpus.exists():
        corpus.mkdir()
        for i, each in enumerate(seeds(format, Random(first))):
            (corpus / f"seed{i}").write_bytes(each)

    def run(one: Callable[..., None]) -> None:
        # Its own limits are off: the parent sees deaths and hangs, and RLIMIT_AS bounds the memory.
        flags = [f"-atheris_runs={count}", f"-seed={first}", "-max_len=16384", "-rss_limit_mb=0", "-timeout=3600"]
        flags.append(f"-artifact_prefix={folder}/")  # the parent keeps what killed it
        atheris.Setup([sys.argv[0], *flags, str(corpus)], lambda data: one(from_bytes(format, data)))
        atheris.Fuzz()

    return run


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
