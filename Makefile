# Everything here works on a bare clone: the first target that needs it makes .venv and installs the pinned set into it.
PYTHON  ?= python3
VENV    ?= .venv
PINS    ?= -c constraints.txt
WORKERS ?= 2
bin     := $(VENV)/bin
stamp   := $(VENV)/.installed

# Two test workers on two cores: a library that starts a thread per core only makes both slower.
export OMP_NUM_THREADS ?= 1
export TVM_NUM_THREADS ?= 1
# Tests start many processes: where an image forbids to keep bytecode, each would make the compiler's anew.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(bin):$(PATH)

.PHONY: help setup demo test lint types unit golden correctness clean

help:
	@echo "make demo    compile a BERT-base for the CPU and show what was found, proved, generated and checked"
	@echo "make test    ruff, mypy and the CPU test suite"
	@echo "make correctness  judge every correctness program through the tile interpreter (long)"
	@echo "make golden  rewrite the golden files; review the diff before committing it"

setup: $(stamp)

$(stamp): pyproject.toml setup.py constraints.txt scripts/toolchain.sh
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "RedFuser needs Python 3.10 or newer; set PYTHON=")'
	test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned set into $(VENV) (a few minutes the first time)"
	$(bin)/python -m pip install -qq $(PINS) torch==2.13.0 --editable '.[dev]'
	sh scripts/toolchain.sh $(bin)
	touch $@

demo: $(stamp)
	$(bin)/python -m redfuser.demo

test: lint types unit

lint: $(stamp)
	$(bin)/ruff check .

types: $(stamp)
	$(bin)/mypy

unit: $(stamp)
	$(bin)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu" -q

golden: $(stamp)
	$(bin)/python -m pytest -m "not gpu" -q --update-golden tests

correctness: $(stamp)
	$(bin)/python -m redfuser bench correctness --interpret --jobs $(WORKERS)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
