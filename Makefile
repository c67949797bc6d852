# make train: the whole example, from nothing.   make test: everything that must hold.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install train test test-servers servers fuzz lint benchmark reference docs clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

train: install
	$(BIN)/noback train

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest
	$(MAKE) test-servers

# Real inference servers on this machine's CPU, in environments of their own. One engine after the other: memory.
servers:
	PYTHON=$(PYTHON) tests/servers/install.sh sglang
	PYTHON=$(PYTHON) tests/servers/install.sh vllm

test-servers: install servers
	$(BIN)/pytest tests/servers -m server --numprocesses=0

# The long hostile suite: make fuzz SEED=2 COUNT=1000000
SEED ?= 1
COUNT ?= 100000
fuzz: install
	$(BIN)/python -m tests.hostile.fuzz --seed $(SEED) --journals $(COUNT)

benchmark: install
	$(BIN)/python benchmarks/cpu.py

reference: install
	$(BIN)/python docs/reference.py

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: reference $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site
