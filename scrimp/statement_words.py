"""A data set's statement in plain words, section by section (scrimp.statement has its evidence)."""

from __future__ import annotations

import math
from statistics import NormalDist

from scrimp.explain import GOVERNED
from scrimp.statement import PER_UNIT, Json, Stated, Statement

Section = tuple[str, list[str]]
ALPHAS = (0.001, 0.01, 0.1)
NORMAL = NormalDist()


def told(statement: Statement) -> list[Section]:
    """The statement in plain words."""
    thing = "record" if statement.unit == "example" else statement.unit
    first, last = min(each.first for each in statement.ledgers), max(each.last for each in statement.ledgers)
    unit = [f"one {thing}: neighbouring data sets differ by adding or removing one"]
    if _grown(statement):
        unit.append(_in_blocks(statement))
    return [
        ("Data set", [f"{statement.name} ({statement.dataset}); {statement.entries} entries, {first} to {last}"]),
        *([("Blocks", [_block(each) for each in statement.ledgers])] if _grown(statement) else []),
        *_terms(statement),
        ("Unit of privacy", unit),
        ("What was spent", _spending(statement)),
        ("Budgets within the cap", _within(statement)),
        ("Guarantee", _guarantee(statement)),
        ("How to read it", _reading(statement.worst)),
        ("Not covered", _not_covered(statement)),
    ]


def _terms(statement: Statement) -> list[Section]:
    """Who answers for the data, and who may use them for what; as signed."""
    if statement.terms is None:
        return [("Governance", ["not stated: a statement of an earlier version has none"])]
    rules, grants = statement.terms.governance, statement.terms.grants
    lines = [f"{words}: {_listed(rules[name])}" for name, words in GOVERNED if rules.get(name)] if rules else []
    when = f"as signed at {statement.terms.signed_at}"
    return [
        ("Governance", [*(lines or ["its owner declared none"]), when]),
        ("Grants", [*(map(_grant, grants) if grants else ["no key beside its owner's has one"]), when]),
    ]


def _grant(grant: Json) -> str:
    words = [f"{grant['key']} may {grant['access']}", *([f"for {grant['purpose']}"] if grant["purpose"] else [])]
    words += [f"permit {grant['permit']}"] if grant["permit"] else []
    return ", ".join([*words, f"until {grant['ends_at']}" if grant["ends_at"] else "without an end"])


def _listed(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _in_blocks(statement: Statement) -> str:
    """Why what the block that spent most paid bounds everybody."""
    if statement.unit == "example":
        return "each record is in one block: the service refuses a block that shares one with another"
    return (
        "the declared bound on a user's records is for all blocks together: a user in several has a share in each, and "
        "loses no more than what the block that spent most paid"
    )


def _grown(statement: Statement) -> bool:
    return len(statement.ledgers) > 1


def _block(stated: Stated) -> str:
    spent, taken = (_up(stated.epsilon(amount)) for amount in (stated.most_spent, stated.most_taken))
    state = "closed" if stated.closed else "open"
    return (
        f"{stated.label} ({stated.id}), {state}: ε = {spent} spent, {taken} with what is held, of "
        f"{_up(stated.cap_epsilon)}"
    )


def _spending(statement: Statement) -> list[str]:
    worst, delta = statement.worst, f"{statement.worst.cap_delta:g}"
    jobs, charges, running = (
        len(frozenset[str]().union(*(getattr(each, name) for each in statement.ledgers)))
        for name in ("jobs", "charges", "running")
    )
    charges_text = f" and {charges} other charges (other systems, joined ledgers, gaps)" if charges else ""
    place = f" on the block that spent most, {worst.label}" if _grown(statement) else ""
    taken = max(each.epsilon(each.most_taken) for each in statement.ledgers)
    lines = [
        f"{jobs} jobs{charges_text}, together ε = {_up(worst.epsilon(worst.most_spent))} at δ = {delta}{place}",
        f"with what {running} unfinished ones may spend: ε = {_up(taken)}",
    ]
    if _grown(statement):
        return [*lines, "the blocks' ε's do not add up: no unit loses more than one of them"]
    return [*lines, f"training part {_part(worst, 'train')}; hold-out {_part(worst, 'holdout')}"]


def _within(statement: Statement) -> list[str]:
    """What each budget within the cap paid: on each block apart, where it has an id of its own."""
    paid = [
        f"{budget} spent ε = {_up(ledger.epsilon(max(amounts.values())))}"
        + (f" on {ledger.label}" if _grown(statement) else "")
        for ledger in statement.ledgers
        for budget, amounts in sorted(ledger.within.items())
    ]
    return [
        *(paid or ["none paid for anything: the cap alone bounded every key"]),
        "a budget bounds what its keys use, and is no guarantee about a person; the cap is",
    ]


def _guarantee(statement: Statement) -> list[str]:
    still = [each for each in statement.ledgers if not each.closed]
    now = (still or statement.ledgers)[0]
    largest = max(each.largest_cap_epsilon for each in statement.ledgers)
    cap = f"ε ≤ {_up(now.cap_epsilon)} at δ = {now.whole_delta or now.cap_delta:g}"
    if largest > now.cap_epsilon:
        cap += f" (once {_up(largest)}: if a change depended on results, that is the guarantee)"
    order = f" at order {now.order:g}" if now.order is not None else ""
    scope = "every unit and everything" if _grown(statement) else "everything"
    return [
        f"{cap}, for {scope} that was released, enforced by a {now.filter} filter{order}",
        "for what will be released too, under this cap, as long as it is not raised",
        "all jobs count: each may be chosen by the results of those before",
        "collusion is allowed for: it holds even if all keys and analysts share everything that they learn",
        *([] if now.whole_delta is None else [_two_filters(now)]),
        *([] if still else ["the ledger is closed: nothing more is admitted"]),
    ]


def _two_filters(now: Stated) -> str:
    delta_text = f"this filter has δ = {now.cap_delta:g} of it, and the rest is that of "
    if now.filter == "gdp":
        return delta_text + "a Rényi filter, to which the ledger may move with all that was spent"
    return delta_text + "the exact ledger before it, from which all that was spent was carried"


def _not_covered(statement: Statement) -> list[str]:
    lines = [
        f"entries after the {statement.entries} here; another history that the service shows others: compare the"
        " checkpoint with a witness's",
        "that each job ran as its certificate says (scrimp audit privacy; scrimp replay)",
        "the same people in other data sets; side channels such as durations; a malicious operator",
    ]
    if _grown(statement):
        units = (
            "their records are in none of those above" if statement.unit == "example" else "users above may be in them"
        )
        lines.insert(1, f"blocks that the service did not name here: {units}")
    return lines


def _reading(stated: Stated) -> list[str]:
    """What the best attacker finds, exactly under `gdp`; under `rdp` a bound from (ε, δ) alone."""
    lines = ["an attacker who knows everything but who took part, and may accuse a share α of others wrongly, finds"]
    for alpha in ALPHAS:
        if stated.most_spent <= 0:
            finds = alpha
        elif stated.filter == "gdp":
            finds = NORMAL.cdf(NORMAL.inv_cdf(alpha) + math.sqrt(stated.most_spent * PER_UNIT["gdp"]))
        else:
            epsilon, delta = stated.epsilon(stated.most_spent), stated.cap_delta
            finds = min(math.exp(epsilon) * alpha + delta, 1.0 - math.exp(-epsilon) * (1.0 - delta - alpha))
        lines.append(f"at most {_up(100.0 * min(1.0, finds))} % of the members at α = {100.0 * alpha:g} %")
    return lines


def _part(stated: Stated, name: str) -> str:
    budget = stated.budget[name]
    if budget == 0:
        return "none"
    return f"{100.0 * stated.spent[name] / budget:.1f} % spent, {100.0 * stated.held[name] / budget:.1f} % held"


def _up(value: float) -> str:
    """Three significant digits, rounded up."""
    if value <= 0.0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step * (1.0 - 1e-12)) * step:.6g}"
