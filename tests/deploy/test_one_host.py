"""docs/one-host.md: its units, its settings, its proxy and its command lines."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.settings import Settings
from scrimp.cli import app
from tests.deploy.test_proxy import parsed

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
PAGE = (ROOT / "docs" / "one-host.md").read_text()
BLOCKS = dict(re.findall(r"<!-- host: ([a-z-]+) -->\n```[a-z]*\n(.*?)```", PAGE, re.S))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("name", [each.name for each in sorted(UNITS.iterdir())])
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("User=scrimp", "User=root")
        (tmp_path / unit.name).write_text(text.replace("=/opt/scrimp/bin/scrimp", f"={sys.executable}"))
    section = "[Timer]\n" if name.endswith(".timer") else "[Service]\n"
    place = tmp_path / name
    for line, problem in (("", ""), ("NoSuchSetting=1\n", "Unknown key")):
        place.write_text(place.read_text().replace(section, f"{section}{line}"))
        done = subprocess.run(["systemd-analyze", "verify", str(place)], capture_output=True, text=True, check=True)
        assert problem in done.stderr and bool(problem) is bool(done.stderr), done.stderr


def test_the_backup_s_unit_makes_a_backup(tmp_path: Path) -> None:
    """Its two commands, as systemd unescapes them, with another folder and a stand-in that notes its arguments."""
    unit = (UNITS / "scrimp-backup.service").read_text()
    place = tmp_path / "backups"
    (place / "old").mkdir(parents=True)
    os.utime(place / "old", (0, 0))
    (tmp_path / "scrimp").write_text('#!/bin/sh\ntest "$1" = backup && mkdir "$2"\n')
    (tmp_path / "scrimp").chmod(0o755)
    for line in re.findall(r"^ExecStart=(.*)", unit, re.M):
        command = line.replace("$$", "$").replace("%%", "%").replace("/var/backups/scrimp", str(place))
        words = shlex.split(command.replace("/opt/scrimp/bin/scrimp", str(tmp_path / "scrimp")))
        subprocess.run(words, check=True)
    (made,) = place.iterdir()
    assert re.fullmatch(r"\d{8}T\d{6}Z", made.name)


def test_the_settings_are_settings_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dict(line.split("=", 1) for line in BLOCKS["settings"].splitlines())
    assert set(values) <= {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.behind_tls and settings.trusted_proxies == 1 and "scrimp.example.org" in settings.allowed_hosts


def test_the_proxy_s_file_is_for_this_host(tmp_path: Path) -> None:
    written = tmp_path / "nginx.conf"
    subprocess.run(["sh", "-c", BLOCKS["proxy"].replace("/etc/nginx/nginx.conf", str(written))], check=True, cwd=ROOT)
    (http,) = parsed(written.read_text()).inside("http")
    assert http.inside("upstream")[0].of("server") == ["127.0.0.1:8100"]
    ports = {each.of("listen")[0] for each in http.inside("server")}
    assert ports == {"80", "443"}


def test_its_commands_are_commands_and_its_files_are_here() -> None:
    lines = "\n".join(BLOCKS.values()).splitlines()
    commands = {match.group(1) for line in lines if (match := re.search(r"/bin/scrimp (\w+)", line))}
    assert commands == {"doctor", "backup", "upgrade"}
    for name in commands:
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
    for pattern in re.findall(r"deploy/[\w./*-]+", BLOCKS["install"] + BLOCKS["proxy"]):
        assert list(ROOT.glob(pattern)), pattern
    started = set(re.findall(r"[\w-]+\.service|[\w-]+\.timer", BLOCKS["start"])) | {"scrimp.service"}
    assert started <= {each.name for each in UNITS.iterdir()}
