"""Watches several jobs at once: live bars on a terminal, one line a change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from scrimp.cli import show
from scrimp.client import Client
from scrimp.errors import WaitTimeout
from scrimp.models import Job
from scrimp.wire import POLL_S

QUARTERS = 4


def watch(client: Client, console: Console, jobs: Sequence[Job], timeout_s: float) -> list[Job]:
    """Follows jobs until all have ended; returns the ended jobs, in order.

    Raises:
        WaitTimeout: some had not ended by the deadline. They continue.
    """
    view = _Bars(console, jobs) if console.is_terminal else _Lines(console)
    deadline = time.monotonic() + timeout_s
    current = list(jobs)
    with view:
        while True:
            current = [job if job.done else client.job(job.id) for job in current]
            for job in current:
                view.update(job)
            if all(job.done for job in current):
                return current
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"not all jobs had ended after {timeout_s:g} s; they continue")
            time.sleep(POLL_S)


class _Released:
    """A job's last scores, each after a line of those seen so far."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], list[float]] = {}

    def __call__(self, job: Job) -> str:
        lines = []
        for name, metric in show.main_scores(job).items():
            values = self.seen.setdefault((job.id, name), [])
            if not values or values[-1] != metric.value:  # a score is noisy: the same number twice is one release
                values.append(metric.value)
            lines.append(" ".join(filter(None, (name, show.sparkline(values), show.score(metric)))))
        return "  ".join(lines)


class _Bars:
    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.released = _Released()
        columns = (
            SpinnerColumn(finished_text="•"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}  {task.fields[released]}"),
        )
        self.progress = Progress(*columns, console=console)
        self.tasks: dict[str, TaskID] = {
            job.id: self.progress.add_task(
                escape(job.name or job.id), total=job.progress.steps, state=show.status(job.status), released=""
            )
            for job in jobs
        }

    def __enter__(self) -> None:
        self.progress.start()

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, job: Job) -> None:
        task = self.tasks[job.id]
        self.progress.update(
            task, completed=job.progress.step, state=show.status(job.status), released=job.doing or self.released(job)
        )
        if job.done:
            self.progress.stop_task(task)


class _Lines:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.told: dict[str, tuple[str, int]] = {}
        self.released = _Released()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, job: Job) -> None:
        step, steps, released = job.progress.step, job.progress.steps, self.released(job)
        state = (job.status, QUARTERS * step // max(steps, 1))
        if self.told.get(job.id) != state:
            self.told[job.id] = state
            line = f"{job.name or job.id}  {job.status}  {step}/{steps}  {job.doing or released}"
            self.console.print(line.rstrip(), markup=False, soft_wrap=True)
