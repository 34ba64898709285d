# `make run` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test lint bench clean

run: $(INSTALLED)
	$(BIN)/fedwild run

test: $(INSTALLED) lint
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check fedwild tests benchmarks examples
	$(BIN)/ruff format --check fedwild tests benchmarks examples
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.engine

# torch is installed first and pinned, so that nothing pulls another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,ot,flower,ray,track]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
