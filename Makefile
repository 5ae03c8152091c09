# One door: `make test` is what .ci/run calls. Everything lives in .venv and .ragbandit, both ignored by git.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE ?= 1

.PHONY: install test lint demo bench bench-publish bench-strategies docs clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[models,postgres,elasticsearch,vw,openai,plots,parquet,documents,faiss,families,crud,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python obp==0.5.7 \
		|| echo 'obp cannot be installed here: the tests that ask it skip, its recorded values stay'
	touch $(STAMP)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest tests/acceptance tests/integration tests/unit -m "not slow and not gpu" \
		-n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# POLICY=NAME: another policy; STRATEGIES=all or NAME,NAME...: the arms side by side instead, EACH=N questions of a kind
demo: install
ifdef STRATEGIES
	$(BIN)/python -m examples.handbook.strategies --strategies $(STRATEGIES) $(if $(EACH),--each $(EACH))
else
	$(BIN)/python -m examples.handbook.demo $(if $(POLICY),--policy $(POLICY))
endif

bench: install
	$(BIN)/python -m benchmarks

bench-publish: install
	$(BIN)/python -m benchmarks.publish

bench-strategies: install
	$(BIN)/python -m benchmarks.strategies --concurrency 8 --publish

# The reference pages of settings and HTTP, from the code; a test fails where they are not up to date.
docs: install
	$(BIN)/python -m docs.generate

clean:
	rm -rf $(VENV) .ragbandit
