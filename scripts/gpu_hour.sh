#!/bin/sh
# The first hour on a GPU: `make gpu`, or `sh scripts/gpu_hour.sh` from the repository's root, in less than ten minutes.
# The report lies in build/gpu_hour; send it to whoever maintains the service.
#
# With a build of torch for CUDA in .venv: on Linux the registry's own is one (the driver must be new enough: 580 for
# CUDA 13, 525 for 12; `scrimp doctor` compares them). SCRIMP_PRETEND_GPU=1 rehearses all of it in small sizes on a device
# that pretends (tests/pretend_gpu), which needs g++.
set -u
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-build/gpu_hour}
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONPATH=.
mkdir -p "$OUT"
failed=

part() { # a name, and its command
  name=$1; shift
  echo "== $name"
  began=$(date +%s)
  "$@" >"$OUT/$name.txt" 2>&1 || failed="$failed $name"
  tail -n 40 "$OUT/$name.txt"
  echo "== $name took $(($(date +%s) - began)) s"
}

if [ -n "${SCRIMP_PRETEND_GPU:-}" ]; then
  part hour "$PYTHON" -m tests.pretend_gpu.within benchmarks.gpu_hour --tiny
  part speed "$PYTHON" benchmarks/bench_gpu.py --tiny --row "${ROW:-MLP}"
else
  "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "torch sees no GPU here: this checks a machine that has one (SCRIMP_PRETEND_GPU=1 rehearses)" >&2; exit 1; }
  part machine sh -c "nvidia-smi; $PYTHON -m pip list --format freeze | grep -iE 'torch|nvidia|numpy|triton|opacus'"
  part tests "$PYTHON" -m pytest -q -m gpu  # attempts among them, in the sandbox
  part kernel "$PYTHON" -m pytest -q tests/worker/test_noise_on_device.py  # NVRTC contracts nothing
  part hour "$PYTHON" -m benchmarks.gpu_hour
  part speed "$PYTHON" benchmarks/bench_gpu.py --rounds 5
fi
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
echo "all parts passed; the report is in $OUT"
