# Two commands do all the set-up on a fresh machine:  make demo   and   make test
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
# Where to find a CPU build of torch when the default package index only has CUDA builds for your
# machine: the wheel index that PyTorch's "Get started" page shows for "CPU".
TORCH_INDEX ?=
export TORCH_EXTENSIONS_DIR := $(CURDIR)/.torch_extensions

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
	$(BIN)/python -m pytest -m "not cluster" tests
	$(BIN)/python -m pytest -m cluster tests

test-fast: $(STAMP)
	$(BIN)/python -m pytest tests

test-cluster: $(STAMP) debian
	$(BIN)/python -m pytest -m cluster tests

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
