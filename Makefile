# Everything runs in .venv in this folder. Variables:
#   PYTHON=python3.12     the interpreter that .venv is made with (3.11 or newer)
#   TORCH_BACKEND=cpu     take torch's small CPU build instead of the one on PyPI
#   JOBS=2                processes that run Python's tests side by side
#   CASES=2000            how many cases `make fuzz` tries of each property
#   PORT=8000 ARGS=...    for `make serve`; ARGS for `make bench-gpu` too

PYTHON ?= python3
TORCH_BACKEND ?=
PORT ?= 8000
ARGS ?=
CASES ?= 2000
JOBS ?= 2

# Tests of one group, and those of a file where fixtures are dear, are run by one process.
PARALLEL := --numprocesses $(JOBS) --dist loadgroup
QUICK_CASES := 32

# Some images switch bytecode off; then every process of the tests compiles all its imports again.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
CORE := pyengine/_core.abi3.so
RUST := Cargo.toml Cargo.lock $(shell find rust kernels -name '*.rs' -o -name Cargo.toml)
# mkdocs-material prints a banner about other projects unless told not to.
DOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
UV := VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv

.PHONY: help setup serve test test-all test-old-torch test-data coverage fuzz check docs docs-serve bench bench-gpu first-light bench-peers format lock clean

setup: .venv/installed $(CORE)  ## make .venv with everything in it, and build the Rust module

serve: $(CORE)  ## serve the demo model; installs only what serving on a CPU needs
	$(BIN)/pyengine serve --port $(PORT) $(ARGS)

test: .venv/installed $(CORE)  ## what shows within 5 minutes that nothing is broken: Rust, then Python
	PROPTEST_RNG_SEED=1 PROPTEST_CASES=$(QUICK_CASES) cargo test --workspace --quiet
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-all: .venv/installed $(CORE) .venv/scale .venv/clients build/clients  ## what `make test` leaves out: all cases of Rust's property tests, slow tests
	PROPTEST_RNG_SEED=1 cargo test --workspace --quiet -- --include-ignored
	$(BIN)/python -m pytest $(PARALLEL) -m slow

test-old-torch: .venv/installed $(CORE) build/old_torch  ## the tests on a CUDA device that is not there, with the oldest torch and Triton that are supported
	CUDA_DEVICE_PYTHON=$(CURDIR)/build/old_torch/bin/python $(BIN)/python -m pytest tests/cuda_device

test-data: .venv/installed  ## download the traces and tokenizers that a few tests and benches read
	$(BIN)/python -m tools.reference_data

coverage: .venv/installed $(CORE) .venv/scale .venv/clients build/clients  ## lines that no test runs: Python by all its tests, Rust by cargo-llvm-cov
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report term:skip-covered
	@if cargo llvm-cov --version >/dev/null 2>&1; then \
		PROPTEST_RNG_SEED=1 cargo llvm-cov --workspace --summary-only; \
	else echo "Rust's coverage needs cargo-llvm-cov: cargo install cargo-llvm-cov"; fi

fuzz: .venv/installed $(CORE)  ## property tests with new cases
	PROPTEST_CASES=$(CASES) cargo test --workspace
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile fuzz

check: .venv/installed $(CORE)  ## formatters, linters, types, clippy, the stub against the binary, the docs
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest pyengine._core
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(DOCS) build --strict --quiet

docs: .venv/installed $(CORE)  ## the documentation site, in build/site
	$(DOCS) build --strict --quiet

docs-serve: .venv/installed $(CORE)  ## the documentation site at http://127.0.0.1:8001, built again on every change
	$(DOCS) serve --dev-addr 127.0.0.1:8001

bench: .venv/installed $(CORE)  ## every bench, each beside its floor or peer
	@for bench in benches/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

bench-gpu: .venv/installed $(CORE)  ## everything in benches/gpu on a CUDA GPU, within 8 minutes
	$(BIN)/python -m benches.gpu $(ARGS)

first-light: .venv/installed $(CORE)  ## what a first GPU is asked: its tests, the bench by each backend, a page of figures
	$(BIN)/python -m benches.gpu.first_light $(if $(ARGS),--bench $(ARGS))

bench-peers: .venv/installed  ## install the peers of benches/bench_cpu_serving.py in build/peers: 6 GB, ten minutes
	benches/cpu_serving/install_peers.sh build/peers $(CURDIR)/$(BIN)/python

format: .venv/installed  ## let the formatters write
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .venv/installed  ## raise the pinned versions
	$(UV) pip compile --quiet --upgrade --universal --extra dev --extra docs --extra scale --extra clients --extra plot --no-header --no-annotate \
		--python-version 3.11 --output-file constraints.txt pyproject.toml
	$(UV) pip compile --quiet --upgrade --universal --no-header --no-annotate --python-version 3.11 \
		--override $(JOBS_OF_CLIENTS)/overrides.txt --output-file $(JOBS_OF_CLIENTS)/requirements.txt \
		$(JOBS_OF_CLIENTS)/requirements.in
	cargo update

.venv/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pyengine needs Python 3.11 or newer; say which: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# What serving on a CPU needs, and what builds the module: no torch, no tools of developers.
.venv/serves: pyproject.toml constraints.txt .venv/bin/uv
	$(UV) pip install --constraint constraints.txt 'maturin>=1.9,<2' --requirement pyproject.toml
	@touch $@

.venv/installed: .venv/serves
	$(UV) pip install $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) \
		--constraint constraints.txt --extra dev --extra docs --requirement pyproject.toml
	@touch $@

# The router, Ray and Kubernetes' schemas are 600 MB, and only slow tests and benches need them.
.venv/scale: .venv/installed
	$(UV) pip install --constraint constraints.txt --extra scale --requirement pyproject.toml
	@touch $@

.venv/clients: .venv/installed
	$(UV) pip install --constraint constraints.txt --extra clients --extra plot --requirement pyproject.toml
	@touch $@

# Clients whose pins do not go with this project's: 1 GB; torch is looked for in .venv.
JOBS_OF_CLIENTS := tests/http/client_jobs
build/clients: .venv/installed $(JOBS_OF_CLIENTS)/requirements.txt
	$(UV) venv --quiet --clear --python $(BIN)/python $@
	$(UV) pip install --quiet --python $@/bin/python --override $(JOBS_OF_CLIENTS)/overrides.txt \
		--requirement $(JOBS_OF_CLIENTS)/requirements.txt
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > \
		$$($@/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth

# The oldest torch for CUDA, with its Triton: 5 GB. All else is looked for in .venv.
build/old_torch: .venv/installed
	$(UV) venv --quiet --clear --python $(BIN)/python $@
	$(UV) pip install --quiet --python $@/bin/python 'torch==2.11.*'
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > \
		$$($@/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth

$(CORE): .venv/serves $(RUST)
	VIRTUAL_ENV=$(CURDIR)/.venv PATH="$(CURDIR)/.venv/bin:$$PATH" $(BIN)/maturin develop --release --uv
	@touch $@

clean:  ## remove what was built
	rm -rf .venv target dist $(CORE)

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1	/p' Makefile | expand -t 14
