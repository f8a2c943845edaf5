"""How an attempt's process is isolated from its machine, as the worker measured it."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from core.contracts.base import Document


class Sandbox(Document):
    """The protections that are on. The worker tests each one and never infers it from a version or a setting.

    Attributes:
        seccomp: only the system calls of docs/system-calls.md are allowed; no socket, no other process.
        landlock: only the interpreter, libraries and the attempt's own files of the file system are visible.
        network: `loopback`: an empty network, and System V's memory, of its own; `none`: no socket can be made;
            `host`: open.
        uid: the user of attempts, if it is not the worker's.
        memory_limit_bytes: the limit of its cgroup, or of its data segment (RLIMIT_DATA).
    """

    # Built at once: the first model that pydantic builds imports files, which are out of reach in a sandbox.
    model_config = ConfigDict(defer_build=False)

    seccomp: bool
    landlock: bool
    network: Literal["loopback", "none", "host"]
    memory_limit_bytes: int
    uid: int | None = None
