# Every target sets up what it needs in .venv; only Python 3.10+, pip and make are taken for granted.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test soak test-matrix test-gpu-compile test-gpu gpu-report gpu-figures lint docs bench clean

demo: $(VENV)/.core
	$(BIN)/convt3d demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Drawn cases, races and faults, for SECONDS or until there were CASES; the same SEED draws the same cases.
# Exit code 1: something was found.
SECONDS ?= 600
soak: $(VENV)/.test
	$(BIN)/python tools/soak.py $(if $(CASES),--cases $(CASES),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

# The wheel with every Python found here, and with the lowest versions promised; writes docs/versions.md.
# Some tests of each layer; ARGS=tests runs all, ARGS="--only 3.10-lowest tests/front" others in one row, ...
test-matrix: $(BIN)/python
	$(BIN)/python tools/test_matrix.py $(ARGS)

# Every GPU kernel compiled for sm_80, sm_90 and sm_100, and every exported file judged; needs no GPU. Nearly two hours.
test-gpu-compile: $(VENV)/.gpu
	$(BIN)/python -m pytest -n 2 -m exhaustive

# On a machine with a GPU: the kernels' results there, then their times, in gpu_here.json and gpu_here.md. Elsewhere it
# says that it does nothing.
test-gpu: $(VENV)/.gpu
	$(BIN)/python tools/gpu_here.py

# Writes docs/gpu_report.md.
gpu-report: $(VENV)/.gpu
	$(BIN)/python tools/gpu_report.py

# Writes tests/gpu_proof/figures.json, with which `make test` compares a plan; says what became worse.
gpu-figures: $(VENV)/.gpu
	$(BIN)/python tools/gpu_figures.py

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/ci.yml

# The site, in site/; a link that leads nowhere is an error.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

# ARGS=--quick, ARGS="--suite models --peer openvino", ...
bench: $(VENV)/.bench
	$(BIN)/convt3d bench $(ARGS)

clean:
	rm -rf $(VENV) build dist site

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "convt3d needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.gpu: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --editable '.[test,gpu]'
	touch $@

$(VENV)/.test $(VENV)/.dev $(VENV)/.docs $(VENV)/.bench: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
