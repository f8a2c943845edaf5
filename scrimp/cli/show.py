"""Responses in a terminal. An ε is printed with its meaning, a score with its noise."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scrimp.behaviour import releases_with
from scrimp.errors import ApiError, BudgetRefused, InvalidRequest, ScrimpError
from scrimp.models import (
    Account,
    Dataset,
    Epsilon,
    Forecast,
    Job,
    Ledger,
    Metric,
    Quote,
    Sweep,
    Trials,
    Verification,
)
from scrimp.verify import Recomputed

WIDTH = 130  # of lines that go to a file or a pipe
RELATIONS = {"add_or_remove_one": "one {unit} added or removed"}
NOISE_ALONE = "± is the standard deviation of the privacy noise; the hold-out's sampling error comes on top."
COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}
BAR_WIDTH = 40
BLOCKS, SPARKS = "▁▂▃▄▅▆▇█", 20
ENDED_EARLY = ("failed", "cancelled")


def console(*, stderr: bool = False) -> Console:
    """The console for a command: a terminal at its own width; a file or pipe at WIDTH, or COLUMNS."""
    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    return Console(stderr=stderr, highlight=False, width=fixed)


def meaning(epsilon: Epsilon) -> str:
    """An ε's meaning: δ, accountant, unit and relation."""
    relation = RELATIONS.get(epsilon.relation, epsilon.relation).format(unit=epsilon.unit)
    return f"δ = {epsilon.delta:g}, {epsilon.accountant}, {relation}"


def eps(epsilon: Epsilon | None) -> str:
    """An ε with its meaning, or the note that none is claimed."""
    return "public data: no privacy claimed" if epsilon is None else f"ε = {epsilon.value:.4g} ({meaning(epsilon)})"


def score(metric: Metric) -> str:
    """A released number with the standard deviation of its noise."""
    return f"{metric.value:.4f} ± {metric.std:.4f}" if metric.std > 0 else f"{metric.value:.4f} (exact, {metric.on})"


def main_scores(job: Job) -> dict[str, Metric]:
    """A job's last scores for one line: of those that come with `auc` or `macro_f1` accuracy alone."""
    hidden = {name for name in job.metrics if releases_with(name) & {"auc", "macro_f1"}} - {"accuracy"}
    return {name: each for name, each in job.metrics.items() if name not in hidden}


def sparkline(values: Sequence[float]) -> str:
    """The last values as blocks from the least to the greatest; nothing for fewer than two.

    >>> sparkline([0.5, 0.7, 0.9])
    '▁▄█'
    """
    finite = [value for value in values if math.isfinite(value)][-SPARKS:]
    if len(finite) < 2:
        return ""
    low, height = min(finite), max(finite) - min(finite)
    return "".join(BLOCKS[round((value - low) / height * (len(BLOCKS) - 1)) if height else 0] for value in finite)


def amount(value: int, unit: str | None) -> str:
    """An account's integer in the natural unit of its filter: `mu^2 * 1e-12` counts μ²."""
    name, _, factor = (unit or "").partition(" * ")
    return f"{value * float(factor):.4g} {name.replace('mu^2', 'μ²')}" if factor else str(value)


def floored(value: float, digits: int = 4) -> str:
    """Rounded DOWN, so that a printed value that fits still fits when it is typed back."""
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.floor(value / step) * step:.{digits}g}"


def when(moment: str | None) -> str:
    return moment[:19].replace("T", " ") if moment else ""


def status(text: str) -> str:
    return f"[{COLOURS.get(text, 'default')}]{text}[/]"


def table(console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows from the service: their text is never read as markup."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        # The first column is copied by users: never cut it.
        grid.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid if grid.row_count else Text("none", style="dim"))


def facts(console: Console, pairs: Iterable[tuple[str, RenderableType]]) -> None:
    """Prints names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    for name, value in pairs:
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    console.print(grid)


def bar(account: Account) -> Text:
    """█ spent ▒ held ░ left, of an account's budget."""
    budget = max(account.budget, 1)
    # Rounded up: spending is never drawn as nothing.
    spent = min(BAR_WIDTH, math.ceil(BAR_WIDTH * account.spent / budget))
    held_width = min(BAR_WIDTH - spent, math.ceil(BAR_WIDTH * account.held / budget))
    left = BAR_WIDTH - spent - held_width
    text = Text.assemble(("█" * spent, "magenta"), ("▒" * held_width, "yellow"), ("░" * left, "green"))
    left_share = math.floor(account.remaining * 1000 / budget) / 10
    shares = (percent(account.spent / budget), percent(account.held / budget))
    return text.append(f"  {shares[0]} spent, {shares[1]} held, {left_share:g} % left")


def percent(share: float) -> str:
    """A share as a percentage, rounded UP to a tenth: what is spent is never shown smaller."""
    return f"{math.ceil(round(share * 1000, 6)) / 10:g} %"


def whole_percent(share: float) -> str:
    """A share as a whole percentage, rounded UP."""
    return f"{math.ceil(round(share * 100, 6))} %"


def spent_share(ledger_read: Ledger) -> str:
    """The spent share of the budget, on the account that spent more."""
    return percent(max(each.spent / max(each.budget, 1) for each in ledger_read.accounts.values() if each is not None))


def room(jobs_that_fit: int) -> str:
    """How many jobs like this one fit."""
    if jobs_that_fit == 0:
        return "no room for a job like this"
    return f"room for {jobs_that_fit:,} more job{'s' if jobs_that_fit > 1 else ''} like this"


def accounts(console: Console, ledger_read: Ledger) -> None:
    names = {"train": "training data", "holdout": "hold-out"}
    facts(
        console, [(names.get(name, name), bar(each)) for name, each in ledger_read.accounts.items() if each is not None]
    )


def ledger(console: Console, name: str, ledger_read: Ledger) -> None:
    """Prints a ledger's balances and other accountants' figures."""
    console.print(Text.assemble((name, "bold"), f"  cap {eps(ledger_read.cap)}"))
    accounts(console, ledger_read)
    pairs = [
        ("spent so far", eps(ledger_read.epsilon_spent)),
        ("spent and held", eps(ledger_read.epsilon_spent_and_held)),
    ]
    if ledger_read.epsilon_filter is not None and ledger_read.epsilon_filter != ledger_read.epsilon_spent:
        pairs.append(("by the filter", eps(ledger_read.epsilon_filter)))
    if ledger_read.epsilon_remaining is not None:
        on = (
            ""
            if ledger_read.remaining_block is None
            else f" on block {ledger_read.remaining_block}, which has the most left"
        )
        pairs.append(("left, as one job", f"{eps(ledger_read.epsilon_remaining)}{on}"))
    pairs.append(("the guarantee", f"is the cap, ε = {ledger_read.cap.value:g}"))
    if ledger_read.closed:
        pairs.append(("closed", "joined to another data set's ledger: nothing more is admitted"))
    labels = {
        "basic": "sum of the ε's, δ shared",
        "rdp_best_order": "RDP, best order",
        "pld_if_fixed_in_advance": "PLD, as if all jobs had been fixed in advance",
    }
    facts(console, pairs)
    compared = (ledger_read.comparison or {}).items()
    comparisons = [(f"  {labels.get(key, key)}", f"ε = {each.value:.4g}") for key, each in compared if each is not None]
    if comparisons:
        console.print("For comparison, not enforced (same δ, unit and relation):", style="dim")
        facts(console, comparisons)
    lines = "1 entry" if ledger_read.entries == 1 else f"{ledger_read.entries} entries"
    console.print(Text(f"{lines}, head {ledger_read.head}", style="dim"), soft_wrap=True)


def verification(
    console: Console, service_result: Verification, recomputed: Recomputed, head_known: bool | None
) -> None:
    """Prints the service's verification beside the reader's own.

    Args:
        head_known: whether the head and the checkpoint that the caller kept are of this chain; None: none was kept.
    """
    if service_result.valid is None:
        console.print("- the service has not verified it yet: --again asks for that")
    else:
        when = f"the service verified {service_result.checked_entries} entries at {service_result.checked_at}"
        # A check by an earlier release did not note it.
        head = "" if service_result.checked_head is None else f", head {service_result.checked_head}"
        check(console, service_result.valid, f"{when}{head}", service_result.problem)
        if service_result.went_on_after:
            console.print(
                f"  it went on after entry {service_result.went_on_after}, verified in full at "
                f"{service_result.in_full_at}"
            )
        if service_result.stale:
            console.print("  entries were added since: --again asks for a new check")
    same = recomputed.first_bad_entry is None and recomputed.head == service_result.head
    wrong = "another head" if recomputed.first_bad_entry is None else f"entry {recomputed.first_bad_entry} does not fit"
    check(
        console,
        same,
        f"recomputed here from {recomputed.entries} entries: head {recomputed.head}",
        None if same else wrong,
    )
    if head_known is not None:
        check(console, head_known, f"what you kept is {'' if head_known else 'not '}of this chain", None)


def check(console: Console, holds: bool, text: str, problem: str | None) -> None:
    mark = ("✓ ", "green") if holds else ("✗ ", "red")
    console.print(Text.assemble(mark, text, (f": {problem}" if problem else "", "red")), soft_wrap=True)


UNSTATED_SLOTS = "not stated: jobs compute twice the declared number and 64 (`scrimp datasets slots`)"


def dataset(console: Console, row: Dataset) -> None:
    """Prints one data set and its budget."""
    console.print(Text.assemble((row.name, "bold"), f"  {row.id}"))
    hashes = (("content_hmac", row.content_hmac), ("content_sha256", row.content_sha256))
    hashes_shown = [(name, each) for name, each in hashes if each is not None]
    bound = "" if row.max_epsilon_per_job is None else f", at most ε = {row.max_epsilon_per_job:g} for one job"
    hashes_shown += [("created_at", row.created_at), ("your access", row.access + bound)]
    if row.shape.slots is not None:
        hashes_shown.append(("slots", str(row.shape.slots)))
    elif row.ledger is not None:
        hashes_shown.append(("slots", UNSTATED_SLOTS))
    facts(console, hashes_shown)
    if row.state == "reading" and row.reading is not None:
        console.print(f"being read: {row.reading.bytes_read:,} of {row.reading.bytes:,} bytes; no job can use it yet")
    elif row.state == "rejected" and row.reading is not None:
        console.print(Text(f"rejected: {(row.reading.problem or {}).get('detail')}", style="red"))
    elif row.ledger is None:
        console.print("public: no privacy is claimed for it")
    else:
        ledger(console, "ledger", row.ledger)


def blocks(quoted: Quote, spec: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """A line on what a job reads: its blocks with their declared records, or the records of a data set that never grew.

    Args:
        spec: of an admitted job: it names the blocks of a data set that has grown, `first` alone too.
    """
    if not quoted.reads:
        return []
    things = "users" if quoted.epsilon is not None and quoted.epsilon.unit == "user" else "records"
    if [each.label for each in quoted.reads] == ["first"] and "blocks" not in (spec or {}):
        return [("reads", f"{quoted.reads[0].records:,} declared {things}")]
    return [("blocks", ", ".join(f"{each.label} ({each.records:,} declared {things})" for each in quoted.reads))]


def quote(console: Console, quoted: Quote) -> None:
    """Prints a quote: the price, the bill, and whether it fits."""
    no_noise = "none" if quoted.hpo is None or quoted.epsilon is None else "√T/μ, for any T of a trial"
    pairs = [
        ("privacy", eps(quoted.epsilon)),
        ("noise multiplier", no_noise if quoted.noise_multiplier is None else f"{quoted.noise_multiplier:.5g}"),
        (
            "steps",
            str(quoted.steps)
            if quoted.hpo is None
            else f"at most {quoted.steps} in a trial; {quoted.hpo['runs']} trials",
        ),
        ("expected batch size", f"{quoted.expected_batch_size} (sample rate {quoted.sample_rate:.4g})"),
    ]
    pairs += blocks(quoted)
    if quoted.numerics is not None and quoted.numerics.rows_per_step is not None:
        rows, size = quoted.numerics.rows_per_step, quoted.numerics.rows_per_pass
        pairs.append(("rows per step", f"{rows}, empty ones too, in {-(-rows // size)} passes of {size}"))
    if quoted.resolved is not None:
        pairs += [(name, escape(f"{value}: {because}")) for name, value, because in quoted.resolved.told]
    if quoted.outlook is not None:
        pairs += [
            (each.what, f"about {each.below:g} points of AUC below no privacy ({each.low:g} to {each.high:g})")
            for each in quoted.outlook.outcomes
        ]
        pairs.append(("by", escape(quoted.outlook.because)))
    if quoted.comparison and quoted.epsilon:
        alternatives = ", ".join(f"{key} {value:.4g}" for key, value in quoted.comparison.items() if value is not None)
        pairs.append(("by accountant", f"ε: {alternatives}"))
    unit = (quoted.charge or {}).get("unit")
    for line in quoted.lines:
        cost = f"{amount(line.charge, unit)} of the {line.account} account"
        pairs.append((line.what, cost if line.epsilon is None else f"{cost}; ε = {line.epsilon.value:.4g}"))
    for score in quoted.scores:
        rarer = f"; values of fewer than about {score.threshold:.3g} records are not told" if score.threshold else ""
        pairs.append((score.name, f"will be released with noise of about ± {score.std:.2g}{rarer}"))
    if quoted.estimated_duration_s is not None:
        pairs.append(("takes about", f"{quoted.estimated_duration_s:g} s"))
    if quoted.memory is not None:
        pairs.append(("memory", f"about {-(-quoted.memory.process_bytes >> 20):,} MiB a process"))
    if quoted.start is not None:
        when = "when a worker is free" if quoted.start.in_s is None else f"in about {quoted.start.in_s:g} s"
        prefix = "at least " if quoted.start.at_least else ""
        pairs.append(("starts", f"{when}, after {prefix}{quoted.start.claims_before} jobs"))
    if quoted.epsilon is not None and quoted.largest_epsilon_that_fits is not None:
        pairs.append(("largest ε that fits", floored(quoted.largest_epsilon_that_fits)))
    facts(console, pairs)
    for warning in quoted.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    answer = ("✓ it fits", "green") if quoted.fits else ("✗ it does not fit", "red")
    room_text = "" if quoted.jobs_that_fit is None else f"; {room(quoted.jobs_that_fit)}"
    console.print(Text.assemble(answer, room_text, ("; nothing was charged", "dim")))


def forecast(console: Console, outlook: Forecast) -> None:
    """Prints how many jobs of a price fit, and that price's share of the budget."""
    console.print(Text(room(outlook.jobs_that_fit), style="bold"))
    console.print(f"each takes {percent(outlook.share_per_job)} of the budget; nothing was charged", style="dim")


def sweep(console: Console, swept: Sweep) -> None:
    """A row for each total and plan of pilots."""
    rows = []
    for point in swept.points:
        levels = ", ".join(f"{level:g}" for level in point.levels)
        left = "–" if point.final is None else f"{point.final.value:.4f}"
        share = "" if point.final is None else f"{point.final.value / point.total_epsilon:.0%}"
        note = f"at least {least:g}" if (least := point.smallest_total_epsilon) else point.reason or ""
        rows.append((f"{point.total_epsilon:g}", levels, str(point.runs_per_level), str(point.runs), left, share, note))
    table(console, ("total ε", "levels", "runs each", "runs", "final ε", "of the total", ""), rows)
    delta = next((each.final.delta for each in swept.points if each.final is not None), None)
    if delta is not None:
        console.print(Text(f"at δ = {delta:g}; nothing was charged", style="dim"))


def cost(job: Job) -> str:
    """What a job costs; for one that ended early, what it was charged. Its ε is the planned one: none is computed at a
    stopping time."""
    planned, charged = job.epsilon_planned, job.charged
    if planned is None or charged is None or job.status not in ENDED_EARLY:
        return eps(planned)
    if charged.share == 0:
        return "nothing was charged: no private step was started"
    share = f"{whole_percent(charged.share)} of it was charged"
    return f"at most ε = {planned.value:.5g} (planned); {share} ({meaning(planned)})"


def brief_cost(job: Job) -> str:
    """The cost of a job in a cell of a table."""
    planned, charged = job.epsilon_planned, job.charged
    if planned is None:
        return "public"
    if charged is None or job.status not in ENDED_EARLY:
        return f"{planned.value:.4g} (δ={planned.delta:g})"
    if charged.share == 0:
        return "nothing charged"
    return f"≤ {planned.value:.5g} (δ={planned.delta:g}), {whole_percent(charged.share)} charged"


def released(job: Job) -> str:
    """The last scores of a job in a cell."""
    return ", ".join(f"{name} {score(metric)}" for name, metric in main_scores(job).items())


def accepted(job: Job) -> Text:
    return Text.assemble((job.id, "bold"), f"  {job.name}  {eps(job.epsilon_planned)}")


WAITS = {
    "cuda": "  waiting for a GPU worker: none is alive now",
    "gpus": "  waiting for a worker with as many GPUs for one job: none is alive now",
    "processes": "  waiting for a worker with as many processes: none is alive now",
}


def job(console: Console, row: Job) -> None:
    """Prints one job."""
    waits = WAITS.get(row.waiting_for or "", f"  {row.doing}".rstrip())
    console.print(f"[bold]{escape(row.id)}[/]  {escape(row.name)}  {status(row.status)}{waits}")
    pairs: list[tuple[str, RenderableType]] = [
        ("privacy", cost(row)),
        ("step" if row.study is None else "runs", f"{row.progress.step} of {row.progress.steps}"),
        *blocks(row.quote, row.spec),
    ]
    if row.quote.resolved is not None:
        pairs += [(name, escape(f"{value}, from public numbers")) for name, value, _ in row.quote.resolved.told]
    pairs += [(name, score(metric)) for name, metric in row.metrics.items()]
    pairs += [("tags", escape(", ".join(row.tags)))] if row.tags else []
    pairs += [("notes", escape(row.notes))] if row.notes else []
    pairs += [(each.name, f"{each.size_bytes:,} bytes, sha256 {each.sha256[:16]}…") for each in row.artifacts]
    if row.failure:
        pairs.append(("failure", f"{row.failure.get('code')}: {row.failure.get('message')}"))
    facts(console, pairs)
    if any(metric.std > 0 for metric in row.metrics.values()):
        console.print(NOISE_ALONE, style="dim")
    for warning in row.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))


def trials(console: Console, trial_list: Trials) -> None:
    """The trials of a study, then the law fitted to them."""
    if trial_list.study is None:
        console.print("this job is not a study: it has no trials")
        return
    rows = [
        (
            str(each.number),
            each.role + ("" if each.level is None else f" {each.level + 1}") + (" ✓" if each.chosen else ""),
            each.status,
            "" if each.epsilon is None else f"{each.epsilon.value:.4g}",
            f"{each.learning_rate:.4g}",
            str(each.steps),
            f"{each.r:.4g}",
            f"{each.score['value']:.4f} ± {each.score['std']:.4f}" if each.score else "",
            each.job,
        )
        for each in trial_list.items
    ]
    table(console, ("run", "role", "status", "ε alone", "η", "T", "r", "score", "job"), rows)
    study, fit = trial_list.study, trial_list.study.fit
    pairs = [("strategy", f"{study.strategy}, {study.ended} of {study.runs} trials have ended")]
    if study.procedure is not None and study.final_run is not None:
        pairs += [("procedure", eps(study.procedure)), ("final trial alone", f"ε = {study.final_run.value:.4g}")]
    if fit is not None:
        law = " + ".join(f"{c:.4g}·{fit.fit_in}^{k}" if k else f"{c:.4g}" for k, c in enumerate(fit.coefficients))
        pairs.append(("law", f"r = {law}; at {fit.at_final:.4g} r* = {fit.r_star:.4g}"))
        if fit.fallbacks:
            pairs.append(("not as requested", ", ".join(fit.fallbacks)))
    facts(console, pairs)


def brief(value: Any) -> str:
    """A value of an event in a cell."""
    if isinstance(value, dict):
        return " ".join(f"{key}:{brief(each)}" for key, each in value.items() if each is not None)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def error(console: Console, failure: ScrimpError) -> None:
    """Prints an error with the details of its problem document."""
    if isinstance(failure, BudgetRefused):
        console.print(refusal(failure))
        return
    faults = failure.errors if isinstance(failure, InvalidRequest) else []
    title = f"{failure.title}: " if isinstance(failure, ApiError) else ""
    detail = failure.detail if isinstance(failure, ApiError) else str(failure)
    console.print(Text.assemble(("✗ ", "red"), title, "" if faults else detail), soft_wrap=True)
    for fault in faults:
        console.print(Text.assemble("  ", (str(fault.get("pointer", "")), "bold"), f"  {fault.get('detail', '')}"))


def refusal(failure: BudgetRefused) -> RenderableType:
    """The requested and the remaining amount, the limiting account, and what would still fit."""
    grid = Table("account", "asked", "left", "", box=None, pad_edge=False, header_style="dim")
    unit = failure.problem.get("unit")
    requested, left = failure.requested, failure.remaining
    for name in requested if isinstance(requested, dict) and isinstance(left, dict) else ():
        short = (
            Text("does not fit", style="red") if requested[name] > left.get(name, 0) else Text("fits", style="green")
        )
        grid.add_row(name, amount(requested[name], unit), amount(left.get(name, 0), unit), short)
    largest, noise = failure.largest_epsilon_that_fits, failure.largest_noise_mu_that_fits
    fits: Any = "nothing of this kind fits any more" if largest is None else floored(largest)
    label = "largest ε" if noise is None else "largest evaluation.noise_mu"
    lines = Group(
        grid,
        Text.assemble(f"{label} that fits  ", (str(fits if noise is None else noise), "bold")),
        Text("Nothing was charged.", style="dim"),
    )
    return Panel(lines, title=Text(failure.title), title_align="left", border_style="red", expand=False)


def predictions(console: Console, answers: list[dict[str, Any]], keep: Sequence[str] = ()) -> None:
    """One line a record: what is kept of it; its class, its value, its best items, or its loss and next tokens."""
    for answer in answers:
        if "items" in answer:
            line = "  ".join(str(item["item"] if item["item"] is not None else item["row"]) for item in answer["items"])
        elif "class" in answer:
            shares = "  ".join(f"{name} {share:.3f}" for name, share in answer["probabilities"].items())
            line = f"{answer['class']}  ({shares})"
        elif "next" in answer:
            loss = "—" if answer["loss"] is None else f"{answer['loss']:.3f}"
            tokens = "  ".join(f"{token['token']!r} {token['probability']:.3f}" for token in answer["next"])
            line = f"loss {loss}  next {tokens}"
        else:
            line = str(answer["value"])
        console.print("  ".join([*(str(answer[name]) for name in keep), line]), markup=False, highlight=False)


def sections(console: Console, titled: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Prints titles, each with its lines."""
    for title, lines in titled:
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
