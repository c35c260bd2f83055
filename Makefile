# make demo   installs whmc into its own virtual environment and runs the demonstration
# make test   the same, then lint, types and tests (under 15 minutes on two cores)
# Another interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv-$(notdir $(PYTHON))
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint bench clean

demo: $(VENV)/demo.done
	$(BIN)/whmc demo

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(VENV)/all.done
	$(BIN)/pytest -n 2 -m slow

lint: $(VENV)/all.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/all.done
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/known_modes.py
	$(BIN)/python benchmarks/unknown_modes.py
	$(BIN)/python benchmarks/discovery.py
	$(BIN)/python benchmarks/sensor.py

$(VENV)/demo.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[plots]"
	touch $@

$(VENV)/all.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[all]"
	touch $@

clean:
	rm -rf .venv-* build dist .mypy_cache .ruff_cache
