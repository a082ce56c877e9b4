# Every target builds .venv when it is missing or older than the lock, and reuses it otherwise.
PYTHON ?= python3.11
# Asked only when no CPU build of torch is at hand: PyTorch's own wheel index.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# Of training, at most, so that `make sudoku` ends within ten minutes on slow cores, too.
MINUTES ?= 6.5

BIN := .venv/bin
# Errors alone: pip warns of every source of packages that is named and not there. It compiles on one core, and so it is done after it.
PIP := $(BIN)/pip install -qq --no-compile
# What no run imports: the rest is compiled when it is imported.
NOT_COMPILED := /tests?/|/transformers/models/
STAMP := .venv/.complete

.PHONY: sudoku test check coverage bench setup

sudoku: setup
	$(BIN)/python experiments/sudoku_pbt.py --population 4 --minutes $(MINUTES)

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg

coverage: setup
	$(BIN)/python -m pytest -m "not slow" --cov --cov-report=term:skip-covered

bench: setup
	$(BIN)/python experiments/bench.py

setup: $(STAMP)

$(STAMP): requirements/cpu.txt requirements/torch-cpu.txt setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "This lock is for Python 3.11, and $(PYTHON) is another. Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@rm -rf .venv
	@echo "[1/6] an environment of its own in .venv (about 5 s)"
	@$(PYTHON) -m venv .venv && date +%s > .venv/.started
	@echo "[2/6] PyTorch, CPU build (190 MB; about 30 s)"
	@$(PIP) --no-deps -r requirements/torch-cpu.txt || { \
		echo "      pip's own sources have no CPU build; taking it from $(TORCH_INDEX)"; \
		$(PIP) --no-deps -r requirements/torch-cpu.txt --index-url $(TORCH_INDEX); }
	@echo "[3/6] the other $$(grep -c '==' requirements/cpu.txt) packages of the lock, vLLM and Ray among them (about 90 s)"
	@$(PIP) --no-deps -r requirements/cpu.txt
	@echo "[4/6] compiling them, on all cores (about 40 s)"
	@$(BIN)/python -m compileall -qq -j 0 -x '$(NOT_COMPILED)' .venv/lib || true
	@echo "[5/6] this project, as an editable package (about 5 s)"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@echo "[6/6] is all of it able to run here?"
	@$(BIN)/python -m pbt_agents.preflight
	@echo "set up in $$(($$(date +%s) - $$(cat .venv/.started))) s"
	@touch $@
