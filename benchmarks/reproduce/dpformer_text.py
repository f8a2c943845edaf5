"""The DPFormer report's words."""

from __future__ import annotations

HEAD = """\
# DPFormer on MovieLens-100k

Made by `make reproduce-dpformer` ({machine}; the machine was busy with other work).

**Data.** MovieLens-100k stands in for the paper's MovieLens-1M, which is not available here: 943 users for 6,040, and
1,349 items after a 5-core for 3,416. Each user's last item is held out. HIT@10 and NDCG@10 rank all items, including
items seen before; ties count against us. The data are public, so scores are exact here and frequencies of items are
counted. On private data both are noisy and charged.

**Training.** Dimension {dim}, 1 head, 2 blocks (1 recurrent layer), the last {length} items, dropout {dropout}, loss
at all positions. DP-Adam, weight decay 1e-5, warm-up over 20 % of the steps and then linearly down, automatic
clipping with C = 1, all users in each of {steps} steps ({steps} epochs; the paper: 100), δ = 1e-4, σ = {sigmas}. One
user is one record, and ε protects a user. Without privacy: as many epochs with batches of 256.

**Hardly tuned.** All private runs use one learning rate, 0.03; runs without privacy use 0.005. A run of the tied
transformer with another seed ended at 2.28 / 5.30 (rate 0.02, 40 steps, ε = 8), above popularity. The five seeds
below, with 0.03 and 25 steps, do not. Neither do some runs at ε = 8 with a tenth of the rate and 60 steps (NDCG@10 of
two seeds: tied 1.63, 1.70; `logits` 1.66, 1.70; `paper` 1.43, 1.67; of four: GRU 1.44 to 2.25, LSTM 1.41 to 2.21,
untied 1.72 to 2.05). These are in the results, and in no table. Re-Attention: `paper` has the paper's form and units
(`scale` 1, not renormalized). `logits` has ours (renormalized, `scale` the learning rate: what one step adds).

**Size.** Seeds: {seeds}. Fewer epochs, shorter sequences and fewer users than the paper, from an hour's share of a
busy machine. `--seeds` and the constants in the script ask for more.
"""

CURVES_TEXT = """

## Learning curves (Figure 6)

![NDCG and HIT along the way](dpformer_curves.png)

Means over seeds; bands from the lowest to the highest.
"""

ATTENTION = """
## Attention (Figure 9)

![The first block's attention](dpformer_attention.png)

Mean weights of the first block over 500 users with full sequences, of one seed; row: the item that looks, column: what
it looks at, both from the first to the latest.

"""

VERDICT = """\
* **The models learn, but not with privacy.** Without it the same transformer has 4.5 / 9.1 after as many epochs, two
  and a half times what naming the most popular items has. With it every mean, at each ε, is within 0.3 points of
  popularity (1.81 / 4.14), and more budget does not help: between ε = 5 and ε = 10 no model changes by more than its
  seeds do.
* **DPFormer ≥ tied transformer: not seen, not refuted.** At ε = 8, five seeds each, `paper` differs by +0.07 and
  `logits` by 0.00 points, with standard errors of 0.11 and 0.02. The paper's differences (0.4 to 1.3 points) are
  between models that have learnt something to differ in.
* **Tied ≥ untied, GRU and LSTM: not seen.** At ε = 8 the untied transformer is 0.05 below the tied one, GRU and LSTM
  are 0.1 and 0.15 above it: one or two standard errors. In the paper tying lifts the transformer far above the rest
  (4.6 to 8.0 to some 2.5); the rest are where all of our models are.
* **Why.** A step adds noise of norm σ√p to a sum whose norm is at most the number of users. For the tied
  transformer, p = 137,728, that is 1,009 at ε = 8 to at most 943; with 6,040 users, as in the paper, the noise would
  be a sixth of the sum. What stands out of so much noise is what all users share, and that is what is popular. A
  smaller rate with more steps does no better here (above), and does not change this ratio.
* **Stability (Figure 6).** `logits` follows the tied transformer seed by seed and neither fluctuates more than the
  other; `paper` spreads most of all over seeds at ε = 8. The untied transformer rises first and falls again.
* **Attention (Figure 9), one seed: hardly a drift to rare items.** The last item's attention to the rarer half of
  its items is 1.19 times their share without privacy, and less with it, where the paper expects more: 0.84 at ε =
  10, 0.86 at 8, 0.88 at 5, which does grow with the noise, by little. With `scale` 1 (`paper`) it is 0.07 at ε = 5
  and 0.14 to 0.18 else: in the paper's units the exponents are far larger than what logits differ by, so that
  attention goes to frequent items whatever they are: a popularity prior rather than a correction. With `scale` 0.03
  (`logits`) it changes little: 0.83 to 0.85.

What would settle it is the paper's own setting, MovieLens-1M and a hundred epochs; the code takes both."""
