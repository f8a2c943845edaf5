"""The tests. What holds for all that they load and start stands here: it is read before any of it."""

import os
import sys

# The tests start some hundred processes: without byte code on the disk, each would compile the whole program anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Test processes share two cores, where waiting threads spin: a sum of eighty numbers took 40 ms. Tests that need
# several threads ask for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
