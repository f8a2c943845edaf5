"""What the DP² report says in words, and what the paper found."""

from __future__ import annotations

PAPER_ACCURACY = {
    "DP-SGD": ".687",
    "DP-RMSProp": ".713",
    "DP2-RMSProp": ".815",
    "AdaDPS": ".826",
    "PDA-DPMD": ".703",
}
PAPER_RATINGS = {"DP-SGD": "3.02", "DP-RMSProp": "2.96", "DP2-RMSProp": "2.78", "AdaDPS": "2.86"}

HEAD = """\
# DP², delayed preconditioners

Made by `make reproduce-dp2` (`python -m benchmarks.reproduce.dp2`): JobSpecs, planned, priced and trained by the
service's own code. Source: Li, Zaheer, Liu, Reddi, McMahan & Smith 2023, "Differentially private adaptive optimization
with delayed preconditioners".

Machine: {machine}; shared with other work, so that no times are given. Seeds: {seeds} for the table of all optimizers,
one elsewhere; settings were chosen with another.
"""

VERDICT = ""
PRACTITIONER = ""
