"""What the report on Amazon video games concludes, in words. Written for the runs that are kept; renew it with them."""

VERDICT = """
Two seeds were made of five, at one ε, on 1,000 items: orders of a point are decided, tenths of a point are not.

* **Tying beats untying: holds, two seeds**, by 0.8 points or more for each. The untied transformer is near popularity
  by last items, which knows nothing of a user's sequence; the tied one is above it.
* **The tied transformer beats the GRU: fails, two seeds, if both have their own rate.** The GRU, also tied,
  wants twice the transformer's rate. On the validation split it has 3.7, 4.7, 5.8 and 5.3 % at 0.03, 0.06, 0.12 and
  0.24, the tied transformer 4.6, 5.1 and 4.0 % at 0.03, 0.06 and 0.12: at one rate for both, up to 0.06, the paper's
  order appears, and each model's own rate turns it. With 8 items of a user and 30 steps a recurrence is enough.
* **Re-Attention gains 28 %: not seen, undecided.** `logits` is level with the tied transformer on the validation split
  and within 0.3 points of it for each seed; no seed of `paper` is above it. A gain of 28 % would be 1.5 points. Items
  do differ: between 3 and 279 users have each of the 1,000, the median 26. More noise (ε = 5) and rarer items (4,000),
  where it should show most, were not run.
* **Not run:** ε = 5 and 10, 4,000 items, the transformer without privacy, three of the five seeds. The command goes on
  from the kept runs.
"""
