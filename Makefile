# Every target makes what it needs: a clone and Python 3.11 are enough. Interpreter: `make PYTHON=/path/to/python3.12 …`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
VLLM_VENV ?= .venv-vllm
PYTHON ?=
PYTEST_ARGS ?=
ARGS ?=
BIN := $(VENV)/bin

RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
VLLM_STAMP := $(VLLM_VENV)/.installed-acceptd

.PHONY: help setup demo test test-vllm chaos fuzz load check bench proto docs docs-site screenshots lock audit-dependencies protobuf-range clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(RUN_STAMP) ## the environment: .venv with acceptd[service,lab]

demo: $(RUN_STAMP) ## a real service, four replaying workers, a restart in the middle
	@$(BIN)/acceptd demo $(ARGS)

test: $(DEV_STAMP) ## unit, property, contract and whole-process tests
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS)

test-vllm: $(VLLM_STAMP) $(RUN_STAMP) ## the hook inside real vLLM, on the CPU (downloads about 1 GB the first time)
	@ACCEPTD_SERVICE_PYTHON=$(abspath $(BIN)/python) $(VLLM_VENV)/bin/python -m pytest -q \
	  -o addopts="-ra --strict-markers --strict-config" tests/vllm $(PYTEST_ARGS)

chaos: $(DEV_STAMP) ## 100 faults under 32 replaying workers, then exact counts (as root: with a disk that gets full)
	@CHAOS_FAULTS=$${CHAOS_FAULTS:-100} CHAOS_SEED=$${CHAOS_SEED:-1} $(BIN)/python -m pytest -q tests/chaos $(PYTEST_ARGS)

fuzz: $(DEV_STAMP) ## a million mutated messages for the decoder and the session, a million requests for the API for people
	@FUZZ_INPUTS=$${FUZZ_INPUTS:-1000000} $(BIN)/python -m pytest -q --timeout 14400 tests/property/test_fuzz_messages.py \
	  tests/property/test_fuzz_inspect.py $(PYTEST_ARGS)

check: $(DEV_STAMP) ## format, lint, types, import rules, proto lint, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint
	$(BIN)/python tools/generate_proto.py --check
	$(BIN)/python tools/generate_configuration.py --check
	$(BIN)/python -m tools.generate_dashboards --check
	$(BIN)/python -m tools.generate_benchmarks --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site-check

bench: $(DEV_STAMP) $(VLLM_STAMP) ## every benchmark beside what it is measured against; writes benchmarks/results.json
	@VLLM_VENV=$(abspath $(VLLM_VENV)) $(BIN)/python -m benchmarks

load: $(DEV_STAMP) ## up to 1,000 connected workers, a tenth of them flapping: latency, memory, and what is held back
	@$(BIN)/python -m benchmarks.load --runs 5 --record $(ARGS)

proto: $(DEV_STAMP) ## generates the Python of proto/acceptd/v1 anew
	$(BIN)/python tools/generate_proto.py

docs: $(DEV_STAMP) ## writes the generated parts of docs/ anew
	$(BIN)/python tools/generate_configuration.py
	$(BIN)/python -m tools.generate_dashboards
	$(BIN)/python -m tools.generate_benchmarks

docs-site: $(DEV_STAMP) ## docs/ as a site that can be read from a folder, in site/; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: $(DEV_STAMP) ## draws the pictures of the terminal, the status page and the lab in docs/images anew
	$(BIN)/python tools/make_screenshots.py
	$(BIN)/acceptd replay examples/smollm2-skip3.parquet --plot docs/images/replay
	$(BIN)/acceptd simulate examples/smollm2-skip3.parquet --roofline h200-8b-block --plot docs/images/simulate

lock: $(DEV_STAMP) ## pins what the images are built from, with hashes: requirements-*.lock
	@$(BIN)/python tools/lock_dependencies.py

audit-dependencies: $(DEV_STAMP) ## looks for known holes in what is pinned (asks a public database)
	@$(BIN)/python -m pip install -q pip-audit
	@$(BIN)/python -m pip_audit --require-hashes --disable-pip -r requirements-service.lock -r requirements-lab.lock

protobuf-range: $(RUN_STAMP) ## loads the generated code with the oldest, the middle and the newest protobuf allowed
	$(BIN)/python tools/check_protobuf_range.py

clean: ## removes the environments and everything built
	rm -rf .venv .venv-proto .venv-vllm dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps are older than pyproject.toml whenever it changed; otherwise a repeated run installs nothing.
$(RUN_STAMP): pyproject.toml
	@python=$$(bash tools/find_python.sh $(PYTHON)); \
	  [ -x $(BIN)/python ] || { echo "making $(VENV) with $$python"; "$$python" -m venv $(VENV); }
	@echo "installing acceptd[service,lab] into $(VENV)"
	@$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install -q -e ".[service,lab]"
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo "installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install -q --group dev
	@touch $@

$(VLLM_STAMP): pyproject.toml
	@bash tools/setup_vllm.sh $(VLLM_VENV) "$$(bash tools/find_python.sh $(PYTHON))"
	@touch $@
