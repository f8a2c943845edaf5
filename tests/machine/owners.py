"""Operations of owners, of other systems and of whoever restores a backup."""

from __future__ import annotations

import copy
from typing import Any

from app.approvals import cap_routes
from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.charges import service as charges
from app.charges.schemas import ChargeRequest
from app.db.models import SubAccount
from app.ledger import behind
from app.ledger.schemas import CapChange
from app.lifecycle import restore
from app.retention.retire import retire_block
from app.storage import objects
from core.privacy.prices import Units
from tests.machine import model
from tests.machine.machine import Divergence, Machine, caller
from tests.machine.model import BEHIND, BUDGET, CLOSED, ZERO, Pair
from tests.machine.world import KEYS, OWNER, units

CAPS = (1.0, 2.0, 3.0, 4.0)
NAMES = ("one", "two")
MOST_BLOCKS = 3
WHY = "a test"


class Owners(Machine):
    """What owners and other systems do."""

    # Other systems' charges.

    def reserve(self) -> None:
        claim = self.draw.choice((0.1, 0.3, 0.6)), self.draw.choice(("train", "holdout", "both"))
        self.reserve_as(self.draw.choice(KEYS), f"charge-{next(self.numbers)}", *claim)

    def reserve_again(self) -> None:
        """The same request is delivered twice."""
        charge_id = self.pick(self.state.charges)
        if charge_id is None:
            return
        charge = self.state.charges[charge_id]
        is_held = charge.status == "held"
        cannot_record = is_held and self.is_behind(*charge.hold.payers)
        found = self.call("charge again", lambda: self.reserved(charge.key, charge.once, charge.mu, charge.account))
        if self.agree(found, CLOSED if not is_held else "head-pending" if cannot_record else None):
            if found.result[1] or found.result[0].id != charge_id:
                raise Divergence("the same request made another charge")
            self.note_heads(*charge.hold.payers)
        elif cannot_record:
            self.note_until_behind(charge.hold)

    def note_until_behind(self, hold: model.Hold) -> None:
        for each in hold.payers:
            if self.is_behind(each):
                return
            self.note_heads(each)

    def reserved(self, key: str, once: str, mu: float, account: str) -> Any:
        claim = {"kind": "gdp", "mu": mu}
        asked = {"dataset": self.state.first, "account": account, "mechanism": claim, "unit": "example"}
        request = ChargeRequest.model_validate(asked | {"attested": WHY})
        prices: Any = self.world.prices
        return charges.reserve(self.db, self.world.heads, prices, caller(key), request, once)

    def reserve_as(self, key: str, once: str, mu: float, account: str) -> None:
        found = self.call("charge", lambda: self.reserved(key, once, mu, account))
        state = self.state
        if self.is_behind(*state.ledgers):
            self.agree(found, BEHIND)
            return
        amount = -(-(round(mu * 1000) ** 2) * 10**6 // 1) + 1  # μ² in units of 1e-12, and one for the rounding
        amounts = (amount if account != "holdout" else 0, amount if account != "train" else 0)
        if found.error is None:
            charge, _ = found.result
            if not model.covers(amounts, (charge.train, charge.holdout)):
                raise Divergence(f"μ = {mu} was charged as {(charge.train, charge.holdout)}")
            amounts = (charge.train, charge.holdout)
        ledgers = state.open_ones() or [state.first]
        refuses = state.refuses(ledgers, key, amounts)
        if not self.agree(found, BUDGET if refuses else None):
            return
        hold = state.hold(ledgers, key, amounts)
        state.charges[found.result[0].id] = model.Charge(hold, key, once, mu, account)
        self.note_heads(*ledgers)

    def settle_charge(self) -> None:
        """Posts or voids a charge, perhaps not for the first time."""
        charge_id = self.pick(self.state.charges)
        if charge_id is None:
            return
        charge, why = self.state.charges[charge_id], self.draw.choice((None, WHY))
        to = "posted" if why is None else "voided"
        by = caller(charge.key)
        what = "post" if why is None else "void"
        found = self.call(what, lambda: charges.settle(self.db, self.world.heads, by, charge_id, voided_because=why))
        if not self.agree(found, None if charge.status in ("held", to) else CLOSED):
            return
        if charge.status == "held":
            self.state.settle(charge.hold, charge.hold.amounts if why is None else ZERO)
            charge.status = to
        self.note_heads(*charge.hold.payers)

    # Budgets, the cap, and blocks.

    def set_budget(self) -> None:
        name, epsilon = self.draw.choice(NAMES), self.draw.choice((0.5, 1.0, 2.0))
        keys = frozenset(self.draw.sample(KEYS, self.draw.randint(1, 2)))

        def put() -> None:
            with self.db.write() as session:
                known = session.get(SubAccount, (self.state.lead_id(), name))
                asked = BudgetSetting(epsilon=epsilon, keys=sorted(keys))
                budgets.put(session, OWNER, self.state.first, name, asked, None if known is None else "*")

        found = self.call("set budget", put)
        if self.agree(found, self.refuses_budget(name, epsilon, keys)):
            self.state.budgets[name] = model.Budget(epsilon, keys)
            self.spread(name)

    def refuses_budget(self, name: str, epsilon: float, keys: frozenset[str]) -> str | None:
        state = self.state
        if state.lead().closed:
            return CLOSED
        lead = state.lead()
        if units(epsilon) > lead.own.budget[0]:
            return "invalid-request"
        if self.too_low(lead, name, epsilon):
            return "budget-too-low"
        if any(keys & each.keys for other, each in state.budgets.items() if other != name):
            return CLOSED
        others = [state.ledgers[each] for each in state.open_ones()]
        return "budget-too-low" if any(self.too_low(of, name, epsilon) for of in others) else None

    def too_low(self, of: model.Ledger, name: str, epsilon: float) -> bool:
        return name in of.budgets and max(of.budgets[name].taken) > units(epsilon)

    def give(self, ledger: str, name: str, epsilon: float) -> None:
        part = self.state.ledgers[ledger].budgets.setdefault(name, model.Part(ZERO))
        part.budget = (units(epsilon), units(epsilon))

    def spread(self, name: str) -> None:
        for each in self.state.open_ones():
            self.give(each, name, self.state.budgets[name].epsilon)

    def close_budget(self) -> None:
        name, state = self.draw.choice(NAMES), self.state

        def close() -> None:
            with self.db.write() as session:
                budgets.close(session, OWNER, state.first, name, "*")

        found = self.call("close budget", close)
        there = name in state.budgets and bool(state.budgets[name].keys)
        if self.agree(found, CLOSED if state.lead().closed else None if there else "not-found"):
            state.budgets[name].keys = frozenset()
            self.spread(name)

    def change_cap(self) -> None:
        epsilon, state = self.draw.choice(CAPS), self.state
        body = CapChange(epsilon=epsilon, reason=WHY)
        prices: Any = self.world.prices
        found = self.call(
            "change cap",
            lambda: cap_routes.change_cap(state.first, body, self.db, prices, OWNER, self.world.heads, "*"),
        )
        if self.is_behind(*state.ledgers):
            self.agree(found, BEHIND)
            return
        taken = [max(state.ledgers[each].own.taken) for each in state.open_ones()]
        refused = CLOSED if not taken else "cap-too-low" if max(taken) > units(epsilon) else None
        if self.agree(found, refused):
            for each in state.open_ones():
                of = state.ledgers[each]
                of.cap, of.own.budget = epsilon, (units(epsilon), units(epsilon))
                state.write(each)

    def append(self) -> None:
        state = self.state
        if len(state.ledgers) >= MOST_BLOCKS:
            return
        number = next(self.numbers)
        block_id, label = f"ds_{self.number}_{number}", f"b{number}"
        found = self.call("append", lambda: self.world.append(state.first, block_id, label))
        lost = self.is_behind(*state.ledgers) or bool(self.recorded.keys() - state.ledgers.keys())
        if self.agree(found, CLOSED if state.retired else BEHIND if lost else None):
            self.open_ledger(block_id, label, state.lead().cap)
            for name, each in state.budgets.items():
                self.give(block_id, name, each.epsilon)

    def retire(self) -> None:
        state = self.state
        ledger = self.pick(state.ledgers)
        of = state.ledgers[ledger]
        settings = self.world.settings
        found = self.call("retire", lambda: retire_block(self.db, settings, OWNER, state.first, of.label))
        if len(state.ledgers) == 1:
            self.agree(found, CLOSED)
        elif self.agree(found, BEHIND if self.is_behind(ledger) else None):
            if not of.closed:
                of.closed = True
                state.write(ledger)
            self.note_heads(ledger)

    # What is recorded outside, and backups.

    def record(self) -> None:
        """The relay records a head."""
        ledger = self.pick(self.state.ledgers)
        found = self.call("record", lambda: behind.record(self.db, self.world.heads, ledger))
        if self.agree(found, "worker-lost" if self.is_behind(ledger) else None):
            self.note_heads(ledger)

    def backup(self) -> None:
        self.call("backup", lambda: None)
        self.saved = (self.world.backup(), copy.deepcopy(self.state, {id(self.numbers): self.numbers}))

    def rewind(self) -> None:
        """Every process ends, and the database is restored from the backup."""
        if self.saved is None:
            return
        url, before = self.saved
        self.call("rewind", lambda: self.world.rewind(url))
        self.state = copy.deepcopy(before, {id(self.numbers): self.numbers})
        self.seen = {}

    def restore(self) -> None:
        """The owner posts what was forgotten, of each ledger that is behind."""
        heads, store = self.world.heads, objects.of(self.world.settings)
        for gap in restore.gaps(self.db, heads, store):
            if gap.name is None:  # a block that the database does not know: only a newer backup has it
                continue
            found = self.call("restore", lambda gap=gap: restore.post(self.db, heads, store, gap.dataset_id, "lost"))
            if not self.is_behind(gap.dataset_id):
                raise Divergence(f"{gap.dataset_id} is said to be behind: {gap.problem}")
            self.agree(found, None)
            self.restored(gap.dataset_id, found.result)
        known = [each for each in self.state.ledgers if self.is_behind(each)]
        if known:
            raise Divergence(f"{known} are still behind after a restore")

    def restored(self, ledger: str, posted: Units) -> None:
        state, recorded, of = self.state, self.recorded[ledger], self.state.ledgers[ledger]
        for job in state.jobs.values():
            if job.status in model.FINISHED or not (ledger == state.first or ledger in job.hold.payers):
                continue
            if job.status in model.ACTIVE:
                state.give_back(job, "lost")
            if job.status not in model.FINISHED:
                state.end(job, "cancelled")
        for charge in state.charges.values():
            if charge.status == "held" and (ledger == state.first or ledger in charge.hold.payers):
                state.settle(charge.hold, charge.hold.amounts)
                charge.status = "posted"
        lacks = ZERO
        if not of.closed:
            lacks = self.post_missing(ledger, recorded)
        if (posted.train, posted.holdout) != tuple(lacks):
            raise Divergence(f"it posted {posted}, and the model {lacks}")
        self.recorded[ledger] = state.head(ledger)

    def post_missing(self, ledger: str, recorded: model.Head) -> Pair:
        state, of = self.state, self.state.ledgers[ledger]
        if recorded.cap > of.cap:
            of.cap, of.own.budget = recorded.cap, (units(recorded.cap), units(recorded.cap))
            state.write(ledger)
        short = model.minus(recorded.taken, of.own.spent)
        lacks = (max(0, short[0]), max(0, short[1]))
        if lacks != ZERO:
            of.own.spent = model.plus(of.own.spent, lacks)
            state.write(ledger, 2)
        if recorded.closed:
            of.closed = True
            state.write(ledger)
            state.retired = state.retired or (len(state.ledgers) == 1 and recorded.taken == ZERO)
        return lacks
