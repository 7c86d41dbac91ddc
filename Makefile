PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml Cargo.toml $(shell find rust -type f)

.DEFAULT_GOAL := help
.PHONY: help dev demo test lint format bench bench-index bench-rivals bench-replay bench-demo bench-sources bench-hierarchy bench-gpu chart docs wheel test-slow test-gpu test-matrix train-demo clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

dev: $(VENV)/installed ## make the virtual environment and build specds into it

$(VENV)/installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

demo: dev ## build a datastore from real code and watch a small model write faster with it
	$(BIN)/specds demo

test: lint ## every test there is: lints, types, Rust, Python, documentation, the wheel
	cargo test --quiet
	cargo bench --quiet -- --test
	$(BIN)/pytest --durations=20
	$(MAKE) wheel

lint: dev docs ## formatting, clippy, ruff, layers, mypy, the stub held against the extension, the site's links
	cargo fmt --all --check && cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports
	$(BIN)/mypy && $(BIN)/python -m mypy.stubtest specds._core

format: dev ## format and mend what can be mended
	cargo fmt --all && $(BIN)/ruff check --fix && $(BIN)/ruff format

bench: dev ## microbenchmarks of the core on the standard library
	cargo bench

bench-index: dev ## the datastore against its bars; ARGS="--corpus PATH --tokenizer NAME --transcripts FILE"
	PYTHONPATH=benches $(BIN)/python -m index $(ARGS)

bench-rivals: dev $(VENV)-rivals/installed ## the same, beside what else indexes tokens
	PYTHONPATH=benches $(BIN)/python -m index --rivals-python $(VENV)-rivals/bin/python $(ARGS)

bench-replay: dev $(VENV)-rivals/installed ## drafters and rivals over recorded answers; ARGS="--transcripts FILE --datastore PATH --drafter fused,tokengrams"
	PYTHONPATH=benches $(BIN)/python -m rivals --rivals-python $(VENV)-rivals/bin/python $(ARGS)

bench-demo: dev ## every drafter on the demo's model, greedy and sampled
	$(BIN)/python benches/demo_drafters.py $(ARGS)

bench-sources: dev ## the fused drafter's sources on the demo's model: each alone, all, all but one
	$(BIN)/python benches/demo_sources.py $(ARGS)

bench-hierarchy: dev ## HSDDW's rows and retrieval on the demo's three sizes; ARGS="--shapes" with the costs of 68M, 7B, 34B, 70B
	$(BIN)/python benches/hierarchy_ablation.py $(ARGS)

bench-gpu: dev ## a GPU against its bars; ARGS="--case ANSWERS.jsonl DATASTORE BAR --case ..."
	PYTHONPATH=benches $(BIN)/python -m gpu $(ARGS)

$(VENV)-rivals/installed: benches/requirements-rivals.txt
	test -x $(VENV)-rivals/bin/python || $(PYTHON) -m venv $(VENV)-rivals
	-grep -v '^#' $< | xargs -n 1 $(VENV)-rivals/bin/pip install --disable-pip-version-check --quiet
	touch $@

chart: dev ## draw the README's charts from docs/figures; ARGS="--keep ROWS.json --conditions TEXT" takes newer rows
	$(BIN)/python benches/chart.py $(ARGS)

docs: dev ## the site with the API, into target/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheel: dev ## build the wheel, install it into a clean environment, try it there
	rm -rf target/wheel && $(BIN)/maturin build --quiet --release --out target/wheel
	$(PYTHON) -m venv target/wheel/venv && target/wheel/venv/bin/pip install --quiet target/wheel/*.whl
	cd target/wheel && venv/bin/python -W error ../../tests/smoke.py

test-slow: dev ## the tests that take more than ten seconds each
	$(BIN)/pytest -m slow --timeout 600

test-gpu: dev ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu --timeout 1800

test-matrix: dev ## the Python tests against the oldest and the newest transformers supported
	for version in '==5.17.*' '>=5.17'; do \
	  rm -rf target/matrix && $(BIN)/pip install --quiet --target target/matrix "transformers$$version" && \
	  PYTHONPATH=target/matrix $(BIN)/pytest || exit 1; done

train-demo: dev ## train the demo's tokenizer and models again (hours on a CPU)
	$(BIN)/pip install --quiet -e '.[train]' && $(BIN)/python scripts/train_demo_models.py --out python/specds/demo/models

clean: ## remove what was built
	rm -rf $(VENV) $(VENV)-rivals target build && find python -name '*.so' -delete
