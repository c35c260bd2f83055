# make demo   installs whmc into its own virtual environment and runs the demonstration
# make test   lint, types, and the tests of every change (at most 8 minutes on two cores)
# make test-models   users' own models: bounds, symmetries, NumPyro, PyMC, Stan (needs a C++ compiler), NumPy, BlackJAX
# make test-paper   whmc.paper: the printed algorithms and experiments
# make test-browser   the report in headless Chromium, which has to be installed
# make test-exactness   every kernel on every target and with every kind of chart: the invariance tests
# make test-as-users   those of them that are compiled as users' runs are; all other tests compile more quickly
# make test-ci   all else that must hold besides `make test`: exactness, models, paper, browser, all marked `ci`
# make test-slow   what takes longer than CI may
# make bench   the benchmarks; with POSTERIORDB=folder also those of a local copy of posteriordb
# make benchmarks/sensor.py   one of them
# Another interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv-$(notdir $(PYTHON))
BIN := $(VENV)/bin

.PHONY: demo test test-models test-paper test-browser test-exactness test-as-users test-ci test-slow chromium lint bench clean

demo: $(VENV)/demo.done
	$(BIN)/whmc demo

PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

test: lint
	$(PYTEST) -m "not ci and not as_users and not slow and not models and not paper and not browser"

test-models: $(VENV)/all.done
	$(PYTEST) -m "models and not slow"

test-paper: $(VENV)/all.done
	$(PYTEST) -m "paper and not slow"

test-browser: $(VENV)/all.done chromium
	$(PYTEST) -m "browser and not slow"

test-exactness: test-as-users
	$(PYTEST) -m "ci and not slow" tests/test_invariance.py

test-as-users: $(VENV)/all.done
	XLA_FLAGS="$(XLA_FLAGS)" $(PYTEST) -m as_users

test-ci: $(VENV)/all.done chromium
	$(PYTEST) -m "(ci or models or paper or browser) and not slow and not as_users" --durations 20

test-slow: $(VENV)/all.done
	$(PYTEST) -m slow

chromium:
	@command -v chromium > /dev/null || { echo "no chromium found: apt-get install chromium" >&2; exit 1; }

lint: $(VENV)/all.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# what promises seconds runs alone; the others run in two rows, each on a core of its own: without that, threads of both
# get into each other's way, and a run takes five times as long. All run, whatever fails
TIMED := $(addprefix benchmarks/, startup.py compile_block.py overhead.py cores.py sensor.py blackbox.py store.py \
  three_ways.py)
FIRST := $(addprefix benchmarks/, known_modes.py shapes.py labelling.py no_gradient.py)
SECOND := $(addprefix benchmarks/, unknown_modes.py discovery.py honesty.py one_mode.py same_draws.py)
PINNED := $(if $(shell command -v taskset),taskset -c)

.PHONY: $(TIMED) $(FIRST) $(SECOND)
bench: $(VENV)/all.done
	@$(MAKE) -k $(TIMED); timed=$$?; \
	$(MAKE) -k -O $(FIRST) ON="$(if $(PINNED),$(PINNED) 0)" & \
	$(MAKE) -k -O $(SECOND) ON="$(if $(PINNED),$(PINNED) 1)"; second=$$?; wait $$!; exit $$((timed + second + $$?))
	$(if $(POSTERIORDB),$(BIN)/python benchmarks/posteriordb.py $(POSTERIORDB))

$(TIMED) $(FIRST) $(SECOND): $(VENV)/all.done
	$(ON) $(BIN)/python $@

$(VENV)/demo.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[plots]"
	touch $@

$(VENV)/all.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[all]"
	touch $@

clean:
	rm -rf .venv-* build dist .mypy_cache .pytest_cache .ruff_cache
