"""Operations of owners, of other systems and of whoever restores a backup."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from app.approvals import cap_routes
from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.charges import service as charges
from app.charges.schemas import ChargeRequest
from app.db.models import SubAccount
from app.ledger import behind
from app.ledger.block_accounts import ledgers_of
from app.ledger.schemas import CapChange
from app.lifecycle import restore
from app.retention.retire import retire_block
from app.storage import objects
from core.privacy.prices import Units
from tests.machine import model
from tests.machine.machine import Divergence, Machine, Outcome, caller
from tests.machine.model import BEHIND, BUDGET, CLOSED, ZERO, Pair
from tests.machine.world import KEYS, ORDER, OWNER

CAPS = (1.0, 2.0, 3.0, 4.0)
NAMES = ("one", "two")
MOST_BLOCKS = 3
WHY = "a test"


def on(account: str, amount: int) -> Pair:
    return (amount if account != "holdout" else 0, amount if account != "train" else 0)


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
        cannot_record = is_held and self.unrecordable(*charge.hold.payers)
        found = self.call("charge again", lambda: self.reserved(charge.key, charge.once, charge.claim, charge.account))
        if self.agree(found, CLOSED if not is_held else "head-pending" if cannot_record else None):
            if found.result[1] or found.result[0].id != charge_id:
                raise Divergence("the same request made another charge")
            self.note_heads(*charge.hold.payers)
        elif cannot_record:
            self.note_until_behind(charge.hold)

    def note_until_behind(self, hold: model.Hold) -> None:
        for each in hold.payers:
            self.note_heads(each)
            if self.unrecordable(each):
                return

    def reserved(self, key: str, once: str, claim: dict[str, Any], account: str) -> Any:
        asked = {"dataset": self.state.first, "account": account, "mechanism": claim, "unit": "example"}
        request = ChargeRequest.model_validate(asked | {"attested": WHY})
        prices: Any = self.world.prices
        return charges.reserve(self.db, self.world.heads, prices, caller(key), request, once)

    def reserve_as(self, key: str, once: str, mu: float, account: str) -> None:
        """A Gaussian mechanism, which both filters count."""
        claim = {"kind": "gdp", "mu": mu}
        found = self.call("charge", lambda: self.reserved(key, once, claim, account))
        if self.is_behind(*self.state.ledgers):
            self.agree(found, BEHIND)
            return
        square = round(mu * 1000) ** 2  # in units of 1e-6
        order = self.state.lead().order
        amount = square * 10**6 if order is None else order * square * 1000 // 2
        self.charged(found, once, key, claim, account, amount + 1)

    def charged(self, found: Outcome, once: str, key: str, claim: dict[str, Any], account: str, amount: int) -> None:
        """Compares what came of a claim on the ledgers that are open, or have moved for it.

        Args:
            amount: what it costs, with one unit for the rounding.
        """
        state = self.state
        amounts = on(account, amount)
        if found.error is None:
            charge, _ = found.result
            if not model.covers(amounts, (charge.train, charge.holdout)):
                raise Divergence(f"{claim} was charged as {(charge.train, charge.holdout)}")
            amounts = (charge.train, charge.holdout)
        ledgers = state.open_ones() or [state.first]
        refuses = state.refuses(ledgers, key, amounts)
        if not self.agree(found, BUDGET if refuses else None):
            return
        hold = state.hold(ledgers, key, amounts)
        state.charges[found.result[0].id] = model.Charge(hold, key, once, claim, account)
        self.note_heads(*ledgers)

    def reserve_any(self) -> None:
        """A mechanism that `gdp` cannot count: all open blocks move before it is held."""
        key, once = self.draw.choice(KEYS), f"charge-{next(self.numbers)}"
        rho, account = self.draw.choice((0.001, 0.01, 0.05)), self.draw.choice(("train", "holdout", "both"))
        claim, state = {"kind": "zcdp", "rho": rho}, self.state
        found = self.call("any charge", lambda: self.reserved(key, once, claim, account))
        if self.is_behind(*state.ledgers):
            self.agree(found, BEHIND)
            return
        amount = ORDER * round(rho * 10**9) + 1
        there = [each for each in state.open_ones() if state.ledgers[each].order is None]
        if there:
            if not self.may_move(there, on(account, amount)):
                self.agree(found, CLOSED)
                return
            self.did["move"] += 1
            for each in there:
                self.note_heads(self.moved(each))
        self.charged(found, once, key, claim, account, amount)

    def may_move(self, ledgers: list[str], amounts: Pair) -> bool:
        """True if a claim fits on one of these ledgers once they have moved, and what was spent fits on each."""
        left = []
        for each in ledgers:
            of = self.state.ledgers[each]
            budget = self.units(of.cap, ORDER)
            left.append(model.minus((budget, budget), model.carried(of.own.taken, ORDER)))
        fits = any(model.covers((max(0, each[0]), max(0, each[1])), amounts) for each in left)
        return fits and all(model.covers(each, ZERO) for each in left)

    def moved(self, block: str, to: str | None = None) -> str:
        """Moves a ledger in the model as well: to the one that the service made, which it returns."""
        with self.db.read() as session:
            _, made = ledgers_of(session, block)
        if to not in (None, made):
            raise Divergence(f"{block} moved to {made}, and not to {to}")
        self.state.move(block, made, ORDER, lambda epsilon: self.units(epsilon, ORDER))
        return made

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
        lead = state.lead_id()
        if not 0 < self.worth(lead, epsilon) <= state.ledgers[lead].own.budget[0]:
            return "invalid-request"
        if refusal := self.refuses_part(lead, name, epsilon):
            return refusal
        if any(keys & each.keys for other, each in state.budgets.items() if other != name):
            return CLOSED
        refusals = (self.refuses_part(each, name, epsilon) for each in state.open_ones())
        return next((refusal for refusal in refusals if refusal), None)

    def refuses_part(self, ledger: str, name: str, epsilon: float) -> str | None:
        """Of one ledger: less than is taken, or more where a move carried more than the budget could say."""
        of = self.state.ledgers[ledger]
        part = of.budgets.get(name)
        if part is None:
            return None
        units, before = self.worth(ledger, epsilon), self.state.ledgers[of.of].budgets.get(name)
        carried = ZERO if of.order is None or before is None else model.carried(before.taken, of.order)
        if units > part.budget[0] and not model.covers(part.taken, carried):
            return CLOSED
        return "budget-too-low" if max(part.taken) > units else None

    def give(self, ledger: str, name: str, epsilon: float) -> None:
        part = self.state.ledgers[ledger].budgets.setdefault(name, model.Part(ZERO))
        part.budget = (self.worth(ledger, epsilon), self.worth(ledger, epsilon))

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
        there = state.open_ones()
        low = any(max(state.ledgers[each].own.taken) > self.worth(each, epsilon) for each in there)
        if self.agree(found, CLOSED if not there else "cap-too-low" if low else None):
            for each in there:
                self.set_cap(each, epsilon)

    def set_cap(self, ledger: str, epsilon: float) -> None:
        of, budget = self.state.ledgers[ledger], self.worth(ledger, epsilon)
        of.cap, of.own.budget = epsilon, (budget, budget)
        self.state.write(ledger)

    def append(self) -> None:
        state = self.state
        if len(state.blocks()) >= MOST_BLOCKS:
            return
        number = next(self.numbers)
        block_id, label = f"ds_{self.number}_{number}", f"b{number}"
        found = self.call("append", lambda: self.world.append(state.first, block_id, label))
        lost = self.is_behind(*state.ledgers) or bool(self.recorded.keys() - state.ledgers.keys())
        is_closed = state.retired or state.ledgers[state.first].moved_to not in (None, *state.ledgers)
        if self.agree(found, CLOSED if is_closed else BEHIND if lost else None):
            has_moved = any(of.order is not None for of in state.ledgers.values())
            self.open_ledger(block_id, label, state.lead().cap)
            if has_moved:
                self.moved(block_id)
            for name, each in state.budgets.items():
                self.give(state.ledgers_of(block_id)[-1], name, each.epsilon)
            self.note_heads(block_id)  # as the service does once the block is there

    def retire(self) -> None:
        state = self.state
        block = self.pick(state.blocks())
        ledgers, label = state.ledgers_of(block), state.ledgers[block].label
        settings, of = self.world.settings, state.ledgers[ledgers[-1]]
        found = self.call("retire", lambda: retire_block(self.db, settings, OWNER, state.first, label))
        if len(state.blocks()) == 1:
            self.agree(found, CLOSED)
        elif self.agree(found, BEHIND if self.is_behind(*ledgers) else CLOSED if of.moved_to is not None else None):
            if not of.closed:
                of.closed = True
                state.write(ledgers[-1])
            self.note_heads(*ledgers)

    # What is recorded outside, and backups.

    def record(self) -> None:
        """The relay records a head."""
        ledger = self.pick(self.state.ledgers)
        found = self.call("record", lambda: behind.record(self.db, self.world.heads, ledger))
        self.agree(found, "worker-lost" if self.unrecordable(ledger) else None)
        self.note_heads(ledger)

    def backup(self) -> None:
        self.call("backup", lambda: None)
        self.saved = (self.world.backup(), copy.deepcopy(self.state, {id(self.numbers): self.numbers}))

    def rewind(self) -> None:
        """Every process ends, and the database is restored from the backup."""
        if self.saved is None:
            return
        url, before = self.saved
        self.verify_changed()
        self.call("rewind", lambda: self.world.rewind(url))
        self.state = copy.deepcopy(before, {id(self.numbers): self.numbers})
        self.hashes, self.verified = {}, {}

    def restore(self) -> None:
        """The owner posts what was forgotten, of each ledger that is behind."""
        heads, store = self.world.heads, objects.of(self.world.settings)
        while gap := next((each for each in restore.gaps(self.db, heads, store) if each.name is not None), None):
            found = self.call("restore", partial(restore.post, self.db, heads, store, gap.dataset_id, "lost"))
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
            self.set_cap(ledger, recorded.cap)
        short = model.minus(recorded.taken, of.own.spent)
        lacks = (max(0, short[0]), max(0, short[1]))
        if lacks != ZERO:
            of.own.spent = model.plus(of.own.spent, lacks)
            state.write(ledger, 2)
        if recorded.moved_to is not None and self.may_move([ledger], ZERO):
            self.note_heads(self.moved(ledger, recorded.moved_to))
        elif recorded.closed:
            of.closed, of.moved_to = True, recorded.moved_to
            state.write(ledger)
            is_whole = len(state.ledgers) == 1 and recorded.moved_to is None
            state.retired = state.retired or (is_whole and recorded.taken == ZERO)
        return lacks
