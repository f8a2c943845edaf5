"""What was tried and what is swept in the DP² experiment. Rows have length 1, and gradients at first a norm of 0.71."""

from __future__ import annotations

from benchmarks.reproduce.dp2_lab import Setting, delayed

_RMS = {"kind": "dp_rmsprop", "eps": 1e-3}
_GRAD = {"kind": "dp_adagrad", "eps": 1e-7}
_SIDE = {"public_dataset": "side", "public_batch_size": 64}
_ADPS = {"kind": "ada_dps", "eps": 1e-3, **_SIDE}
_WHOLE = {"kind": "ada_dps", "eps": 1e-3, "public_dataset": "side"}  # all public records at each step
# Of the adaptive phase: for each ε and C the rates η.
_DELAYED = {
    (1e-7, 5.0): (0.03, 0.1, 0.3),
    (1e-7, 50.0): (0.01,),
    (1e-7, 200.0): (0.003,),
    (1e-7, 500.0): (0.001, 0.003, 0.01),
    (1e-3, 200.0): (0.003, 0.005, 0.01),
}

# On 5 epochs, scored on training records; the best goes on.
GRID: dict[str, list[Setting]] = {
    "DP-SGD": [
        {"kind": "dp_sgd", "learning_rate": rate, "clip": clip}
        for rate, clip in ((1.0, 0.5), (3.0, 0.5), (6.0, 0.25), (10.0, 0.5), (30.0, 0.5))
    ],
    "DP-RMSProp": [{**_RMS, "learning_rate": rate, "clip": 0.5} for rate in (0.01, 0.03)],
    "DP-AdaGrad": [{**_GRAD, "learning_rate": rate, "clip": 0.5} for rate in (0.3, 1.0)],
    "DP2-RMSProp": [
        delayed("dp2_rmsprop", (3.0, rate), (0.5, clip), eps, 195)
        for (eps, clip), rates in _DELAYED.items()
        for rate in rates
    ],
    "DP2-AdaGrad": [delayed("dp2_adagrad", (3.0, 0.003), (0.5, 200.0), eps, 195) for eps in (1e-7, 1e-3)],
    "DP2-Yogi": [delayed("dp2_yogi", (3.0, 0.003), (0.5, 200.0), 1e-3, 195)],
    "AdaDPS": [
        *({**_WHOLE, "learning_rate": rate, "clip": 5.0} for rate in (0.03, 0.1)),
        *({**_ADPS, "learning_rate": rate, "clip": clip} for rate, clip in ((0.005, 200.0), (0.02, 50.0))),
    ],
    "PDA-DPMD": [{"kind": "pda_dpmd", "learning_rate": 3.0, "clip": 0.5, **_SIDE}],
}

# The paper's Table 2, for rows of zeros and ones; and smaller rates for the same.
PAPER: dict[str, Setting] = {
    "DP-SGD": {"kind": "dp_sgd", "learning_rate": 5.0, "clip": 0.5},
    "DP-RMSProp": {**_RMS, "learning_rate": 0.3, "clip": 0.1},
    "DP2-RMSProp": delayed("dp2_rmsprop", (0.1, 3.0), (0.5, 5.0), 1e-7, 195),
    "DP-SGD, smaller rate": {"kind": "dp_sgd", "learning_rate": 0.3, "clip": 0.5},
    "DP2-RMSProp, smaller rates": delayed("dp2_rmsprop", (0.3, 0.03), (0.5, 5.0), 1e-7, 195),
}

PAPER_EPOCHS, PAPER_SEEDS = 100, 3
# The same on the most frequent words, as long as in the paper and at rates as they are.
PAPER_LONG: dict[str, Setting] = {
    name: PAPER[name] | {"epochs": PAPER_EPOCHS} for name in ("DP-SGD", "DP-RMSProp", "DP2-RMSProp")
}

# What is told apart by five seeds, each as well searched as the others: by a validation split, on 5 epochs.
SEEDS = 5
JUDGED: dict[str, list[Setting]] = {
    "DP-SGD": [{"kind": "dp_sgd", "learning_rate": rate, "clip": 0.5} for rate in (0.75, 1.5, 3.0, 6.0)],
    "DP-RMSProp": [{**_RMS, "learning_rate": rate, "clip": 0.5} for rate in (0.0075, 0.015, 0.03, 0.06)],
    "DP2-RMSProp": [
        delayed("dp2_rmsprop", rates, (0.5, 200.0), 1e-3, 195)
        for rates in ((3.0, 0.005), (3.0, 0.01), (1.5, 0.0025), (1.5, 0.005), (1.5, 0.01))
    ],
}

SHORT_EPOCHS = 10  # of the table of all
LONG_EPOCHS = 100  # as the paper's
LONG = ("DP-SGD", "DP2-RMSProp", "DP-RMSProp")  # in this order
SWEEP_EPOCHS = 5
DELAYS = (50, 195, 390, 770)
ABLATIONS: dict[str, list[Setting]] = {
    "extra query": [
        delayed("dp2_rmsprop", (3.0, 0.003), (0.5, 200.0), 1e-7, 195) | {"variant": "extra_query"},
    ],
    "noise first": [
        delayed("dp2_rmsprop", (3.0, rate), (0.5, 0.5), 1e-3, 195) | {"variant": "noise_first"}
        for rate in (0.003, 0.03)
    ],
}
PRIVACY = (("DP-SGD", "DP-RMSProp", "DP2-RMSProp"), (0.6, 1.0, 2.0))

RATINGS_EPOCHS = 3
RATINGS: dict[str, list[Setting]] = {
    "DP-SGD": [{"kind": "dp_sgd", "learning_rate": rate, "clip": 1.0} for rate in (0.3, 1.0, 3.0)],
    "DP-RMSProp": [{**_RMS, "learning_rate": rate, "clip": 1.0} for rate in (0.003, 0.01)],
    "DP2-RMSProp": [delayed("dp2_rmsprop", (1.0, rate), (1.0, 100.0), 1e-3, 300) for rate in (0.003, 0.01)],
}
