# What a checkout can do; `make help` lists it. Everything happens in $(VENV), which the first target
# that needs it makes: a clone, `make` and Python are enough.

PYTHON      ?= python3
VENV        ?= .venv
# torchrun and Ray, apart: torch must not decide about the versions of what is under test.
LAUNCHERS   ?= $(VENV)-launchers
# Two processes, each with half of the files, and then with half of what the other has left, so that
# they end together. On many cores, pass `-n 8 --dist worksteal`.
PYTEST_ARGS ?= --numprocesses 2 --dist worksteal
# `make test-all` runs these one after the other, or those that are named: PIECE="core models".
PIECE       ?= core training library models
PIECE_training = $(addprefix tests/,checkpoints fluid handlers trainer)
PIECE_library  = $(addprefix tests/,commands preprocessing readers weight_files)
PIECE_models   = tests/models
PIECE_core     = $(filter-out $(PIECE_training) $(PIECE_library) $(PIECE_models) tests/__pycache__, \
  $(wildcard tests/test_*.py) $(patsubst %/,%,$(wildcard tests/*/)))
# Above 97 % in half a minute on two cores; `penstock train --help` says what the flags mean.
TRAIN_ARGS  ?= --train_image_size=12 --num_epochs=10 --stop_at_step=0 --log_loss_every_n_iters=0 \
  --optimizer=adam --learning_rate=0.003 --learning_rate_decay_type=cosine
BENCH_ARGS  ?=
# Python compiles what it imports; all that is installed would take 20 of 54 seconds.
PIP_ARGS     = --no-input --disable-pip-version-check --progress-bar off --no-compile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two installations into one environment at a time would spoil it.
.NOTPARALLEL:
.PHONY: train test test-all launchers lint format docs wheel-check bench clean help

train: $(VENV)/.installed-test ## train the digits network, then infer (TRAIN_ARGS=...)
	@$(VENV)/bin/penstock train $(TRAIN_ARGS)

test: $(VENV)/.installed-test ## run the tests that are not slow (PYTEST_ARGS=...)
	@echo "penstock: running the tests that are not slow"
	@$(VENV)/bin/python -m pytest --quiet -m "not slow" $(PYTEST_ARGS)

# With the extras that tests need, and a failure, not a skip, where one of them is missing. The largest
# networks compile for minutes, which is no hang.
test-all: $(VENV)/.installed-test-all $(if $(filter core,$(PIECE)),launchers) ## run every test, those with TensorFlow too (PIECE="core models")
	@$(foreach piece,$(PIECE),$(if $(PIECE_$(piece)),,\
	  $(error PIECE got '$(piece)', expected some of core training library models)))
	@failed=; $(foreach piece,$(PIECE),\
	  echo "penstock: running every test of the piece $(piece)"; start=$$(date +%s); \
	  PENSTOCK_REQUIRE_EXTRAS=1 PENSTOCK_LAUNCHERS="$(abspath $(LAUNCHERS))" \
	    $(VENV)/bin/python -m pytest --quiet -o faulthandler_timeout=3600 \
	    $(PYTEST_ARGS) $(PIECE_$(piece)) || failed="$$failed $(piece)"; \
	  echo "penstock: $(piece) took $$(( $$(date +%s) - start )) s";) \
	test -z "$$failed" || { echo "penstock: tests failed in$$failed" >&2; exit 1; }

# Where it cannot install one, it says so, and the tests of that one fail.
launchers: $(VENV)/.installed-test ## install Open MPI, Slurm, torchrun and Ray, for the tests of launchers
	-@scripts/install_launchers.sh $(LAUNCHERS) $(VENV)

lint: $(VENV)/.installed-dev ## check format, lint and types
	@echo "penstock: checking the format"
	@$(VENV)/bin/ruff format --check
	@echo "penstock: linting"
	@$(VENV)/bin/ruff check
	@echo "penstock: checking the types"
	@$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

format: $(VENV)/.installed-dev ## format the code and apply the linter's safe fixes
	@$(VENV)/bin/ruff check --quiet --fix --exit-zero
	@$(VENV)/bin/ruff format

# Strict: a link that leads nowhere, or a name that the reference does not find, fails.
docs: $(VENV)/.installed-docs ## build the documentation site into site/
	@echo "penstock: building the documentation"
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet
	@echo "penstock: open site/index.html"

# In an environment of its own, below build/. PAGES= leaves out the blocks of README and docs.
wheel-check: ## build the wheel, install it alone and use it (PYTHON=python3.13 PAGES=...)
	@PYTHON="$(PYTHON)" scripts/check_wheel.sh

bench: $(VENV)/.installed-bench ## measure against hand-written loops and Keras (BENCH_ARGS=...)
	@echo "penstock: measuring; the machine should be idle"
	@$(VENV)/bin/python -m benchmarks $(BENCH_ARGS)

clean: ## remove caches and build outputs (the environment stays: rm -rf .venv)
	@rm -rf build dist site .pytest_cache .ruff_cache *.egg-info
	@find . -name '.venv*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One stamp an extra. It is older than pyproject.toml or constraints.txt when they have changed, and
# is not written when the installation fails.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "penstock: $(PYTHON) was not found. Install Python 3.11 or newer, or name one:" \
	    "make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "penstock: $(PYTHON) is $$($(PYTHON) --version 2>&1), expected Python 3.11 or newer." \
	    "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "penstock: $(PYTHON) comes without its venv and ensurepip modules. On Debian and Ubuntu:" \
	    "apt install python3-venv" >&2; exit 1; }
	@$(VENV)/bin/python -c 'import pip' 2>/dev/null || { \
	  echo "penstock: making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "penstock: installing penstock[$*] into $(VENV) (minutes the first time)"
	@$(VENV)/bin/python -m pip install $(PIP_ARGS) \
	  --constraint constraints.txt --editable '.[$*]' >$(VENV)/install.log 2>&1 || { \
	  tail -n 20 $(VENV)/install.log >&2; \
	  echo "penstock: the installation failed; the whole log is in $(VENV)/install.log" >&2; exit 1; }
	@touch $@

# TensorFlow 2.21 takes h5py below 3.15, so that pin alone is left out; all others hold here too.
$(VENV)/.installed-test-all: $(VENV)/.installed-test
	@echo "penstock: installing penstock[test-all] into $(VENV) (a gigabyte the first time)"
	@grep -v '^h5py==' constraints.txt >$(VENV)/constraints-test-all.txt
	@$(VENV)/bin/python -m pip install $(PIP_ARGS) \
	  --constraint $(VENV)/constraints-test-all.txt --editable '.[test-all]' >$(VENV)/install.log 2>&1 || { \
	  tail -n 20 $(VENV)/install.log >&2; \
	  echo "penstock: the installation failed; the whole log is in $(VENV)/install.log" >&2; exit 1; }
	@touch $@
