"""Admits jobs: a request is resolved, checked, priced and held. Each other answer is a prefix of this walk.

request.py   Resolved   who asks, for which job, on which data: its public facts, and contents by hash
choices.py              what is left out, or "auto", becomes what runs: each choice by a rule with a reason
checks.py    Checked    whether the job goes with its data; study.py for a search
price.py     Priced     the mechanism, its price on the blocks that can pay, the quote (app.pricing: the processes)
hold.py      Held       the job (rows.py), its hold, its first event and its message, in one transaction; standing.py:
                        what is checked once more under its locks
forecast.py             what an answer that holds nothing says: whether it fits, and how often; times.py: when it would
                        start; sweep.py: a study's final trial, many times
"""
