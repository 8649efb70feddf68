# Front door. Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# What users need is a quarter of what developers need; where the latter is there, it serves both.
USERS := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.users)
# Some environments forbid bytecode; without it every program starts twice as slowly.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-slow test-network test-lowest test-ray ray proxies fuzz mutants chaos check format bench picture clean wheels test-wheel test-compiled

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

setup: $(STAMP) ## make .venv with everything for users and developers

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./papers
	touch $@

$(VENV)/.users: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

demo: $(if $(REAL),$(STAMP),$(USERS)) ## serve the example models under bursty load and print the report (two minutes); make demo REAL=1: models of others, beside their packages' code (some minutes)
	$(BIN)/$(if $(REAL),python -m bench real_pictures real_video --quick || test $$? = 1,slacktide demo)

serve: $(USERS) ## make the example models and serve them
	$(BIN)/slacktide models make .cache/example-models
	$(BIN)/slacktide serve .cache/example-models

# Two at a time, each file whole: what its tests share is made once.
SIDE_BY_SIDE := --numprocesses 2 --dist loadfile --no-loadscope-reorder
test: setup ## run the tests (six minutes on two cores)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not network" --junitxml .cache/tests.xml

test-slow: setup ## run the tests that take more than about three seconds
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "slow and not network" --junitxml .cache/slow-tests.xml

test-network: setup ## run the tests that need a package index: real models, perf_analyzer (two minutes)
	$(BIN)/python -m pytest -m network

LOWEST := .cache/lowest
test-lowest: ## run the tests with the oldest dependencies that pyproject.toml allows (half an hour)
	$(PYTHON) -m venv $(LOWEST)/uv
	$(LOWEST)/uv/bin/python -m pip install --quiet uv
	bash tests/lowest.sh $(LOWEST)

RAY := .cache/ray
ray: $(RAY)/.stamp ## make an environment with Ray for test-ray (600 MB)
$(RAY)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]' hypothesis pytest pytest-timeout
	touch $@

test-ray: ray ## run the tests of pools on Ray (two minutes)
	timeout 600 $(RAY)/bin/python -m pytest -W default -m ray tests/ray_pools

# Tests skip what is not there, with a line that names this target.
proxies: ## install HAProxy, nghttpx and h2load for the tests that use them (Debian, Ubuntu; as root or by sudo)
	for tool in "haproxy" "nghttpx" "h2load"; do command -v $$tool >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then \
	  as_root=$$(test "$$(id -u)" = 0 || echo sudo -n) && $$as_root apt-get update --quiet && \
	  $$as_root apt-get install --yes --quiet --no-install-recommends haproxy nghttp2-proxy nghttp2-client; \
	fi

fuzz: setup ## damage what every parser reads, FUZZ_SECONDS each (60), and try 300 examples of every property; some: make fuzz FUZZ="http yaml --seed 7"
	$(BIN)/python tests/fuzz $(FUZZ)
	$(if $(FUZZ),,$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "hypothesis and not network" --hypothesis-profile=thorough)

check: setup ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: setup ## put faults into the core and see that tests notice (20 minutes at most); some: make mutants MUTANTS="--area engine"
	$(BIN)/python tests/mutation $(MUTANTS)

chaos: setup ## kills, freezes, floods and a full disk at once, then the books; make chaos CHAOS="--minutes 5 --seed 7"
	$(BIN)/python tests/chaos $(CHAOS)

bench: setup ## measure the figures of bench/README.md; some: make bench BENCH="overhead --quick"
	$(BIN)/python -m bench $(BENCH)

picture: setup ## draw the picture of the README (a minute)
	$(BIN)/python examples/picture.py

WHEELS := .cache/wheels
wheels: setup ## build the compiled wheel for this Python and the pure one; install and try each
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	$(BIN)/python -m build --wheel --outdir $(WHEELS)/pure .
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m build --wheel --outdir $(WHEELS)/compiled .
	for kind in pure compiled; do \
	  $(PYTHON) -m venv $(WHEELS)/env-$$kind && \
	  $(WHEELS)/env-$$kind/bin/python -m pip install --quiet --constraint constraints.txt $(WHEELS)/$$kind/*.whl && \
	  (cd $(WHEELS) && env-$$kind/bin/python -P $(CURDIR)/tests/wheels/smoke.py $$kind) || exit 1; \
	done
	$(WHEELS)/env-compiled/bin/python tests/wheels/choice.py $(WHEELS)/*/*.whl

UNPATCHED := -m "not network and not replaces_parts"
INSTALLED := $(addprefix tests/,domain engine planning profiles recording runtime scheduling lab/simulation wheels \
  lab/workloads testing docs/test_extending.py end_to_end/test_stock_clients.py frontends/contract frontends/grpc frontends/http/test_http_inference.py)
test-wheel: wheels ## run the tests of the pure packages and of stock clients against the compiled wheel
	$(WHEELS)/env-compiled/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo $(WHEELS)/compiled/*.whl)[dev]" ./papers
	$(WHEELS)/env-compiled/bin/python -m pytest $(SIDE_BY_SIDE) $(UNPATCHED) $(INSTALLED)

COMPILED := .cache/compiled
test-compiled: setup ## compile, then run all tests against that; some: make test-compiled TESTS=tests/engine
	$(BIN)/python hatch_build.py $(COMPILED)
	PYTHONPATH=$(CURDIR)/$(COMPILED)/package $(BIN)/python -m pytest $(UNPATCHED) $(TESTS)

clean: ## remove what the other targets made
	rm -rf $(VENV) .cache bench/.peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find bench papers src tests -name __pycache__ -prune -exec rm -rf {} +
