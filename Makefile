# Everything a person or CI runs here. Each target sets up what it needs on a machine with only Python, make and a
# compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# --prefer-binary keeps pip from compiling what a wheel is on offer for.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary -c constraints.txt

.PHONY: demo test lint format clean

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

demo: $(READY)          ## train on the embedded digits data: progress, a table, a figure (runs/demo)
	$(BIN)/depositum run examples/demo.toml --out runs/demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint              ## linters, types, tests
	$(BIN)/python -m pytest -n auto

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
