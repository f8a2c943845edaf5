"""The whole machine: which operations there are, and how often each is drawn."""

from __future__ import annotations

from typing import ClassVar

from tests.machine.owners import Owners
from tests.machine.reads import Reads


class ServiceMachine(Reads, Owners):
    """Random histories of everything that moves a budget."""

    WEIGHTS: ClassVar = {
        "submit": 14,
        "submit_again": 2,
        "quote": 4,
        "forecast": 4,
        "claim": 14,
        "step": 16,
        "differ": 1,
        "finish": 8,
        "crash": 3,
        "lose": 2,
        "fail": 1,
        "stop": 4,
        "cancel": 2,
        "pause": 3,
        "resume": 4,
        "lapse": 2,
        "wrong_clock": 1,
        "reap": 3,
        "reserve": 5,
        "reserve_again": 2,
        "settle_charge": 6,
        "set_budget": 4,
        "close_budget": 1,
        "change_cap": 3,
        "append": 2,
        "retire": 1,
        "record": 3,
        "backup": 2,
        "rewind": 2,
        "restore": 4,
    }

    def rewind(self) -> None:
        """No attempt lives on, and every lease of the backup is over."""
        super().rewind()
        if self.saved is not None:
            self.live.clear()
            self.lapsed()


class MovingMachine(ServiceMachine):
    """The same of a data set of the plan "mixed", whose ledgers move to another filter (decisions 53 and 62)."""

    PLAN: ClassVar = "mixed"
    WEIGHTS: ClassVar = ServiceMachine.WEIGHTS | {"reserve_any": 3}
