# Two commands set everything up on a new machine with Python 3.11 or later:
#   make demo   install with the examples, search a real training script, train as written and as found
#   make test   install for development, run the whole suite
PYTHON ?= python3
BIN := .venv/bin
DEMO := examples/digits_cnn/train.py
FEW := --epochs 5 --out .autotune/digits_cnn.pt
# on two cores: starts of processes wait for the disk; threads that wait must not spin; what is
# compiled is kept, also where the environment says otherwise, as each process would compile it anew
TESTS := OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= \
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal

# a download of gigabytes is interrupted now and then, and pip goes on with it five times by default
export PIP_RESUME_RETRIES ?= 30

.PHONY: demo test quick pictures cluster lint docs libraries compat nightly dist clean

demo: .venv/examples
	$(BIN)/autotune search --budget 3m $(DEMO)
	@echo; echo "As written, by the script's own print:"
	$(BIN)/python $(DEMO) $(FEW)
	@test ! -f best.yaml || { echo; echo "As found:"; $(BIN)/autotune run best.yaml $(DEMO) $(FEW); }

test: .venv/dev
	$(TESTS)

quick: .venv/dev
	$(TESTS) -m "not slow"

# every command that starts a program, ended in each way: nothing of the user's differs; 5 minutes
pictures: .venv/dev
	$(TESTS) -m "slow" tests/test_pictures.py

# searches of several machines on real parts: PostgreSQL, Slurm, Ray, and hosts that are namespaces;
# what Debian has is installed where it is missing (root only); 20 minutes
cluster: .venv/cluster
	$(TESTS) -m cluster tests/cluster

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the guide in docs/, as a site
docs: .venv/dev
	$(BIN)/mkdocs build

# one of benchmarks/*.py: make bench-overhead, bench-claims, bench-turns; nothing else may run
bench-%: .venv/dev
	$(BIN)/python -m benchmarks.$*

# training loops of libraries, each natively, searched and run; 15 minutes, no part of `make test`
libraries: .venv/libraries
	$(BIN)/python -m benchmarks.libraries

# the oldest, a middle and the newest torch of PyPI, each in an environment of 5.5 GB that is removed
# again: writes the table in docs/start/install.md; half an hour. TORCH="2.6 newest" names releases
compat: .venv/dev
	$(BIN)/python -m tests.compat $(TORCH)

# the quick suite on the nightly build of torch, which stays in .venv; clean first and afterwards
nightly: .venv/dev
	$(BIN)/python -m pip install --quiet --pre --upgrade torch torchvision \
		--index-url https://download.pytorch.org/whl/nightly/cpu
	$(TESTS) -m "not slow"

# the wheel and the sdist in dist/, checked; TAG=v0.1.0 says which version they must have
dist: .venv/dev
	$(BIN)/python -m tests.dist $(TAG)

clean:
	rm -rf .venv .autotune .mypy_cache .pytest_cache .ruff_cache build dist site

.venv/pip:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/examples: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[examples]" torchvision
	touch $@

.venv/cluster: .venv/dev pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev,postgres,grpc,ray]" torchvision \
		kubernetes-validate kubeflow-trainer-api
	touch $@

.venv/libraries: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[libraries]" torchvision
	touch $@

.venv/dev: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]" torchvision
	touch $@
