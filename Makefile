# Every target builds .venv when it is missing or older than the lock, and reuses it otherwise.
PYTHON ?= python3.11
# Asked only when no CPU build of torch is at hand: PyTorch's own wheel index.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := .venv/bin
STAMP := .venv/.complete

.PHONY: sudoku test check setup

sudoku: setup
	$(BIN)/python experiments/sudoku_pbt.py --population 4

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy pbt_agents experiments
	$(BIN)/lint-imports --config setup.cfg

setup: $(STAMP)

$(STAMP): requirements/cpu.txt requirements/torch-cpu.txt setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "This lock is for Python 3.11, and $(PYTHON) is another. Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-deps -r requirements/torch-cpu.txt || \
		$(BIN)/pip install --quiet --no-deps -r requirements/torch-cpu.txt --index-url $(TORCH_INDEX)
	$(BIN)/pip install --quiet --no-deps -r requirements/cpu.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pbt_agents.preflight
	touch $@
