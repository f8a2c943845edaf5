"""What the report on Amazon video games concludes, in words. Written for the runs that are kept; renew it with them."""

VERDICT = """
Five seeds at ε = 8 on 1,000 items. The difference of two models is known to some 0.3 points, 0.05 for `logits`, which
moves with the tied transformer. With five seeds a 95 % interval is 2.8 standard errors to each side.

* **Tying beats untying: holds**, by 0.63 ± 0.18 points, in four seeds of five. The untied transformer is at
  popularity by last items, which knows nothing of a user's sequence; the tied one is above it.
* **The tied transformer beats the GRU: fails, if each has its own rate**, by 1.59 ± 0.35 points, in every seed. The
  GRU, also tied, wants twice the transformer's rate. On the validation split it has 3.7, 4.7, 5.8 and 5.3 % at 0.03,
  0.06, 0.12 and 0.24, the tied transformer 4.6, 5.1 and 4.0 % at 0.03, 0.06 and 0.12: at one rate for both, up to 0.06,
  the paper's order appears, and each model's own rate turns it. With 8 items of a user and 30 steps a recurrence is
  enough.
* **Re-Attention gains 28 %: undecided; not at this size.** That would be 1.4 points; `paper` gains 0.05 ± 0.29, between
  −15 and +17 % with 95 %, and `logits` −0.05 ± 0.05. A smaller gain of `paper` is not excluded: one seed of five has
  +1.1, three are below zero. Two seeds alone said −0.38 ± 0.08: they happened to agree.
* **Why it does not come: likely, not measured here.** `logits` scores within 0.02 points of the tied transformer in
  four of five seeds: what one step's noise adds to a logit is small. `paper` takes σ/L as the error of a trained
  embedding. [On MovieLens](dpformer.md) that makes the exponents of rare items much larger than logits differ by, and
  attention to the rarer half of a sequence falls from 0.86 of its share to 0.14: a preference for frequent items in
  the place of attention. With eight items of a user that may cost what it gains. Items do differ: between 3 and 279
  users have each of the 1,000, the median 26.
* **At ε = 5, five seeds, neither.** `paper` differs by −0.12 ± 0.12 points from 4.47 %, −10 to +5 % with 95 %, where
  the paper's gain is 20 %. More noise does not bring it. Both have the tied transformer's rate. On the validation
  split, one seed, the tied transformer has 4.0, 4.1 and 3.3 % at 0.03, 0.06 and 0.12, the GRU 3.7, 3.8, 4.5 and 3.4 %
  at 0.03, 0.06, 0.12 and 0.24, and the untied transformer 3.5 and 3.4 % at 0.03 and 0.06: the order of ε = 8.
* **Not decided: 4,000 items.** Begun: on the validation split, one seed, ε = 8, the tied transformer has 1.94 % at 0.03
  and at 0.06. Runs score the users whose last item is in the less popular half, too. A run takes some six minutes of a
  free core: a search and five seeds of both models at ε = 5 and 8 are 27 more, under three hours. The command goes on
  from the kept runs. **Not run:** ε = 10, the transformer without privacy.
"""
