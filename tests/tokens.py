"""A PKCS #11 token in software (SoftHSM), and `scrimp keys token` as its user runs it.

Without SoftHSM its tests are skipped; SCRIMP_REQUIRE_SOFTHSM=1 has them fail.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
)
PIN = "4321-right"


@dataclass(frozen=True)
class Token:
    """A token of its own in a folder; its PIN is in a file."""

    folder: Path
    module: str
    name: str = "scrimp test"

    @classmethod
    def new(cls, folder: Path) -> Token:
        """An initialized one. Skips the test where there is no SoftHSM."""
        module = next((each for each in MODULES if Path(each).exists()), None)
        if module is None or which("softhsm2-util") is None or find_spec("pkcs11") is None:
            reason = "SoftHSM (apt install softhsm2) or python-pkcs11 is not here"
            if os.environ.get("SCRIMP_REQUIRE_SOFTHSM") == "1":
                pytest.fail(f"{reason} (SCRIMP_REQUIRE_SOFTHSM=1)")
            pytest.skip(reason)
        (folder / "tokens").mkdir(parents=True)
        (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
        made = cls(folder, module)
        words = ["--init-token", "--free", "--label", made.name, "--so-pin", "12345678", "--pin", PIN]
        subprocess.run(["softhsm2-util", *words], env=made.environment, check=True, capture_output=True, timeout=120)
        made.write_pin(PIN)
        return made

    @property
    def environment(self) -> dict[str, str]:
        """In which the module finds the token, and Python what this process does."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SCRIMP_")}
        found = {"SOFTHSM2_CONF": str(self.folder / "softhsm2.conf"), "SCRIMP_HOME": str(self.folder / "root home")}
        return plain | found | {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}

    def write_pin(self, pin: str) -> None:
        (self.folder / "pin").write_text(f"{pin}\n")

    def address(self, label: str, *, token: str | None = None, pin: str = "pin") -> str:
        name = (token or self.name).replace(" ", "%20")
        return f"pkcs11:token={name};object={label}?module-path={self.module}&pin-source=file:{self.folder / pin}"

    def command(self, label: str) -> str:
        """What SCRIMP_SIGN_COMMAND says."""
        told = {name: self.environment[name] for name in ("SOFTHSM2_CONF", "PYTHONPATH")}
        words = [sys.executable, "-m", "scrimp.cli", "keys", "token", "sign", self.address(label)]
        return shlex.join(["env", *(f"{name}={value}" for name, value in told.items()), *words])

    def keys(self, *words: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """`scrimp keys …`."""
        command = [sys.executable, "-m", "scrimp.cli", "keys", *map(str, words)]
        return subprocess.run(command, input=given, capture_output=True, env=self.environment, timeout=300, check=False)

    def said(self, *words: object) -> str:
        """What `scrimp keys …` prints."""
        done = self.keys(*words)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()
