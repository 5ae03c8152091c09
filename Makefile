# `make help` lists the targets. .ci/run calls `make test`. All that is made lies in .venv, .ragbandit and build/, which
# git ignores.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
export HF_HUB_OFFLINE ?= 1
# Python keeps compiled files: tests start many processes, and each would compile the checkout again.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Processes for tests: two more than there are cores, since tests wait a third of the time. Each takes 11 s of a processor
# to collect.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)
# A file is tested by one process, since its fixtures may be expensive. One thread of BLAS and of OpenMP per process:
# more threads on few cores would wait for each other.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu" -n $(WORKERS) --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install quick test unit without lint docs demo test-slow test-faults test-browser api-fuzz clients other-processor isa-matrix release-check screenshots handbook-table handbook-curve bench boards papers clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "%-16s %s\n", $$1, $$2}'

install: $(STAMP) ## .venv with all that the tests need

# The last line compiles what the tests import, once: else the first processes that test would all do it at once.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --no-compile -e '.[service,models,postgres,elasticsearch,vw,openai,documents,families,otel,mcp,docs,dev]'
	touch $(STAMP)
	$(BIN)/python -m pytest -qq --collect-only tests >/dev/null 2>&1 || true

# The demo needs half of that; the first other target installs the rest. The last line compiles what its processes import.
$(DEMO_STAMP): pyproject.toml
	@echo "installing what the demo needs, once: 1.3 GB, mostly PyTorch"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --no-compile -e '.[service,models]'
	touch $(DEMO_STAMP)
	$(BIN)/python -c 'import torch, transformers.models.distilbert.modeling_distilbert, transformers.models.llama.modeling_llama'

# --------------------------------------------------------------------------------------------------- while you work

CHANGED_SINCE ?= main
quick: install ## lint the files that differ from main (or CHANGED_SINCE), run the unit tests
	@files=$$( { git diff --name-only --diff-filter=d $(CHANGED_SINCE) -- '*.py'; git ls-files -o --exclude-standard -- '*.py'; } | sort -u ); \
		if [ -n "$$files" ]; then $(BIN)/ruff format --check $$files && $(BIN)/ruff check $$files; fi
	$(MAKE) --no-print-directory unit

# The linters run in the background, and their output is printed at the end. The longest tests come first, so that no
# process waits for them at the end.
test: install ## before you send a change: lint, types, import rules, all tests except the slow ones
	@nice -n 10 $(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
		$(PYTEST) tests/acceptance tests/integration tests/additions tests/unit --no-loadscope-reorder; tests=$$?; \
		wait $$lint; lint=$$?; cat $(VENV)/lint.log; exit $$((tests || lint))

unit: install ## only the unit tests
	$(PYTEST) tests/unit -q

# OPTIONS="tests/unit -q" runs a part.
without: install ## NAME=vw: the tests of a copy of the tree without an addition (ragbandit/additions)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.without $(NAME) -m "not slow and not gpu" -n $(WORKERS) --maxprocesses 4 --dist loadfile $(OPTIONS)

lint: install ## format, lint, types, import rules, links of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -b dummy . build/links

# A test fails if the pages are not up to date.
docs: install ## write the generated pages, the comments of config.yaml and the blocking client; build the site
	$(BIN)/python -m docs.generate
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -b html . build/site
	@echo "wrote build/site/docs/index.html"

# DETAIL=1 prints every table. KEEP=1 leaves the service and its dashboard running. POLICY=NAME: another policy.
# WORKERS=N: number of answer workers. STRATEGIES=all, or NAME,NAME...: compare the arms instead, with EACH=N questions
# of each kind.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) ## route, answer, rate and learn on an invented handbook
ifdef STRATEGIES
	$(BIN)/python -m ragbandit.examples.handbook.strategies --strategies $(STRATEGIES) $(if $(EACH),--each $(EACH))
else
	$(BIN)/python -m ragbandit demo $(if $(POLICY),--policy $(POLICY)) $(if $(filter command environment,$(origin WORKERS)),--workers $(WORKERS)) $(if $(KEEP),--keep) $(if $(DETAIL),--detail)
endif

# ------------------------------------------------------------------------------------------------------- more tests

test-slow: install ## minutes: each process killed 20 times under load, long replays
	$(BIN)/python -m pytest tests/acceptance tests/integration tests/unit -m "slow and not gpu" --timeout 900

test-faults: install ## databases, networks, clocks and disks that fail under load
	$(BIN)/python -m pytest tests/acceptance/test_faults.py -m faults

test-browser: install ## the dashboard in a real Chromium (apt-get install chromium)
	$(BIN)/python -m pytest -q -m browser tests/additions/dashboard

REQUESTS ?= 10000
api-fuzz: install ## REQUESTS random requests from the OpenAPI document; `make test` sends a few hundred fixed ones
	API_FUZZ=$(REQUESTS) $(BIN)/python -m pytest -s --timeout 7200 tests/integration/api/test_api_properties.py

# Each client has its own environment under .venv-clients/. ONLY="openai langchain" selects folders of tests/clients/.
# Coding agents also need npm and unshare; without them their tests are skipped.
clients: install ## unmodified clients of other projects against one service
	$(BIN)/python -m tests.clients $(if $(ONLY),--only "$(ONLY)")

other-processor: install ## tests that compare two processors: this process as an old one, the other as it is
	env $$($(BIN)/python -m tests.support.other_processor --environment) $(PYTEST) tests/integration tests/unit -m "other_processor and not slow and not gpu"

# ONLY="AVX2 OpenBLAS" selects settings.
isa-matrix: install ## tests that compute, under each instruction set of this processor and one or two threads
	$(BIN)/python -m benchmarks.isa_matrix $(if $(ONLY),--only $(ONLY))

release-check: install ## before a release: wheel, sdist, metadata, licences, and a run of the built package
	$(PIP) -e '.[release]'
	$(BIN)/python -m tests.release

# -------------------------------------------------------------------------------------------- figures and pictures

bench: install ## speed, each figure with its baseline
	$(BIN)/python -m benchmarks

# BOARD="--seeds 2 --policies mba" gives other arguments.
boards: install ## rewards of policies in many worlds, with many labels and with few
	$(BIN)/python -m benchmarks.worlds $(BOARD)

# TABLE="my.jsonl" is another table; PAPERS="--seeds 1 --folds 3" gives further arguments.
papers: install ## the papers' rows of routers on a routing table, hours on a CPU
	$(BIN)/python -m ragbandit evaluate --table $(or $(TABLE),table.jsonl) --total 3000 --answers .ragbandit/papers.jsonl --resume \
		--policy mba_paper,mba,adaptive_rag,multi_label,linucb,vw --param mba_paper.reward=single \
		--param multi_label.learning_rate=1.0e-4 --report papers.html $(PAPERS)

screenshots: install ## pictures of README.md and docs/dashboard.md, of a service with invented traffic
	$(BIN)/python -m docs.screenshots

# An interrupted run continues.
handbook-table: install ## every arm on every question of the demo's handbook, half an hour
	$(BIN)/python -m ragbandit.examples.handbook.recorded

handbook-curve: install ## the demo's learning curve on that table, as text and as a page
	$(BIN)/python -m ragbandit.examples.handbook.learning_curve --report learning-curve.html

clean: ## remove what the other targets have made
	rm -rf $(VENV) .ragbandit build
