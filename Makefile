# Every target sets up what it needs in .venv; only Python 3.10+, pip and make are taken for granted.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/.core
	$(BIN)/convt3d demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# ARGS=--quick, ARGS="--suite models --peer openvino", ...
bench: $(VENV)/.bench
	$(BIN)/convt3d bench $(ARGS)

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "convt3d needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test $(VENV)/.dev $(VENV)/.bench: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
