"""One attempt on several machines: Ray places its ranks, and they exchange sums over connections of their own.

    driver's machine                              each other machine
    worker ── supervisor ── rank 0                actor (node.py) ── rank r, in its sandbox
       │ group.py                 │                 │                    │
       │                          └── socket pair ──┴── TLS 1.3, a ring of ranks (links.py) ──▶
       └── Ray: which machines, public certificates, exit statuses
       └── TLS 1.3: the start message, with the job's keys

Decision 70 says who can read what.
"""
