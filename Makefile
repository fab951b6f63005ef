# Everything a person does with this project, by name. `make help` lists it.
PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of Python processes: without bytecode on disk each of them compiles the library anew.
unexport PYTHONDONTWRITEBYTECODE
# Much of a test is waiting, so there are two workers more than cores. Tests that share a Spark session or a kernel stay
# together in one of them: see tests/conftest.py.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# A worker that crashes ends the run as failed. If it is replaced, the run can wait for ever for the lost tests.
PARALLEL = -n $(WORKERS) --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --durations 15

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-long test-lowest check bench bench-check docs docs-check protocol tables format clean

help: ## List what can be done
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
		while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

# One stamp per set of packages: a target installs what it needs once, and again when pyproject.toml changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Trunkline needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@$(BIN)/python -m examples.demo.install
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/pip install --quiet --editable '.[test,bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.check: $(VENV)/.test
	$(BIN)/pip install --quiet --editable '.[check]'
	@touch $@

demo: $(VENV)/.demo ## See it all at work, up to a report by Spark; with KEEP=1 the shop goes on, with a page
	@$(BIN)/python -m examples.demo $(if $(filter-out 0,$(KEEP)),--keep)

# Collecting the tests is a fifth of its processor time, and each worker collects all of them.
quick: WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
quick: $(VENV)/.test ## Run what takes less than a minute: no Spark, no kernels, few other programs
	$(BIN)/python -m pytest -q $(PARALLEL) -m 'not long and not slow'

test: $(VENV)/.test ## Run all tests but those that take minutes
	$(BIN)/python -m pytest $(PARALLEL) -m 'not long'

test-long: $(VENV)/.test ## Run the tests that take minutes, too
	$(BIN)/python -m pytest $(PARALLEL)
	$(BIN)/python -m benchmarks --check

test-lowest: ## Run all tests with the lowest versions of packages that pyproject.toml allows
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[test,bench]'
	$(LOWEST)/bin/python -m pytest $(PARALLEL) -m 'not long'

check: $(VENV)/.check ## Lint, types, and the rule of who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(VENV)/.check ## Put the code in its usual form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test ## Run every benchmark beside its peers
	$(BIN)/python -m benchmarks --all

bench-check: $(VENV)/.test ## Measure all that is promised: fails if a median is more than a fifth worse
	$(BIN)/python -m benchmarks --check

docs: $(VENV)/.docs ## Build the site in build/site, offline: dead links and warnings are errors
	@$(BIN)/python -m docs_site

docs-check: $(VENV)/.test ## Check that every code block of README and docs runs, and that the tutorial is true
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_site.py tests/test_tutorial.py

protocol: $(VENV)/.core ## Write docs/protocol from the types that are the protocol
	$(BIN)/python -m trunkline.wire.document docs/protocol

tables: $(VENV)/.test ## Write docs/tables.md from the code that makes the tables
	$(BIN)/python -m trunkline.spark.tables.document docs/tables.md

clean: ## Remove the environment and what tools left behind
	rm -rf $(VENV) $(LOWEST) build demo-output .demo-output-* src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
