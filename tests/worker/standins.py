"""Machines that offer less, as filters that a process puts on itself: what it then starts is on such a machine."""

from __future__ import annotations

import errno
import platform
from collections.abc import Sequence

from app.sandbox import kernel
from app.sandbox.kernel import ALLOW, EQUAL, ERRNO, FIRST_ARGUMENT, LOAD, NR, RETURN, step, when

# unshare, setns, mount, umount2, pivot_root
REFUSED = {"x86_64": (272, 308, 165, 166, 155), "aarch64": (97, 268, 40, 39, 41)}
WRITE = {"x86_64": 1, "aarch64": 64}
SIZE = 2  # the argument of `write`


def runtime_default() -> None:
    """A container under the default profiles of Docker, Podman and Kubernetes: no capabilities, no new privileges, no
    namespaces and no mounts."""
    machine = platform.machine()
    kernel.drop_capabilities()
    assert kernel.no_new_privileges()
    tests = [piece for number in REFUSED[machine] for piece in when(EQUAL, number, ERRNO | errno.EPERM)]
    _install([step(LOAD, NR), *tests])


def ubuntu(maps: Sequence[str]) -> None:
    """Ubuntu since 23.10: a plain user enters a user namespace, and a write of its maps is EPERM.

    Args:
        maps: the lines whose write fails, by their lengths: a filter sees no path.
    """
    assert kernel.no_new_privileges()
    lengths = [piece for length in sorted({len(each) for each in maps}) for piece in _refused(length)]
    body = [step(LOAD, FIRST_ARGUMENT + 8 * SIZE), *lengths]
    _install([step(LOAD, NR), step(EQUAL, WRITE[platform.machine()], 0, len(body)), *body])


def _refused(length: int) -> tuple[bytes, bytes]:
    return when(EQUAL, length, ERRNO | errno.EPERM)


def _install(program: list[bytes]) -> None:
    assert kernel.install(kernel.ARCHITECTURES[platform.machine()], b"".join([*program, step(RETURN, ALLOW)]))
