"""The words of the linear scaling report."""

HEAD = """\
# Linear scaling: a private search that pays for itself

Made by `make reproduce-linear-scaling`.

Machine: {machine}. {runs} runs, {minutes} minutes of one core; they are kept in `linear_scaling.json`.
"""

TABLE_3 = "## T\n\n{table}"
STUDIES = "## S\n\n{table}"
EPSILONS = "## E\n\n{table}"
LAW = "## L\n\n{table}"
ABLATIONS = "## A\n\n{table}"
PRACTITIONER = "## For a practitioner\n"

# The paper's Table 3 and the numbers of an earlier sketch.
OTHERS = [
    ["IMDB, an earlier sketch", "0.767", "0.820", "0.805", "0.72", "1.5"],
    ["paper: CIFAR10, no public data", "0.44", "0.68", "0.626", "0.776", "5.4"],
    ["paper: CIFAR100", "0.844", "0.896", "0.891", "0.849 (0.90 of its own numbers)", "0.5"],
    ["paper: ImageNet", "0.812", "0.886", "0.867", "0.740", "1.9"],
    ["paper: SQuAD", "0.493", "0.824", "0.781", "0.869", "4.4"],
]
