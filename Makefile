# Every target builds what it needs in .venv; nothing outside the checkout is touched.
VENV   := .venv
BIN    := $(VENV)/bin
TRAIN  := $(VENV)/.installed-train
DEV    := $(VENV)/.installed-dev
PINS   := pyproject.toml constraints.txt
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '$(IS_NEW)' 2>/dev/null && echo $$p && break; done)
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# Without a network it gives up soon.
APT    := apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20
# A process for every core, each on one thread; tests of one file share what they set up.
PYTEST   := python -m pytest -n auto --dist loadfile
# Files with few tests that take long would come last, and one core would wait for the other; conftest.py orders them.
ORDERED  := --no-loadscope-reorder
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/$(PYTEST)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test more slow cluster lint docs browser lowest bench reproduce figures dist format clean help

demo: $(TRAIN)  ## train, certify and report on handwritten digits
	@$(BIN)/mithridate demo

test: $(DEV)  ## run the fast tests and the doctests
	@$(PARALLEL)

more: $(DEV)  ## run the tests of whole programs: kills, browser, documentation, packages, experiments, Ray
	@$(PARALLEL) $(ORDERED) -m 'more and not slow and not gpu'

slow: $(DEV)  ## run the tests that take minutes; ROUNDS=50 rounds on a Ray cluster, MITHRIDATE_FUZZ_INPUTS=100000 files, MITHRIDATE_SOAK_SECONDS=3600 of serving
	@$(PARALLEL) -m '(slow or hypothesis) and not gpu' --hypothesis-profile=thorough

cluster: $(DEV)  ## run what `make more` has about Ray, by itself
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'more and not slow and not gpu' tests/test_ray.py tests/test_ray_faults.py

lint: $(DEV)  ## check style, format, types and which way imports point
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache --no-logo

docs: $(DEV)  ## build the documentation into site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

browser:  ## install Chromium for the tests of the report, where apt may
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(APT) update && \
	    $(APT) install -y --no-install-recommends chromium >/dev/null; } || \
	  echo "There is no Chromium and apt may not install it here; the browser tests will be skipped."

lowest:  ## run the fast tests with the lowest versions that pyproject.toml promises; KEEP=torch leaves torch as it is
	@$(PYTHON) -m venv --clear build/lowest
	@$(PYTHON) tests/lowest.py $(KEEP) > build/lowest.txt
	@build/lowest/bin/python -m pip install -qq --disable-pip-version-check -c build/lowest.txt -e '.[train,data,report,tune,ray,onnx,serve,test]'
	@OMP_NUM_THREADS=1 build/lowest/bin/$(PYTEST)

bench: $(DEV)  ## time certification, and training next to Opacus
	@$(PIP) -e '.[bench]'
	@$(BIN)/python benchmarks/certify.py
	@$(BIN)/python benchmarks/rules.py
	@$(BIN)/python benchmarks/train.py --model lenet5 --device cpu

reproduce: $(DEV)  ## train what the experiments need; needs a GPU and the data
	@$(BIN)/python experiments/reproduce.py

figures: $(DEV)  ## rebuild every figure and table of docs/results.md and docs/real-data.md from the raw results
	@$(BIN)/python experiments/figures.py
	@$(BIN)/python benchmarks/scaling.py --page
	@$(BIN)/python benchmarks/real_page.py

dist: $(DEV)  ## build wheel and sdist, install [all] into an empty environment, run the demo there
	@rm -rf dist build/empty
	@$(BIN)/python -m build --no-isolation --outdir dist
	@$(PYTHON) -m venv build/empty
	@build/empty/bin/python -m pip install -qq -c constraints.txt "$$(ls dist/*.whl)[all]"
	@cd build/empty && bin/mithridate demo

format: $(DEV)  ## fix what ruff can fix
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean:  ## remove .venv, builds and caches
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list these targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

$(BIN)/python:
	@$(or $(PYTHON),false) -c '$(IS_NEW)' 2>/dev/null || \
	  { echo "mithridate needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(TRAIN): $(PINS) | $(BIN)/python
	@echo "Installing mithridate with torch into $(VENV)"
	@$(PIP) -e '.[train]'
	@touch $@

$(DEV): $(PINS) | $(BIN)/python
	@echo "Installing mithridate with torch and its test, lint and documentation tools into $(VENV)"
	@$(PIP) -e '.[train,data,report,ray,tune,vision,text,serve,evidence,test,lint,docs]'
	@touch $(TRAIN) $@
