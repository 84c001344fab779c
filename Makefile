# Every target sets `.venv` up first; after the first time that takes a moment.
#   make run [PROMPT="..."] [MODEL=...] [DEVICE=auto|simt|cuda] [TOKENS=300]
#   make lab | test | lint | notebooks-test | gpu-test | bench | format | pins | clean
#   make widgets   (needs Node.js and npm)
#   make fuzz [FUZZ_COUNT=10000] [FUZZ_SEED=...]

PYTHON ?= python3
PROMPT ?= Once upon a time, there was a little fox named Tom.
MODEL ?= storyteller
DEVICE ?= auto
TOKENS ?= 300
NOTEBOOKS ?= notebooks
# Test files, or notebooks, at a time: two keep two cores busy, and need 4 GB of memory.
JOBS ?= 2
# Where tests that use a browser leave what they saw.
SCREENSHOTS ?= build/screenshots
FUZZ_COUNT ?= 10000
FUZZ_SEED ?= $(shell date +%s)
export PROMPT

BIN := .venv/bin
PY := $(BIN)/python
# JupyterLab refuses to start as root, which is the usual user inside a container.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := run
.PHONY: run lab test lint unit-test notebooks-test gpu-test fuzz bench format pins widgets clean set-up set-up-test

set-up:
	@$(PYTHON) sovereign_lab/provision.py

set-up-test:
	@$(PYTHON) sovereign_lab/provision.py --test

run: set-up
	@$(PY) -m sovereign_lab models pull "$(MODEL)"
	@$(PY) -m sovereign_lab run --model "$(MODEL)" --device "$(DEVICE)" --max-tokens "$(TOKENS)" -- "$$PROMPT"

lab: set-up
	@$(PY) -m jupyterlab $(ALLOW_ROOT) notebooks

test: lint unit-test notebooks-test

lint: set-up-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

unit-test: set-up-test
	SOVEREIGN_SCREENSHOTS=$(SCREENSHOTS) $(PY) -m pytest -n $(JOBS) --dist worksteal tests

# Notebooks run on the SIMT device everywhere, since what they print depends on the device. nbval
# marks the cells after a dead kernel as expected failures; --runxfail makes them plain failures.
notebooks-test: set-up-test
	SOVEREIGN_LEDGER=$$(mktemp -d)/ledger.sqlite3 SOVEREIGN_DEVICE=simt PLOTLY_RENDERER=plotly_mimetype \
	    $(PY) -m pytest -n $(JOBS) --dist loadfile \
	    --nbval --nbval-current-env --runxfail \
	    --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 180 $(NOTEBOOKS)

gpu-test: set-up-test
	$(PY) -m pytest tests -m gpu --require-gpu

# Many more damaged model files than `make test` tries, from a new seed, which is printed.
fuzz: set-up-test
	SOVEREIGN_FUZZ_COUNT=$(FUZZ_COUNT) SOVEREIGN_FUZZ_SEED=$(FUZZ_SEED) \
	    $(PY) -m pytest -q -s tests/models/test_fuzz_gguf.py

bench: set-up
	@$(PY) -m sovereign_lab.measure.bench
	@$(PY) -m sovereign_lab.notebook.browser.bench

format: set-up-test
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# Renews constraints.txt. Each CUDA generation is resolved by itself: together they conflict.
pins: set-up
	@$(PY) -m pip install --quiet uv
	@compile() { $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-annotate \
	    --no-header --upgrade "$$@" pyproject.toml; }; \
	set -e; new=$$(mktemp); \
	compile --extra test --extra cpu-compiler --extra hub --extra peer >$$new; \
	compile --extra cuda12 >>$$new; \
	compile --extra cuda13 --extra static >>$$new; \
	{ sed -n '/^#/p' constraints.txt; grep -v '^cuda-toolkit==' $$new | LC_ALL=C sort -u; } >constraints.new; \
	mv constraints.new constraints.txt; rm $$new; git diff --stat constraints.txt

# The page of the kernel workbench, from its sources and the versions that its lock file names. The result is committed,
# so that nobody else needs Node.js.
widgets:
	cd sovereign_lab/notebook/workbench/js && npm ci --ignore-scripts && node build.mjs

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
