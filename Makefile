# Everything that users and CI run. Each target installs what it needs on a machine with Python, make and a compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# --prefer-binary installs a wheel instead of compiling a newer source distribution.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary -c constraints.txt

.PHONY: demo quick test lint format docs wheel-test clean

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

demo: $(READY)          ## train on the embedded digits data: progress, a table and a figure in runs/demo
	$(BIN)/depositum run examples/demo.toml --out runs/demo

lint: $(READY)          ## linter, formatter, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quick: $(READY)         ## all tests but those marked slow, for the inner loop
	$(BIN)/python -m pytest -n auto -m "not slow"

test: lint              ## linter, formatter, types, all tests
	$(BIN)/python -m pytest -n auto

docs: $(READY)          ## the documentation site in build/site, from docs/; warnings and dead links are errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	$(BIN)/python docs/_tools/links.py build/site

wheel-test:             ## the built wheel in an empty environment outside of the repository: import, training, command, files
	.ci/wheel-test $(PYTHON)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
