# Every target works alone in a new clone: it makes the virtual environment first if that is missing or out of date.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# where it is set, each of the many processes that tests and demo start compiles all modules anew
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3 || command -v python)
# every fourth file of test-ci's tests, another quarter each day; all: every one
TURN ?= today
# processes that wait for each other leave cores idle
CI_WORKERS ?= $(shell echo $$(( $$(nproc) + ($$(nproc) + 1) / 2 )))
VENV := .venv
# what `make dist` needs, apart from .venv
RELEASE := build/release
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
ORT := phone/app/vendor/ort
PACKAGES := gaitway har_pipeline models federation edge_agent aggregator_api export phone sim
SOURCES := $(PACKAGES) tests demo deploy $(wildcard benchmarks)

DATA ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
SOAK_ARGS ?=

.PHONY: help setup phone messages check test test-ci test-slow demo bench soak check-aarch64 check-python310 walkthrough lock dist docs screenshots
.DELETE_ON_ERROR:

help:  ## show this list
	@echo "Gaitway. Targets:"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22
	@echo "Variables: PYTHON (3.11 or later, now $(PYTHON)), DATA (folder of recordings for the demo),"
	@echo "           DEMO_ARGS (passed on; --keep-running: look at the pages afterwards; --phone: a phone may join),"
	@echo "           PYTEST_ARGS (passed on), GAITWAY_DATA (folder of recordings for the tests),"
	@echo "           CI_WORKERS (processes of test and test-ci, now $(CI_WORKERS)),"
	@echo "           TURN (of test-ci: today, every fourth file; all)"

setup: $(STAMP)  ## make the virtual environment .venv and install Gaitway into it; make phone where npm is there
	@if command -v npm >/dev/null; then \
		$(MAKE) phone || echo "The phone's client was not made (see above); everything else is there. Once mended: make phone" >&2; \
	else echo "npm is not here, so the phone's client lacks ONNX Runtime; all else works. With it (Debian: apt-get install npm): make phone"; fi

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python found; install Python 3.11 or later, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$("$(PYTHON)" -V); Gaitway needs 3.11 or later: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { echo "Could not make $(VENV); on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	@# pip would compile 17,000 modules on one core; this takes all, and leaves out others' tests, which nobody imports
	@$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(VENV)/lib >/dev/null 2>&1 || true # some are no Python 3.11
	@touch $@

# npm writes its hidden lock last, and the copy that is looked at is made last: whoever was killed begins where it was.
phone: $(ORT)/ort.wasm.min.mjs  ## npm's packages for the phone's client: ONNX Runtime into phone/app/vendor, tsc

phone/node_modules/.package-lock.json: phone/package.json phone/package-lock.json
	@command -v npm >/dev/null || { echo "No npm found; install Node.js 20 or later with npm (Debian: apt-get install nodejs npm), then make phone" >&2; exit 1; }
	npm ci --prefix phone --ignore-scripts --no-audit --no-fund
	@touch $@

$(ORT)/ort.wasm.min.mjs: phone/node_modules/.package-lock.json phone/onnxruntime-web.LICENSE phone/types/ort.wasm.min.d.mts
	@mkdir -p $(ORT)
	install -m 0644 phone/node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.{mjs,wasm} phone/types/ort.wasm.min.d.mts $(ORT)
	install -m 0644 phone/onnxruntime-web.LICENSE $(ORT)/LICENSE
	install -m 0644 phone/node_modules/onnxruntime-web/dist/ort.wasm.min.mjs $@

messages: $(STAMP)  ## the phone's message types and readers, from Python's models (after a change to those)
	$(BIN)/python -m phone.generate

check: $(STAMP)  ## lint, formatting, types (what pre-commit runs); of JavaScript after make phone
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	@if [ -x phone/node_modules/.bin/tsc ] && command -v node >/dev/null; then npm --prefix phone run --silent types && echo "tsc: no issues found"; \
	else echo "Types of JavaScript are not checked: make phone installs tsc"; fi

test: $(STAMP)  ## the tests that take seconds, in about four minutes on two cores
	@# files in their order: live federations, few tests but long, would all come last and leave cores idle
	$(BIN)/python -m pytest -m "not slow and not ci" -n $(CI_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-ci: $(STAMP)  ## what CI runs besides: federations of real processes, kills, learning, compiled steps
	@echo "TURN=$(TURN): today runs every fourth file, another quarter each day; TURN=all runs all."
	$(BIN)/python -m pytest -m "ci and not slow" --turn=$(TURN) -n $(CI_WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-slow: $(STAMP)  ## what takes minutes to hours: two hundred kills, every optimizer compiled, every database
	$(BIN)/python -m pytest -m slow -n 1 $(PYTEST_ARGS)

check-aarch64: $(STAMP)  ## a wheel for 64-bit ARM exists for everything that a device needs (asks pip's index)
	$(BIN)/python deploy/check_aarch64.py

check-python310: $(STAMP)  ## a device without torch on Python 3.10, where one is found: types, tests, a live federation
	$(BIN)/python deploy/check_python310.py $(PYTHON310_ARGS)

demo: $(STAMP)  ## a live federation of four devices; DATA=../shared/data runs it on real recordings
	$(BIN)/python demo/run.py $(if $(DATA),--data "$(DATA)") $(DEMO_ARGS)

lock: $(STAMP)  ## deploy/locks: every package of a server and of a device, with its hashes (asks the package index)
	$(BIN)/python -m pip install --quiet 'uv>=0.8' && $(BIN)/python deploy/lock.py

dist:  ## dist: source archive, wheels, npm package and bills of materials of the commit, checked (URL: the repository's)
	@test -n "$(PYTHON)" || { echo "No Python found; install Python 3.11 or later" >&2; exit 1; }
	@test -x $(RELEASE)/bin/python || "$(PYTHON)" -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet 'setuptools>=77' 'twine>=6' 'cyclonedx-bom>=7'
	$(RELEASE)/bin/python deploy/distribution.py --out dist $(if $(URL),--url "$(URL)")
	$(RELEASE)/bin/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(RELEASE)/bin/python deploy/sbom.py --out dist/sbom

docs: $(STAMP)  ## build/site: the documents as a site that needs no network, with the Python reference; checks every link
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]' && $(BIN)/python deploy/document_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@# not --quiet, which would silence the warnings by which --strict fails
	@echo "Open build/site/index.html"

screenshots: $(STAMP)  ## docs/images, and every page at two sizes in build/pages, by the pages' tests (needs Chromium; ten minutes)
	GAITWAY_SCREENSHOTS=docs/images GAITWAY_PAGES=build/pages $(BIN)/python -m pytest -m "" -n 0 \
		tests/repository/test_tutorial.py tests/aggregator_api/web/test_screenshots.py tests/edge_agent/page/test_browser.py \
		tests/phone/test_page.py

walkthrough: $(STAMP)  ## docs/operations.md from an empty Debian to the first device, in namespaces (needs root)
	$(BIN)/python deploy/walkthrough.py

bench: $(STAMP)  ## run the benchmarks
	@shopt -s nullglob; found=(benchmarks/bench_*.py); \
	if [ $${#found[@]} -eq 0 ]; then echo "There are no benchmarks yet: benchmarks/bench_*.py is empty."; exit 0; fi; \
	for file in "$${found[@]}"; do echo "== $$file"; $(BIN)/python "$$file"; done

soak: $(STAMP)  ## an hour of ordinary work on SQLite and PostgreSQL, after which nothing may have grown (SOAK_ARGS)
	$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)
