# `make run` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test lint browser bench clean

run: $(INSTALLED)
	$(BIN)/fedwild run

test: $(INSTALLED) lint browser
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check fedwild tests benchmarks examples
	$(BIN)/ruff format --check fedwild tests benchmarks examples
	$(BIN)/mypy

# The report is looked at in a real browser. Where there is none and none can be had, those tests are skipped.
browser:
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && echo "installing chromium ..." && \
		apt-get update -qq > /dev/null 2>&1 && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null 2>&1; \
	} || echo "chromium is not installed: the report is not looked at in a browser."

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
