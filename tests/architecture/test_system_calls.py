"""The list of allowed system calls: its numbers are the kernel's, and the page shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.sandbox.system_calls import ABSENT, CALLS, NEWEST, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "system-calls.md"
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),  # arm64 has the generic numbers
}
# How the generic header names calls whose form depends on the size of a machine's words.
GENERIC = {"newfstatat": "fstatat"}
# Allowing any of these would undo the rest.
NEVER = {
    *("execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_getfd"),
    *("pidfd_send_signal", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sched_setaffinity", "setpriority"),
    *("socket", "socketpair", "connect", "bind", "sendmsg", "sendmmsg", "io_uring_setup", "io_uring_enter"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "setxattr", "fsetxattr", "utime", "utimes"),
    *("shmget", "msgget", "semget", "mq_open", "unshare", "setns", "mount", "bpf", "perf_event_open", "userfaultfd"),
    *("fork", "vfork", "open_by_handle_at", "symlink", "link", "mknod", "keyctl", "inotify_init1"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernel_s_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    numbers = {name: int(number) for name, number in found}
    for call in CALLS:
        name = GENERIC.get(call.name, call.name) if machine == "aarch64" else call.name
        assert call.number(machine) == numbers.get(name), call.name
    for name, number in ABSENT.items():
        assert numbers.get(name, number) == number, name


def test_the_page_shows_the_list() -> None:
    """Write it with `python -m app.sandbox.system_calls`."""
    assert "\n".join(table()) in PAGE.read_text()


def test_what_would_undo_the_rest_is_not_on_the_list() -> None:
    names = [call.name for call in CALLS]
    assert not NEVER & set(names)
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"ioctl"} and all(call.condition for call in CALLS if call.name in twice)
    assert all(call.reason for call in CALLS)
    assert max(number for call in CALLS for number in (call.x86_64, call.aarch64) if number is not None) <= NEWEST
