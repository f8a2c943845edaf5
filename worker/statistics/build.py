"""From a job to the statistics of its training part before its first step."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from core.errors import PrivacyError
from core.privacy.releases import BEFORE
from worker import statistics
from worker.statistics.base import Job, Statistic


def statistics_of(job: Job) -> tuple[Statistic, ...]:
    """The statistics that a job releases, in the order of their lines on the bill.

    Raises:
        PrivacyError: the model needs one that the job may not release, or nobody makes one that was charged.
    """
    declared = tuple(statistic for each in STATISTICS if (statistic := each.of(job)) is not None)
    if sum(each.charged for each in declared) != len(job.mechanism.before if job.mechanism else ()):
        raise PrivacyError("a release that was charged is made by nobody here")
    return declared


def _in_this_folder() -> tuple[type[Statistic], ...]:
    """The class that makes each release, in the releases' order. Each module of this folder may have one.

    Raises:
        PrivacyError: a release has no class here, or several.
    """
    for module in iter_modules(statistics.__path__):
        import_module(f"{statistics.__name__}.{module.name}")
    in_folder = [each for each in Statistic.__subclasses__() if each.__module__.startswith(statistics.__name__)]
    by_kind = {kind: [each for each in in_folder if each.kind is kind] for kind in BEFORE}
    for kind, classes in by_kind.items():
        if len(classes) != 1:
            raise PrivacyError(f"{statistics.__name__} must have one class for {kind.__name__}; it has {len(classes)}")
    return tuple(classes[0] for classes in by_kind.values())


STATISTICS = _in_this_folder()
