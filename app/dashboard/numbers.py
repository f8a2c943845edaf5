"""Numbers for people. What is spent is rounded up, what is left is rounded down, and a full value stays exact."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from core.ids import now

DECIMALS = 4


def up(value: float) -> str:
    """The smallest number with four decimals that is not below `value`: for spent amounts."""
    return _directed(value, DECIMALS, ROUND_CEILING).removesuffix("00")


def down(value: float) -> str:
    """The largest number with four decimals that is not above `value`: for remaining amounts."""
    return _directed(value, DECIMALS, ROUND_FLOOR).removesuffix("00")


def exact(value: float) -> str:
    """A declared number, as declared: 1e-5, 0.25, 1953."""
    if not math.isfinite(value):
        return str(value)
    number = Decimal(repr(value)).normalize()
    if number and not -4 < number.adjusted() < 7:
        return f"{number:e}".replace("e+", "e").replace("E+", "e").replace("E", "e")
    return f"{number:f}"


def delta(value: float) -> str:
    """δ as a power of ten if it is one: 1e-5."""
    return f"{Decimal(repr(value)).normalize():e}".replace("e+", "e")


def significant(value: float, digits: int = 5) -> str:
    """Rounded to nearest: for numbers that are neither spent nor left."""
    return exact(float(f"{value:.{digits}g}"))


def down_significant(value: float, digits: int = 5) -> str:
    """σ: rounded down, so that nobody reads more noise than was added."""
    return _significant(value, digits, ROUND_FLOOR)


def up_significant(value: float, digits: int = 5) -> str:
    """q and stds: rounded up."""
    return _significant(value, digits, ROUND_CEILING)


def with_noise(value: float, std: float) -> str:
    """`0.823 ± 0.005`: two digits of the noise, rounded up; an exact number stands alone."""
    if not math.isfinite(value):
        return str(value)
    if std <= 0:
        return significant(value, 4)
    decimals = max(0, 1 - math.floor(math.log10(std)))
    return f"{value:.{decimals}f} ± {_directed(std, decimals, ROUND_CEILING)}"


def amount(value: int, unit: str | None) -> str:
    """An account's integer in its filter's own measure, exact: every digit is a unit of the ledger."""
    _, _, scale = (unit or "").partition(" * 1e-")
    return f"{Decimal(value).scaleb(-int(scale or 0)):f}"


def unit_name(unit: str | None) -> str:
    """`mu^2 * 1e-12` counts μ²; `rdp(order) * 1e-9` counts RDP at the fixed order."""
    name, _, _ = (unit or "").partition(" * ")
    return name.replace("mu^2", "μ²").replace("rdp(order)", "RDP at order α")


def part(name: str) -> str:
    """The name of a part of the data."""
    return {"train": "training", "holdout": "hold-out"}.get(name, name)


def whole_percent(share: float) -> str:
    """A share as a whole percentage, rounded up."""
    return f"{math.ceil(round(share * 100, 6))} %"


def tenths(share: float) -> str:
    """A share in tenths of a percent, rounded up: `8.4 %`; nothing is `–`."""
    return f"{math.ceil(round(share * 1000, 6)) / 10:.1f} %" if share else "–"


def percent(amount: int, budget: int) -> float:
    """Tenths of a percent of a budget, rounded up: a spent share is never shown smaller."""
    return -(-amount * 1000 // budget) / 10


def share_of(amount: int, budget: int) -> str:
    """An amount as a share of its account's budget, in tenths of a percent, rounded up: `8.4 %`; nothing is `–`."""
    return f"{percent(amount, budget):.1f} %" if amount and budget else "–"


def integer(value: int) -> str:
    """1,234,567 with thin spaces, which no country reads as a decimal mark."""
    return f"{value:,}".replace(",", "\u202f")


def size(size_bytes: int) -> str:
    """A file's size with a unit."""
    amount, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """`4.2 s`, `33 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(at: datetime) -> str:
    """A time in UTC, to the second. A chart has thousands: strftime takes ten times as long."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"


def clock(at: datetime) -> str:
    """The time of day in UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def ago(at: datetime) -> str:
    """How long ago, in one unit; after a month the day."""
    seconds = max(0.0, (now() - at).total_seconds())
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (30 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // length)} {unit} ago"
    return at.astimezone(UTC).strftime("%Y-%m-%d")


def machine_time(at: datetime) -> str:
    """A time for a `datetime` attribute."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _significant(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value) or value <= 0:
        return exact(value)
    text = _directed(value, max(0, digits - 1 - math.floor(math.log10(value))), rounding)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _directed(value: float, decimals: int, rounding: str) -> str:
    """Rounds the number as JSON writes it: 0.1, not the binary number just above."""
    if not math.isfinite(value):
        return str(value)
    return f"{Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), rounding=rounding):f}"


FILTERS: dict[str, Any] = {
    each.__name__: each
    for each in (
        up,
        down,
        exact,
        delta,
        significant,
        down_significant,
        up_significant,
        with_noise,
        amount,
        unit_name,
        part,
        whole_percent,
        tenths,
        share_of,
        integer,
        size,
        duration,
        moment,
        ago,
        clock,
        machine_time,
    )
}
