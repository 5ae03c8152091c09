# One door: `make test` is what .ci/run calls. Everything lives in .venv and .ragbandit, both ignored by git.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE ?= 1
# The tests start a hundred processes, and each would compile the checkout anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install test clients test-faults test-browser screenshots test-slow unit quick isa-matrix lint demo handbook-table handbook-curve bench boards docs release-check clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[service,models,postgres,elasticsearch,vw,openai,documents,families,otel,mcp,pgvector,qdrant,docs,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --ignore-requires-python obp==0.5.7 \
		|| echo 'obp cannot be installed here: the tests that ask it skip, its recorded values stay'
	touch $(STAMP)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -b dummy . build/links

# Processes that test: two more than there are cores, since many tests wait; four at most. A file is tested by one of
# them, since its fixtures may be expensive; the tiers begin with the longest, so that none is left waiting at the end.
# One thread of BLAS and of OpenMP in each: threads of many processes on few cores wait for each other.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu" -n $(WORKERS) --maxprocesses 4 --dist loadfile

# The linters run in the background, and their output is printed at the end. One process collects before the tests
# begin, and so compiles what is imported: else each process that tests would compile every file.
test: install
	@nice -n 10 $(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
		$(BIN)/python -m pytest -qq --collect-only tests >/dev/null 2>&1; \
		$(PYTEST) tests/acceptance tests/integration tests/unit --no-loadscope-reorder; tests=$$?; \
		wait $$lint; lint=$$?; cat $(VENV)/lint.log; exit $$((tests || lint))

unit: install
	$(PYTEST) tests/unit -q

# What takes minutes: 20 kills of each process under load, long replays.
test-slow: install
	$(BIN)/python -m pytest tests/acceptance tests/integration tests/unit -m "slow and not gpu" --timeout 900

# Requests made from the OpenAPI document, others each time; a few hundred, always the same, are in `make test`.
REQUESTS ?= 10000
api-fuzz: install
	API_FUZZ=$(REQUESTS) $(BIN)/python -m pytest -s --timeout 7200 tests/integration/api/test_api_properties.py

# Databases, networks, clocks and disks that fail under load.
test-faults: install
	$(BIN)/python -m pytest tests/acceptance/test_faults.py -m faults

# Pages of the dashboard in a real Chromium: apt-get install chromium.
test-browser: install
	$(BIN)/python -m pytest -q -m browser tests/integration/api/ui

# The pictures of README.md and docs/dashboard.md, of a service with made-up traffic.
screenshots: install
	$(BIN)/python -m docs.screenshots

# Unmodified clients of others, each kind in an environment of its own under .venv-clients/, against one live service.
# ONLY="openai langchain": the folders of tests/clients/ with these words.
clients: install
	$(BIN)/python -m tests.clients $(if $(ONLY),--only "$(ONLY)")

# For the hand: what changed since main (or CHANGED_SINCE) is linted, and the unit tests run.
CHANGED_SINCE ?= main
quick: install
	@files=$$( { git diff --name-only --diff-filter=d $(CHANGED_SINCE) -- '*.py'; git ls-files -o --exclude-standard -- '*.py'; } | sort -u ); \
		if [ -n "$$files" ]; then $(BIN)/ruff format --check $$files && $(BIN)/ruff check $$files; fi
	$(MAKE) --no-print-directory unit

# The tests that compute, under every instruction set that this processor has, with one thread and two, and when busy.
# ONLY="AVX2 OpenBLAS": the settings with these words.
isa-matrix: install
	$(BIN)/python -m benchmarks.isa_matrix $(if $(ONLY),--only $(ONLY))

# DETAIL=1: every table; KEEP=1: the service and its pages stay up at the end; POLICY=NAME: another policy; WORKERS=N: answer processes; STRATEGIES=all or NAME,NAME...: the arms side by side instead, EACH=N questions of a kind
demo: install
ifdef STRATEGIES
	$(BIN)/python -m ragbandit.examples.handbook.strategies --strategies $(STRATEGIES) $(if $(EACH),--each $(EACH))
else
	$(BIN)/python -m ragbandit demo $(if $(POLICY),--policy $(POLICY)) $(if $(filter command environment,$(origin WORKERS)),--workers $(WORKERS)) $(if $(KEEP),--keep) $(if $(DETAIL),--detail)
endif

# Every arm of the demo on every question of its handbook, by the default model: half an hour; goes on where it stopped.
handbook-table: install
	$(BIN)/python -m ragbandit.examples.handbook.recorded

# The demo's learning curve on that table, as text and as a page; `make screenshots` makes the picture of it.
handbook-curve: install
	$(BIN)/python -m ragbandit.examples.handbook.learning_curve --report learning-curve.html

bench: install
	$(BIN)/python -m benchmarks

# What policies earn in many worlds, with many labels and with few. BOARD="--seeds 2 --policies mba": other arguments.
boards: install
	$(BIN)/python -m benchmarks.worlds $(BOARD)

# The reference pages of settings, commands and alerts, from the code (a test fails if they are not up to date), and then
# all of docs/ as a site in build/site, with a page of the HTTP interface. A broken link is an error, also in `make lint`.
docs: install
	$(BIN)/python -m docs.generate
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -b html . build/site
	@echo "wrote build/site/docs/index.html"

# Before a release: wheel, sdist, their metadata, the README, licences, version and CHANGELOG, and a run of what is built.
release-check: install
	$(BIN)/python -m tests.release

clean:
	rm -rf $(VENV) .ragbandit build/site
