# `make run` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := fedwild tests benchmarks examples docs
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

export OMP_NUM_THREADS := 1
# With this variable, each of the many processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without this, Material prints a notice about its end of life and its successor on each build.
export NO_MKDOCS_2_WARNING := 1

.PHONY: run test lint docs coverage bench bounds browser clean

run: $(INSTALLED)
	$(BIN)/fedwild run

test: $(INSTALLED) lint browser
	$(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --num-workers 2

# The site works without a server: open site/index.html.
docs: $(INSTALLED)
	$(BIN)/python -m mkdocs --quiet build --strict --clean

coverage: $(INSTALLED) browser
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.engine

# The report is opened in a real browser. Without one its tests are skipped, but in CI that is a failure.
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && echo "installing chromium ..." && \
		apt-get update -qq > /dev/null 2>&1 && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null 2>&1; \
	} || { echo "chromium could not be installed, so the report cannot be tested in a browser." >&2; [ -z "$$CI" ]; }

# Runs tests with the lowest versions that pyproject.toml allows, in a fresh environment. flwr needs newer ones, so tests
# of real sites are excluded.
bounds:
	$(PYTHON) -m venv --clear build/bounds
	build/bounds/bin/pip install --quiet --constraint constraints-lowest.txt --editable '.[dev,ot,ray,track,plots]'
	build/bounds/bin/python -m pytest tests/core tests/data tests/cli tests/display tests/openset tests/discovery \
		tests/models tests/engines tests/aggregation tests/results/pictures tests/results/test_tracking.py tests/methods/fedpd \
		--ignore tests/engines/test_engines.py

# torch is installed first and pinned, so that nothing pulls another build of it.
$(INSTALLED): pyproject.toml constraints.txt fedwild/core/version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs,plots,ot,flower,ray,track]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* *.egg-info .mypy_cache .ruff_cache .pytest_cache
