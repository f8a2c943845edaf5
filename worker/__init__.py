"""The worker. Before torch is loaded, selects kernels whose results depend on no row's position or memory address."""

import os

# Without this, MKL chooses kernels by addresses and tails: at odd widths a tenth of all products then differ by a bit.
os.environ.setdefault("MKL_CBWR", "AUTO")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
