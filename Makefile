# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both make .venv first; `make help` lists the rest.

VENV := .venv
BIN := $(VENV)/bin
# Tests and the demo stay on this machine.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Two processes run the tests: many tests wait most of the time. Each starts its own Spark.
LANES := -n 2

.PHONY: help setup demo test test-fast check format bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | column -t -s "$$(printf '\t')"

setup: $(VENV)/.done  ## make .venv with everything, and see that there is a Java

$(VENV)/.done: setup.cfg pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh $(VENV)
	@touch $@

demo: setup  ## six Keras trainings on embedded Spark
	@. scripts/java.sh && $(BIN)/python examples/grid_search.py

test: setup  ## all tests
	@. scripts/java.sh && $(BIN)/python -m pytest $(LANES)

test-fast: setup  ## the tests that need no cluster and no TensorFlow
	@. scripts/java.sh && $(BIN)/python -m pytest $(LANES) -m "not slow"

check: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff put the code in order
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: setup  ## benchmarks; each prints a table and JSON
	@. scripts/java.sh && $(BIN)/python benchmarks/trial_overhead.py
	@. scripts/java.sh && $(BIN)/python benchmarks/gang.py
	@. scripts/java.sh && $(BIN)/python benchmarks/ring.py
	@. scripts/java.sh && $(BIN)/python benchmarks/feed.py
	@. scripts/java.sh && $(BIN)/python benchmarks/parquet.py
	@. scripts/java.sh && $(BIN)/python benchmarks/predict.py
	@. scripts/java.sh && $(BIN)/python benchmarks/pruning.py
	@. scripts/java.sh && $(BIN)/python benchmarks/search.py
	@. scripts/java.sh && $(BIN)/python benchmarks/scale.py
	@. scripts/java.sh && $(BIN)/python benchmarks/clusters.py

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache runs
