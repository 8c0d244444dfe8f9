# The README's two commands, and commands for development. Needs Python ≥ 3.11 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint deploy/constraints.txt -e clients/python -e
PROJECTS := pyproject.toml clients/python/pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help run test check format client-types docs docs-serve bench test-fault test-fuzz test-matrix test-system test-browser test-deploy test-scale audit sbom clean

# Tests start a hundred programs, which should reuse compiled modules
unexport PYTHONDONTWRITEBYTECODE

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/' | column -t -s:

run: $(VENV)/.serve  ## Install, serve on port 8000 (GRAMOPHONE_PORT); in an empty registry, train the default models meanwhile
	$(BIN)/gramophone quickstart --if-empty --serve

test: $(VENV)/.test  ## Install the test dependencies and run the tests in up to four processes
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev  ## Check format, lint, types and layers; the first step of CI
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file clients/python/pyproject.toml
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

client-types: $(VENV)/.test  ## Regenerate the Python client's reply types from the OpenAPI document
	$(BIN)/python -m clients.python.generate_types

docs docs-serve: export NO_MKDOCS_2_WARNING := 1  # warns of a major version that this project does not use

docs: $(VENV)/.docs  ## Build the documentation into build/docs; dead links and undocumented options are errors
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.docs  ## Serve the documentation on port 8001 with live reload
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

test-fault: $(VENV)/.test  ## Test kills, full disks, damaged files, floods and hangs
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --timeout 600 tests/fault

test-fuzz: $(VENV)/.fuzz  ## Test hostile requests and files; GRAMOPHONE_FUZZ_CASES sets their number
	$(BIN)/python -m pytest -n 2 --dist loadfile --timeout 900 tests/fuzz

test-matrix: $(VENV)/.test  ## Test every endpoint with every family, tokenizer and precision, and with checkpoints of earlier versions
	$(BIN)/python -m pytest -n 2 --dist loadfile --timeout 900 tests/matrix tests/compatibility

test-system: $(VENV)/.test  ## Test the program as a user starts it, and the TypeScript client; needs npm (apt-get install nodejs npm)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder --timeout 600 tests/system

test-browser: $(VENV)/.test  ## Test the playground, autocomplete.js and the documentation in a browser; needs Chromium (apt-get install chromium)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile tests/browser

test-deploy: $(VENV)/.deploy  ## Test image, compose file, Prometheus, Grafana, Kubernetes, stock clients; needs promtool, a JDK, curl, Node, openssl (apt-get install prometheus openjdk-17-jdk-headless curl nodejs openssl)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --timeout 900 tests/deploy

test-scale: $(VENV)/.scale  ## Test n-gram estimation with DuckDB and Spark; needs Java (apt-get install openjdk-17-jre-headless)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile tests/scale

audit: $(VENV)/.audit  ## Check the image's libraries for known vulnerabilities; needs a network
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement deploy/requirements.txt

sbom: $(VENV)/.test  ## Regenerate deploy/sbom.cdx.json after a change of deploy/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement deploy/requirements.txt
	$(BIN)/python deploy/sbom.py > deploy/sbom.cdx.json.new && mv deploy/sbom.cdx.json.new deploy/sbom.cdx.json

bench: $(VENV)/.test  ## Run the benchmarks for half an hour; in full with LONG=1, some with ONLY="bench_int8 bench_ngram"
	$(BIN)/python tests/benchmarks/run.py $(if $(LONG),--long) $(if $(ONLY),--only $(ONLY))

clean:  ## Remove the environment and caches, but no registries
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(PROJECTS) | $(VENV)/bin/python
	@echo "Installing into $(VENV): the first time, this takes minutes"
	$(INSTALL) '.[neural,train]'
	touch $@

$(VENV)/.test: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[test]'
	touch $@ $(VENV)/.serve

$(VENV)/.docs: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[docs,neural,train]'
	touch $@ $(VENV)/.serve

$(VENV)/.fuzz: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[fuzz]'
	touch $@ $(VENV)/.test $(VENV)/.serve

$(VENV)/.audit: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[audit,neural,train]'
	touch $@ $(VENV)/.serve

$(VENV)/.deploy: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[deploy]'
	touch $@ $(VENV)/.test $(VENV)/.serve

$(VENV)/.scale: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[test,spark]'
	touch $@ $(VENV)/.test $(VENV)/.serve

$(VENV)/.dev: $(PROJECTS) | $(VENV)/bin/python
	$(INSTALL) '.[dev]'
	touch $@ $(VENV)/.test $(VENV)/.serve
