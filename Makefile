# Every target sets up its own virtual environment first; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The version that development and CI use; pyproject.toml has the range that users may have (make test-versions).
TORCH ?= 2.11.*

.PHONY: help setup test test-slurm chaos lint format fuzz audit test-versions bench screenshots wheel clean
help:  ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## a virtual environment with sortk and all it needs, in .venv

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[cluster,corpora,dev,export]' 'torch==$(TORCH)' 'torchaudio==$(TORCH)'
	touch $@

# Three processes for two cores, because some tests wait for processes of their own; one OpenMP thread each. The tests of
# a file share a process, and so its fixtures.
# Bytecode of the tests is kept, also where the environment says otherwise: to make it takes each process ten seconds.
test: setup  ## all tests
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slurm: setup  ## tests on a real Slurm, which is started for them on this machine
	bin/test-cluster install
	bin/test-cluster run 2 $(BIN)/pytest tests/slurm

chaos: setup  ## try to break sortk, and write docs/reliability.md; ARGS: such as --seed 1 --kills 84
	$(BIN)/python tests/chaos/run.py --publish $(ARGS)

lint: setup  ## ruff, format check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: setup  ## damaged files by the million, and docs/reliability.md; e.g. make fuzz INPUTS=100000 SEED=1
	$(BIN)/python tests/fuzz/run.py --publish --inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),0)

audit: setup  ## known holes in the packages that sortk needs, as far as the advisories can be reached
	$(BIN)/pip install --quiet --editable '.[audit]'
	$(BIN)/pip-audit --strict --skip-editable

test-versions:  ## the quick tests with the oldest and with the newest packages that pyproject.toml allows
	bin/test-versions lowest
	bin/test-versions newest

bench: setup  ## benchmarks; they print ratios
	@for file in tests/bench/bench_*.py; do $(BIN)/python $$file || exit 1; done

# CORPORA=/data: where corpora are, each in a folder of its name; ARGS: any more options of the command.
OPTIONS = --nj $$(nproc) $(if $(CORPORA),--set prepare.corpora_dir=$(CORPORA)) $(ARGS)

recipe-%: setup  ## run a recipe, e.g. make recipe-mini, make recipe-ami CORPORA=/data
	$(BIN)/sortk run --recipe $* $(OPTIONS)

tables-%: setup  ## measure the paper's tables on a recipe, into its RESULTS.md
	$(BIN)/sortk tables --recipe $* $(OPTIONS)

screenshots: setup  ## pictures of the README: pages of the demo, made with the shipped model
	@command -v chromium > /dev/null || apt-get install --yes --quiet --no-install-recommends chromium
	$(BIN)/python tests/report/screenshots.py docs/pictures

wheel: setup  ## a wheel in dist/, with the recipes and the demo: pip install dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation

clean:  ## remove what was built; experiments stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
