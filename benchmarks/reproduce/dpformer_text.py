"""The DPFormer report's words."""

from __future__ import annotations

HEAD = """\
# DPFormer on MovieLens-100k

Made by `make reproduce-dpformer` ({machine}; the machine was busy with other work).

**Data.** MovieLens-100k, a stand-in for the paper's MovieLens-1M, which is not to be had here: 943 users for 6,040, and
1,349 items after a 5-core for 3,416. Each user's last item is held out; HIT@10 and NDCG@10 are over all items, items
seen before included, ties against us. The data are public, so that scores are exact here and frequencies of items are
counted; on private data both are noisy and charged.

**Training.** Dimension {dim}, 1 head, 2 blocks (1 recurrent layer), the last {length} items, dropout {dropout}, loss
at all positions; DP-Adam, weight decay 1e-5, warm-up over 20 % of the steps and then linearly down, automatic clipping
with C = 1, all users in each of {steps} steps ({steps} epochs; the paper: 100), δ = 1e-4, σ = {sigmas}. One user is one
record, ε is a user's. Without privacy: as many epochs of batches of 256.

**Hardly tuned.** One learning rate for all private runs, 0.03, and 0.005 without privacy. A run of the tied transformer
with another seed ended at 2.28 / 5.30 (rate 0.02, 40 steps, ε = 8), above popularity; with the five seeds below 0.03
and 25 steps are not. Smaller rates were left untried for want of time. Re-Attention: `paper` in the paper's form and
units (`scale` 1, not renormalized), `logits` in ours (renormalized, `scale` the learning rate: what one step adds).

**Scale of it.** Seeds: {seeds}. Fewer epochs, shorter sequences and fewer users than the paper: what an hour's share of
a busy machine gave. `--seeds` and the constants in the script ask for more.
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
Of the runs above (two or three seeds, which is too few for small differences):

* **No model learned more than which items are popular.** All private means lie between 1.66 and 2.09 (NDCG@10, %);
  naming the most popular items to everybody has 1.81. More budget did not help: ε = 10 is no better than ε = 5.
* **DPFormer ≥ tied transformer: in the means, but not established.** `paper` is above the tied transformer at each ε
  (by 0.1 to 0.3 points), `logits` at two of three; each difference is within the seeds' standard deviations (to 0.4).
* **Tied ≥ untied, GRU and LSTM: not seen.** The tied transformer is the lowest here, but for `logits` at ε = 5. In the
  paper tying is what lifts the transformer far above the rest (4.6 to 8.0 to some 2.5); the rest lie at what our
  models have here.
* **Part of this is the training, not the noise.** Without privacy the same 40 steps give 3.46 (GRU) and 2.42
  (transformer): some eleven epochs of a model half as wide are not the paper's hundred.
* **Attention, of one seed: no drift to rare items.** The last item's attention to the rarer half of its items is 1.1
  times their share without privacy and 0.8 times at ε = 8, where the paper expects more. Re-Attention with `scale` 1
  takes nearly all of it away (0.03): in the paper's units its exponents are far larger than what logits differ by, so
  that attention goes to frequent items whatever they are. That is a popularity prior rather than a correction.

What would settle it is the paper's own setting, MovieLens-1M and a hundred epochs; the code takes both."""
