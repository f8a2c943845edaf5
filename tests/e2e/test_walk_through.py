"""The walk-through of docs/paths/growing.md, line by line, in a shell, against `scrimp serve`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "paths" / "growing.md"
END = "__end of the command__"
FENCED = re.compile(r"^```(sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What no two runs have in common: ids and their order, hashes, times, and counts with OpenDP's noise.
DRAWN = {
    r"\b(ds|job|key|sub|chg)_[a-z0-9]{15,}": "ID",
    r"[A-Za-z0-9+/]{43}=": "HASH",
    r"\d{4}-\d\d-\d\dT[\d:.]+Z": "TIME",
    r"\b(first, 2026-10|2026-10, first)\b": "BLOCKS",  # in the order of their ids
    r"\{0: -?\d+, .*?\}": "COUNTS",
    r"[╭╮╰╯│─┏┓┗┛┃━]": " ",
}
LOOKS = re.compile(r"scrimp (blocks list|ledger statement|certificates show)")
# Where OpenDP is not installed: the same charge, without its counts.
BY_HAND = """
CLAIM='{"kind": "laplace", "scale": 10.0}'
scrimp charges post $(scrimp charges reserve visits "$CLAIM" --attested "ages by decade" --json | id_of id)
echo "{0: 1, 'other': 2}"
"""


class Shell:
    """One bash, so that variables and jobs stay from command to command."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
        )

    def run(self, command: str) -> str:
        """Everything that a command says."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{{\n{command}\n}} < /dev/null\necho; echo {END}\n")
        self._process.stdin.flush()
        said: list[str] = []
        for line in self._process.stdout:
            if line.strip() == END:
                return "".join(said)
            said.append(line)
        raise AssertionError(f"the shell ended at {command}: {''.join(said)}")

    def close(self) -> None:
        self.run('[ -z "$SERVE" ] || { kill $SERVE; wait $SERVE; }')
        self._process.communicate()


def steps() -> Iterator[tuple[str, str]]:
    """The commands of the section, each with what it is said to answer; a script has no answer."""
    section = PAGE.read_text()
    for script, block in FENCED.findall(section):
        if script:
            yield block, ""
            continue
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def on_port(command: str, port: int) -> str:
    """A command of the page as this machine can run it."""
    if "charge_opendp.py" in command and importlib.util.find_spec("opendp") is None:
        return BY_HAND
    there = command.replace("127.0.0.1:8100", f"127.0.0.1:{port}")
    return there.replace("serve --home home", f"serve --home home --port {port}")


def plain(text: str) -> str:
    for drawn, name in DRAWN.items():
        text = re.sub(drawn, name, text)
    return " ".join(text.split())


def answers(said: str, expected: str) -> bool:
    """True if all lines are there, in their order; "…" stands for further ones."""
    at, said = 0, plain(said)
    for part in expected.split("…"):
        at = said.find(plain(part), at)
        if at < 0:
            return False
        at += len(plain(part))
    return True


@pytest.mark.nightly
@pytest.mark.slow
def test_the_walk_through(tmp_path: Path) -> None:
    """By day tests/e2e/test_blocks.py runs its jobs, certificates and statements, beneath the command line."""
    tools, port = tmp_path / "tools", servers.free_port()
    tools.mkdir()
    for name, words in {"scrimp": "-m scrimp.cli", "python": "", "python3": ""}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRIMP_")}
    environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "120", "SCRIMP_NOTIFY_AGAIN_S": "1"}
    (tmp_path / "walk").mkdir()
    for name in ("docs", "examples"):
        (tmp_path / "walk" / name).symlink_to(ROOT / name)
    shell, ran = Shell(tmp_path / "walk", environment), 0
    try:
        for written, expected in steps():
            command = on_port(written, port)
            said = shell.run(command)
            for _ in range(20):  # checkpoints are signed once a second: who only looks may look again
                if answers(said, expected) or not LOOKS.match(command):
                    break
                said = shell.run(f"sleep 1; {command}")
            assert answers(said, expected), f"$ {command}\n{said}\nis not what the page says:\n{expected}"
            assert expected or "Traceback" not in said, f"{command}\n{said}"
            ran += 1
    finally:
        shell.close()
    assert ran > 20
