# Every target builds what it needs in .venv; nothing outside the checkout is touched.
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.installed-core
DEV    := $(VENV)/.installed-dev
PINS   := pyproject.toml constraints.txt
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '$(IS_NEW)' 2>/dev/null && echo $$p && break; done)
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test lint bench slow format clean help

demo: $(CORE)  ## certify the bundled digits votes
	@$(BIN)/mithridate certify examples/digits-votes.npz --labels-key y

test: $(DEV)  ## run the fast tests and the doctests
	@$(BIN)/python -m pytest

lint: $(DEV)  ## check style, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright

bench: $(DEV)  ## time certification, and training next to Opacus
	@$(PIP) -e '.[bench]'
	@$(BIN)/python benchmarks/certify.py
	@$(BIN)/python benchmarks/train.py --model lenet5 --device cpu

slow: $(DEV)  ## run the tests that take minutes
	@$(BIN)/python -m pytest -m slow

format: $(DEV)  ## fix what ruff can fix
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean:  ## remove .venv, builds and caches
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list these targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

$(BIN)/python:
	@$(or $(PYTHON),false) -c '$(IS_NEW)' 2>/dev/null || \
	  { echo "mithridate needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(CORE): $(PINS) | $(BIN)/python
	@echo "Installing mithridate into $(VENV)"
	@$(PIP) -e .
	@touch $@

$(DEV): $(PINS) | $(BIN)/python
	@echo "Installing mithridate with torch and its test and lint tools into $(VENV)"
	@$(PIP) -e '.[train,test,lint]'
	@touch $(CORE) $@
