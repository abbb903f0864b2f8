# Each target makes its own environment in .venv: on a fresh machine the first one takes a minute.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8000
# What `make run` serves with: worker (torch, a small model) or simulated (no torch, no model).
ENGINE ?= worker
VENV := .venv
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-run
WORKER_STAMP := $(VENV)/.installed-worker
BIN := $(VENV)/bin

.PHONY: help run test check bench redis

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

run: $(if $(filter simulated,$(ENGINE)),$(RUN_STAMP),$(WORKER_STAMP)) ## Gateway and two workers, with a chat to watch (PORT=8000; ENGINE=simulated needs no torch)
	$(BIN)/prefixgate demo --port $(PORT) --engine $(ENGINE)

test: $(STAMP) redis ## Run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: $(STAMP) ## Lint, formatting, types and the four floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python -m tests.bench $(ARGS)

# What it takes to run is a fraction of what it takes to test.
$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "prefixgate needs Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(WORKER_STAMP): $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[worker]'
	@touch $@

$(STAMP): $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Tests of the stores talk to a real Redis server. Where it cannot be installed, this says how, and goes on.
redis:
	@command -v redis-server >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing redis-server for the tests"; \
		{ apt-get install -y -qq redis-server || { apt-get update -qq && apt-get install -y -qq redis-server; }; } >/dev/null \
			|| echo "redis-server could not be installed; tests that need it will say so" >&2; \
	else \
		echo "redis-server is missing; tests that need it will say so (sudo apt-get install redis-server)" >&2; \
	fi
