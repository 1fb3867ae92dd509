# make demo and make test are the two commands; everything they need is set up on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
export PYTHONDONTWRITEBYTECODE :=
export SPARK_LOCAL_IP := 127.0.0.1

.PHONY: setup demo test fast lint type bench proto clean
setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python tools/java.py
	touch $(STAMP)

demo: setup
	$(BIN)/tidegate demo

lint: setup
	$(BIN)/ruff check src tests tools
	$(BIN)/ruff format --check --quiet src tests tools

type: setup
	$(BIN)/mypy

fast: setup
	$(BIN)/python -m pytest -q -m "not spark and not slow"

test: lint type
	$(BIN)/python tools/etcd.py
	$(BIN)/python -m pytest -q

bench: setup
	$(BIN)/tidegate bench pipeline

# Generated code is committed; this makes it anew after a change of the .proto file.
proto: setup
	$(BIN)/python tools/proto.py

clean:
	rm -rf $(VENV) .java .cache
