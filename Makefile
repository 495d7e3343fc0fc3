# Two commands do all the set-up on a fresh machine:  make demo   and   make test
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
# Where to find a CPU build of torch when the default package index only has CUDA builds for your
# machine: the wheel index that PyTorch's "Get started" page shows for "CPU".
TORCH_INDEX ?=
export TORCH_EXTENSIONS_DIR := $(CURDIR)/.torch_extensions
# Tests side by side. Most of them start programs of two processes, so more of them than cores gain little.
JOBS ?= 2
# Tests start some thousand Python processes: each would compile the project anew where bytecode is not kept.
TESTS := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --durations=25

.PHONY: help install demo test test-fast test-cluster bench gpu-check golden lint types debian clean
help:
	@echo "make demo   install, plan, emit, and train a tiny model on 2 CPU ranks with DeepSpeed ZeRO-2"
	@echo "make test   install what is missing (Debian packages too) and run every test"
	@echo "make bench  candidates per second and CPU time of planning (TOOLKIT_PEERS=DIR: other planners beside it)"
	@echo "make gpu-check  train recipe tiny in bf16 with both programs on the GPUs at hand, and profile it"
	@echo "make lint types test-fast test-cluster golden clean"

install: $(STAMP)
$(STAMP): pyproject.toml scripts/install
	PYTHON=$(PYTHON) VENV=$(VENV) TORCH_INDEX=$(TORCH_INDEX) bash scripts/install
	@touch $@

demo: $(STAMP)
	bash scripts/demo $(BIN)

# Slurm for the cluster tests. Without root this prints what an administrator has to install.
debian:
	bash scripts/debian

test: $(STAMP) debian lint types
	$(TESTS) --dist loadfile -m "not cluster" tests
	$(TESTS) --dist worksteal -m cluster tests

test-fast: $(STAMP)
	$(TESTS) --dist loadfile tests

test-cluster: $(STAMP) debian
	$(TESTS) --dist worksteal -m cluster tests

bench: $(STAMP)
	$(BIN)/python -m tests.bench

# not yet run on a GPU; without one it says so and fails
gpu-check: $(STAMP)
	bash scripts/gpu-check $(BIN)

# rewrite the generated files (ds_configs/, slurm/, tests/golden/) after a deliberate change
golden: $(STAMP)
	$(BIN)/python -m tests.golden_files --write
	$(BIN)/python -m tests.readme_outputs

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache demo
