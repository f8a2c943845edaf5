"""The words of the linear scaling report. What they say of results was written after the kept runs."""

KINDS = {"random": "random", "ours": "ours, levels 0.1, 0.2", "scaled": "ours, levels ε/10, ε/5", "oracle": "oracle"}

HEAD = """\
# Linear scaling: a private search that pays for itself

Made by `make reproduce-linear-scaling`, after Panda, Tang, Mahloujifar, Sehwag & Mittal 2024, "A new linear scaling
rule for private adaptive hyperparameter optimization".

Machine: {machine}. {runs} runs, {minutes} minutes of one core that others used too; all are kept in
`linear_scaling.json`, and what is kept is not run again.

**Data.** Public, and parts of them for the time that they take: 25,000 IMDB reviews as 32,768 hashed words, a fifth
held out by a hash of the text; Fashion-MNIST's pixels, four averaged to one (14 × 14), 20,000 records, 5,000 of the
test part; frozen features of Fashion-MNIST (EfficientNet-Lite0 at 64 × 64, 1,280 numbers), 8,000 records of the
training part, the next 2,000 held out. Stand-ins: the paper has CIFAR, ImageNet and SQuAD with features of large
vision models.

**Recipe.** A linear layer without bias from zero, full batch, momentum 0.9, C = 1, no weight decay, the free step. δ
= 1e-5.

**Ours.** The service's own default: levels 0.1 and 0.2, three pilots each, r drawn from the whole space, T drawn and
η = r/T, a line in μ. Draws, division of the total, fit and fall-backs are the service's code; runs are planned and
trained by it. Pilots are compared by a noisy count of correct predictions on the training records with μ = 0.01 (a
standard deviation of 100 records), and the count is charged. *Random* draws η and T once and spends all on that run.
The *oracle* is the best r on a grid (half decades, then quarters) at one T, then the best of three T's, by the test
records themselves, and pays for nothing. Spaces, wide as of one who knows nothing: {spaces}.

Figures are test accuracy, mean and standard deviation over five seeds; of random 20 draws at ε = 1 (10 on frozen
features and where T is fixed), else 8.
"""

TABLE_3 = """\
## At ε = 1 (the paper's Table 3)

RERR = (ours − random)/(oracle − random).

{table}

The aims were RERR ≥ 0.7 and at most 1.5 points under the oracle.
"""

STUDIES = """\
### Every search

{table}

`proportional`: the line did not rise, so that r* = r₂ · μ_final/μ₂. `clipped`: r* left the space.
"""

EPSILONS = """\
## Over ε (the paper's Figures 2 and 3)

Ours pays for its search. The pilots of a seed are the same at every ε.

![Accuracy over ε](linear_scaling_epsilon.png)

{table}
"""

LAW = """\
## The law itself

The best r by grid at each ε, T fixed (30 steps on IMDB, 20 on pixels; two seeds around the top, and the top of a
parabola in ln r through it), and the line through the first two.

![The best r over μ](linear_scaling_law.png)

{table}
"""

ABLATIONS = """\
## What the recipe is worth (the paper's Table 1 and Figure 11)

One change at a time at ε = 1, T that of the oracle, η the best of three for each change (by seed 0). The paper's
column is CIFAR100 at ε = 0.1 on features of a large vision model.

{table}
"""

PRACTITIONER = "## For a practitioner\n"

# The paper's Table 3 and the numbers of an earlier sketch.
OTHERS = [
    ["IMDB, an earlier sketch", "0.767", "0.820", "0.805", "0.72", "1.5"],
    ["paper: CIFAR10, no public data", "0.44", "0.68", "0.626", "0.776", "5.4"],
    ["paper: CIFAR100", "0.844", "0.896", "0.891", "0.849 (0.90 of its own numbers)", "0.5"],
    ["paper: ImageNet", "0.812", "0.886", "0.867", "0.740", "1.9"],
    ["paper: SQuAD", "0.493", "0.824", "0.781", "0.869", "4.4"],
]
