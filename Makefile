# make demo   installs whmc into its own virtual environment and runs the demonstration
# make test   the same, then lint, types and tests (under 15 minutes on two cores)
# make test-models   users' own models: bounds, symmetries, NumPyro, PyMC, Stan (needs a C++ compiler), NumPy, BlackJAX
# make test-paper   whmc.paper: the printed algorithms and experiments
# make test-browser   the report in headless Chromium, which has to be installed
# Another interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv-$(notdir $(PYTHON))
BIN := $(VENV)/bin

.PHONY: demo test test-models test-paper test-slow test-browser lint bench clean

demo: $(VENV)/demo.done
	$(BIN)/whmc demo

test: lint
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not browser and not models and not paper"

test-models: $(VENV)/all.done
	$(BIN)/pytest -n 2 --dist loadgroup -m "models and not slow"

test-paper: $(VENV)/all.done
	$(BIN)/pytest -n 2 --dist loadgroup -m "paper and not slow"

test-slow: $(VENV)/all.done
	$(BIN)/pytest -n 2 --dist loadgroup -m slow

test-browser: $(VENV)/all.done
	@command -v chromium > /dev/null || { echo "no chromium found: apt-get install chromium" >&2; exit 1; }
	$(BIN)/pytest tests/browser

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
	$(BIN)/python benchmarks/labelling.py
	$(BIN)/python benchmarks/blackbox.py
	$(BIN)/python benchmarks/hierarchical.py
	$(BIN)/python benchmarks/store.py

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
