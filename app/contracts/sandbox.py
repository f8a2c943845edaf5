"""What keeps an attempt's process from the rest of its machine, as the worker found it."""

from __future__ import annotations

from typing import Literal

from app.contracts.base import Document


class Sandbox(Document):
    """What is on. Tried out by the worker, never taken from a version or a setting.

    Attributes:
        seccomp: system calls that an attempt has no use for are refused.
        landlock: of the file system only the interpreter, libraries and the attempt's own files are there.
        network: `loopback`: a network of its own with nothing in it; `none`: no socket can be made; `host`: open.
        memory_limit_bytes: of its cgroup, or of its data segment (RLIMIT_DATA).
    """

    seccomp: bool
    landlock: bool
    network: Literal["loopback", "none", "host"]
    memory_limit_bytes: int
