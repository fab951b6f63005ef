# Everything a person does with this project, by name. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check bench docs protocol tables format clean

help: ## List what can be done
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
		while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

# One stamp per set of packages: a target installs what it needs once, and again when pyproject.toml changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Trunkline needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/pip install --quiet --editable '.[test,bench]'
	@touch $@

$(VENV)/.check: $(VENV)/.test
	$(BIN)/pip install --quiet --editable '.[check]'
	@touch $@

demo: $(VENV)/.core ## See the bus at work: runs by itself, needs nothing, ends by itself
	@$(BIN)/python -m examples.demo

test: $(VENV)/.test ## Run all tests
	$(BIN)/python -m pytest -m 'not long'

test-long: $(VENV)/.test ## Run the tests that take minutes, too
	$(BIN)/python -m pytest

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

docs: $(VENV)/.test ## Check that every code block of README and docs runs
	$(BIN)/python -m pytest -q tests/test_docs.py

protocol: $(VENV)/.core ## Write docs/protocol from the types that are the protocol
	$(BIN)/python -m trunkline.wire.document docs/protocol

tables: $(VENV)/.test ## Write docs/tables.md from the code that makes the tables
	$(BIN)/python -m trunkline.spark.document docs/tables.md

clean: ## Remove the environment and what tools left behind
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
