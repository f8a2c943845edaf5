"""The worker. Before torch is loaded: kernels whose results depend neither on a row's place nor on its address."""

import os

# MKL otherwise chooses kernels by addresses and tails; at odd widths a tenth of all products then move a bit.
os.environ.setdefault("MKL_CBWR", "AUTO")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
