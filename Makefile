# Each target sets up what it needs in .venv, with versions pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PINS := pyproject.toml client/pyproject.toml client/setup.py constraints.txt setup.py $(wildcard core/native/*.[ch])
REPRODUCE := reproduce-adambc-analysis reproduce-adambc-encoder reproduce-augmentation reproduce-barcode-mnist reproduce-correlated reproduce-dp2 reproduce-dpformer \
  reproduce-group-norm reproduce-heavy-tail reproduce-language reproduce-linear-scaling reproduce-prompts reproduce-search-gain
NIGHTLY := nightly-fuzz nightly-contract nightly-audit nightly-bound nightly-chaos nightly-cuda nightly-machine nightly-mutation nightly-seeds nightly-services nightly-writes
.DEFAULT_GOAL := help
.PHONY: help demo serve test stress check lint bench gpu nightly docs openapi notebooks graph wheel clean $(NIGHTLY) $(REPRODUCE)

help:
	@echo "make demo    trains on 25,000 real reviews from start to end, in under 3 minutes (KEEP=1 leaves it running)"
	@echo "make serve   starts the service on http://127.0.0.1:8100, with its home in ~/.scrimp"
	@echo "make test    runs all tests, of long sweeps a representative part"
	@echo "make stress  runs all tests N=20 times in shuffled orders on a busy machine, and lists whatever ever failed"
	@echo "make check   runs ruff, mypy, import-linter and the fast tests"
	@echo "make bench   runs the benchmarks"
	@echo "make gpu     runs the tests and measurements that need a GPU, on a machine that has one"
	@echo "make $(REPRODUCE)"
	@echo "             repeats an experiment from the literature with the service's own code: hours"
	@echo "make nightly runs $(NIGHTLY):"
	@echo "             long runs, each with a dated report (nightly-chaos, nightly-machine: SECONDS=, SEED=; nightly-mutation, nightly-writes: SECONDS=)"
	@echo "make docs    builds the documentation site into build/site"
	@echo "make openapi writes docs/openapi.json, the generated pages of docs/, and the client's typed specifications"
	@echo "make wheel   builds dist/scrimp_client-*.whl, and dist/scrimp-*.whl for every Linux since 2014 with the noise step"
	@echo "make notebooks  stores the outputs of the notebooks in examples/"
	@echo "make graph   measures and draws the import graph, for docs/architecture.md"
	@echo "make clean   removes .venv and the demo's home"

demo: .venv/.demo
	@$(BIN)/python scripts/demo.py $(if $(KEEP),--keep)

serve: .venv/.demo
	$(BIN)/scrimp serve

test: .venv/.dev
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || echo "No Chromium here: the browser tests are skipped (apt install chromium; SCRIMP_REQUIRE_BROWSER=1 forbids it)"
	$(BIN)/python -m pytest -n 3

# PATHS=tests/ledger: a part of them. SEED=, LOAD= (processes that burn processor time): repeats a run.
stress: .venv/.dev
	$(BIN)/python -m tests.stress.run --runs $(or $(N),20) $(if $(SEED),--seed $(SEED)) $(if $(LOAD),--load $(LOAD)) $(PATHS)

check: lint
	$(BIN)/python -m pytest -n 3 -m "not slow and not browser and not nightly"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n auto
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.vague_names

bench: .venv/.bench
	@for file in benchmarks/bench_*.py; do echo "== $$file" && $(BIN)/python $$file || exit 1; done

# Repeats an experiment. Its report and figures are in benchmarks/reports/reproduce. With DATA=FILE two of them are
# another one: DPFormer on that file of events, and the recipe for a GPU on that file of images.
reproduce-dpformer: WITH_DATA := games
reproduce-group-norm: WITH_DATA := wide_residual
$(REPRODUCE): reproduce-%: .venv/.bench
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.reproduce.$(if $(and $(DATA),$(WITH_DATA)),$(WITH_DATA) $(DATA),$(subst -,_,$*))

# Each part takes less than an hour and writes a dated report; nightly-machine, nightly-mutation and nightly-writes go
# on where their last run ended.
nightly: $(NIGHTLY)

# On a machine with an NVIDIA GPU and a CUDA build of torch; less than ten minutes.
gpu: .venv/.dev .venv/.bench
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
	  echo "torch sees no GPU here: this target checks a machine that has one" >&2; exit 1; }
	PYTHON=$(BIN)/python sh scripts/gpu_hour.sh

nightly-fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz.campaign --inputs 100000 --report benchmarks/reports/fuzz.md

nightly-contract: .venv/.dev
	$(BIN)/python -m tests.contract.nightly

nightly-audit: .venv/.dev
	$(BIN)/python -m tests.canaries.nightly

nightly-bound: .venv/.dev
	$(BIN)/python -m tests.bound.nightly

nightly-services: .venv/.dev
	$(BIN)/python -m pytest -n 3 -m nightly --hypothesis-profile night

nightly-seeds: .venv/.dev
	$(BIN)/python -m tests.stress.seeds

nightly-chaos: .venv/.dev
	$(BIN)/python -m tests.chaos.nightly --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

# torch for CUDA and its libraries (5 GB), on a machine that needs no GPU: what an attempt on one does before it uses it.
# 2.11.0 is a build for CUDA wherever pip looks.
nightly-cuda:
	$(PYTHON) -m venv build/cuda
	grep -v '^torch==' constraints.txt > build/cuda/constraints.txt
	build/cuda/bin/python -m pip install -qq -c build/cuda/constraints.txt torch==2.11.0 -e ./client -e '.[dev]'
	build/cuda/bin/python core/native/build.py
	build/cuda/bin/python -m pytest -m "" tests/worker/test_cuda_build.py tests/worker/test_fork_server.py \
	  tests/worker/test_sandbox.py tests/worker/test_noise_on_device.py tests/worker/test_gpu_pass.py

nightly-machine: .venv/.dev
	$(BIN)/python -m tests.machine.nightly --seconds $(or $(SECONDS),3000) $(if $(SEED),--seed $(SEED))

nightly-writes: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.writes.nightly --seconds $(or $(SECONDS),3000)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.writes.on_postgres --cases 40

nightly-mutation: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation.nightly --seconds $(or $(SECONDS),3000)

docs: .venv/.dev
	$(BIN)/python scripts/build_site.py

openapi: .venv/.dev
	$(BIN)/python scripts/write_openapi.py
	$(BIN)/python -m scripts.write_specs
	$(BIN)/python -m scripts.write_specifications
	$(BIN)/python -m scripts.write_claims

# ziglang is a C compiler from the registry: its library needs nothing newer than glibc 2.17.
wheel:
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install -qq -c constraints.txt 'setuptools>=70.1' ziglang
	build/wheel/bin/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir dist ./client ./engine .
	@ls dist/scrimp_client-*.whl dist/scrimp_engine-*.whl dist/scrimp-*-py3-none-manylinux*.whl

# Stores the outputs of the notebooks in examples/.
notebooks: .venv/.dev
	$(BIN)/python scripts/run_notebooks.py

# Measures the import graph, for docs/architecture.md.
graph: .venv/.dev
	$(BIN)/python -m scripts.import_graph --write

clean:
	rm -rf .venv .scrimp-demo

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Scrimp needs Python 3.11 or newer; this is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "This Python cannot make virtual environments (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The installation compiles parts of a step if it finds a compiler. Otherwise one is fetched; without it, they run in
# Python: the same bits, slower.
COMPILED = @$(BIN)/python -c "from core.native import library; raise SystemExit(library.INSTALLED is None)" \
  || { $(BIN)/python -m pip install -qq -c constraints.txt ziglang && $(BIN)/python core/native/build.py; } \
  || echo "Parts of a step are not compiled: they run in Python, slower and with the same bits"

# A changed version or dependency renews the stamps. `dev` and `bench` include everything in `demo`. pip compiles modules
# one after the other; here all processors do, what they can: some are for a newer Python.
.venv/.dev .venv/.demo .venv/.bench: $(PINS) | .venv/bin/python
	@echo "Installing into .venv (minutes, the first time) ..."
	@$(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e ./client -e '.[$(@F:.%=%)]'
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	$(COMPILED)
	@touch $@ .venv/.demo
