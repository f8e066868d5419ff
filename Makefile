# Two commands are enough on a fresh machine: `make demo` and `make test`.
# Both create .venv first; `make help` lists all targets.

VENV := .venv
BIN := $(VENV)/bin
BENCHMARKS := trial_overhead start gang ring feed parquet predict serving monitoring pruning search pbt scale simulated history startup store clusters
SECONDS := 120
SITE := build/docs
# Spark listens on the loopback interface only.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Thousands of processes import the package: the first one compiles it for all.
unexport PYTHONDONTWRITEBYTECODE
# Three processes run the tests on two cores: many tests wait most of the time. Each has its own Spark.
LANES := -n 3

# Tests that need hosts, servers or Spark applications of their own are in a target of their own.
CLUSTERS := tests/clusters

.PHONY: help setup demo circle notebooks test test-fast test-clusters test-thorough test-torch compat compat-smoke dist soak check format docs bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | column -t -s "$$(printf '\t')"

setup: $(VENV)/.done  ## create .venv with all dependencies, and check for Java

$(VENV)/.done: setup.cfg pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh $(VENV) test
	@touch $@

# The JVMs of the tests start faster with it.
$(VENV)/spark-classes.jsa: $(VENV)/.done scripts/spark_classes.py
	@. scripts/java.sh && rm -f $@ && $(BIN)/python scripts/spark_classes.py $@

demo: setup  ## train six Keras models on embedded Spark
	@. scripts/java.sh && $(BIN)/python examples/grid_search.py

circle: setup  ## train, serve, watch, train again and roll out, once around in three minutes
	@. scripts/java.sh && $(BIN)/python examples/train_and_serve.py

notebooks: setup  ## open the notebooks in JupyterLab
	@. scripts/java.sh && $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

test: setup $(VENV)/spark-classes.jsa  ## run all tests
	@. scripts/java.sh && $(BIN)/python -m pytest $(LANES)

test-fast: setup $(VENV)/spark-classes.jsa  ## run the tests that need no cluster and no TensorFlow
	@. scripts/java.sh && $(BIN)/python -m pytest $(LANES) -m "not slow and not thorough"

# Hosts hide /tmp, so that what they share lies elsewhere.
test-clusters: setup $(VENV)/spark-classes.jsa  ## run the tests with clusters, servers and programs of their own
	@bash scripts/iproute.sh
	@mkdir -p build/tests
	@. scripts/java.sh && TMPDIR=$(CURDIR)/build/tests $(BIN)/python -m pytest $(LANES) $(CLUSTERS)

test-thorough: setup $(VENV)/spark-classes.jsa  ## run the cases that the other targets leave out, in half an hour
	@bash scripts/iproute.sh
	@mkdir -p build/tests
	@. scripts/java.sh && TMPDIR=$(CURDIR)/build/tests $(BIN)/python -m pytest $(LANES) -m thorough tests $(CLUSTERS)

test-torch: setup  ## run the tests with PyTorch, transformers and Lightning in an environment of their own
	@bash scripts/torch.sh

# An environment for each end of the allowed versions; installing them takes minutes.
compat:  ## run the core of the tests on the oldest and newest versions, or ENVIRONMENTS="oldest"
	@. scripts/java.sh && python3 scripts/compatibility.py $(ENVIRONMENTS)

compat-smoke:  ## search, train on two workers and predict with the oldest Spark, Java, Keras and TensorFlow
	@. scripts/java.sh && python3 scripts/compatibility.py --smoke $(ONCE)

dist: setup  ## build the wheel and the source distribution in dist/, and check them
	@bash scripts/dist.sh $(VENV) dist

soak: setup  ## disturb runs with faults for SECONDS=120, and check how they end
	@. scripts/java.sh && $(BIN)/python benchmarks/soak.py --seconds $(SECONDS) --faults $$(($(SECONDS) / 3))

check: setup  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff correct and format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# The pages import sparkdl, whose docstrings are the reference.
$(VENV)/.docs: $(VENV)/.done
	@bash scripts/setup.sh $(VENV) docs
	@touch $@

docs: $(VENV)/.docs  ## build the site of the documentation in SITE=build/docs, which needs no network
	@rm -rf $(SITE)
	@$(BIN)/python -m sphinx -W --keep-going -q -E -c docs -d $(SITE)/.doctrees . $(SITE)
	@rm -rf $(SITE)/.doctrees
	@echo "Open $(SITE)/index.html, or serve it: python -m http.server --bind 127.0.0.1 --directory $(SITE)"

bench: setup  ## run all benchmarks, or those of BENCHMARKS="ring feed"
	@. scripts/java.sh && for name in $(BENCHMARKS); do \
		$(BIN)/python benchmarks/$$name.py || exit 1; \
	done

clean:  ## remove .venv, caches and runs
	rm -rf $(VENV) build/docs docs/api .mypy_cache .ruff_cache .pytest_cache runs
