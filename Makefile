PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml Cargo.toml $(shell find rust -type f)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

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

bench-against: dev ## this version beside a commit, in turn; COMMIT=9e3915c ARGS="--corpus PATH --tokenizer NAME --transcripts FILE"
	$(BIN)/python benches/against.py --commit $(COMMIT) $(ARGS)

bench-start: dev ## how long the first commands take, and a keystroke in `specds view`; ARGS="--datastore PATH --demo"
	$(BIN)/python benches/first_minutes.py $(ARGS)

bench-index: dev ## the datastore against its bars; ARGS="--corpus PATH --tokenizer NAME --transcripts FILE"
	PYTHONPATH=benches $(BIN)/python -m index $(ARGS)

bench-rivals: dev $(VENV)-rivals/installed ## the same, beside what else indexes tokens
	PYTHONPATH=benches $(BIN)/python -m index --rivals-python $(VENV)-rivals/bin/python $(ARGS)

bench-scale: dev ## a datastore as it grows to a billion tokens; ARGS="--corpus PATH --tokenizer NAME --sizes 60M,250M,1G"
	PYTHONPATH=benches $(BIN)/python -m index.scale $(ARGS)

bench-replay: dev $(VENV)-rivals/installed ## drafters and rivals over recorded answers; ARGS="--transcripts FILE --datastore PATH --drafter fused,tokengrams"
	PYTHONPATH=benches $(BIN)/python -m rivals --rivals-python $(VENV)-rivals/bin/python $(ARGS)

bench-papers: dev ## the papers' ablations as tables; ARGS="rest-match aded-searches --transcripts FILE --datastore PATH"
	PYTHONPATH=benches $(BIN)/python -m papers $(ARGS)

bench-demo: dev ## every drafter on the demo's model, greedy and sampled; ARGS="--limit 6"
	$(BIN)/specds bench generate --model demo --baseline generate --runs 1 --drafter fused,rest,aded,aded:search=greedy,aded:order=2,aded:order=4,prompt-lookup,n-grammys,n-grammys:parts=context,n-grammys:parts=bigram,n-grammys:parts=extended-bigram,n-grammys:parts=unigram $(ARGS)

bench-sources: dev ## the fused drafter's sources on the demo's model: each alone, all, all but one
	$(BIN)/python benches/demo_sources.py $(ARGS)

bench-hierarchy: dev ## HSDDW's rows and retrieval on the demo's three sizes; ARGS="--prompts 12 --seeds 3"
	$(BIN)/python benches/hierarchy_ablation.py $(ARGS)

bench-overlap: dev ## how long a device waits for the host in a step, on a stand-in; ARGS="--datastore PATH --transcripts FILE --nodes 63 auto --steps 5"
	PYTHONPATH=benches:tests/helpers $(BIN)/python benches/overlap.py $(ARGS)

bench-gpu: dev ## a GPU against its bars, part by part; ARGS="--case ANSWERS.jsonl DATASTORE BAR --case ..."
	PYTHONPATH=benches $(BIN)/python -m gpu $(ARGS)

bench-hub: dev ## pulling a datastore from a hub on loopback, beside a plain download; ARGS="--datastore PATH"
	PYTHONPATH=benches:tests/helpers $(BIN)/python benches/hub_pull.py $(ARGS)

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
	test -z "$$(find target/wheel -name '*.whl' -size +8M)" # a bar
	$(PYTHON) -m venv target/wheel/venv && target/wheel/venv/bin/pip install --quiet target/wheel/*.whl
	cd target/wheel && venv/bin/python -W error ../../tests/smoke.py

$(VENV)-wheels/installed:
	$(PYTHON) -m venv $(VENV)-wheels && $(VENV)-wheels/bin/pip install --quiet 'maturin>=1.9.4,<2' ziglang
	touch $@

wheels: $(VENV)-wheels/installed ## wheels for manylinux, the sources and the demo's models, into target/wheels; needs `rustup target add` of both
	for machine in $(or $(MACHINES),x86_64 aarch64); do \
	  PATH="$(abspath $(VENV)-wheels/bin):$$PATH" maturin build --quiet --release --zig --out target/wheels \
	    --target $$machine-unknown-linux-gnu --compatibility manylinux2014 || exit 1; done
	$(VENV)-wheels/bin/maturin sdist --out target/wheels
	$(VENV)-wheels/bin/pip wheel --quiet --no-deps --wheel-dir target/wheels ./packages/demo

test-slow: dev ## the tests that take more than ten seconds each
	$(BIN)/pytest -m slow --timeout 600

test-browser: dev ## the tests that show a page in Chromium
	$(BIN)/pytest -m browser

fuzz-generate: dev ## random requests by model.generate and by specds; ARGS="--configurations 2000"
	PYTHONPATH=benches:tests/helpers $(BIN)/python -W ignore benches/fuzz_generate.py $(ARGS)

fuzz: ## more than a million forged files, with overflow checks; TIMES=1000 READER=snapshots
	ulimit -v 8000000; SPECDS_FUZZ=$(or $(TIMES),1000) CARGO_TARGET_DIR=target/fuzz \
	CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
	cargo test --release --quiet --test core fuzz::$(READER)

fuzz-sanitized: ## the same under AddressSanitizer, which needs a nightly toolchain
	SPECDS_FUZZ=$(or $(TIMES),10) CARGO_TARGET_DIR=target/asan RUSTFLAGS=-Zsanitizer=address \
	cargo +nightly test --release --quiet --target x86_64-unknown-linux-gnu --test core fuzz::$(READER)

reliability: dev ## what was tried to break it, into docs/RELIABILITY.md (hours); ARGS="fuzz faults"
	PYTHONPATH=benches:tests/helpers $(BIN)/python -m reliability $(ARGS)

audit: dev ## licences and known holes of all dependencies; asks the package indexes and the databases of advisories
	cargo deny --version || { echo 'cargo-deny is missing: cargo install --locked cargo-deny'; exit 1; }
	cargo deny check bans licenses sources
	cargo deny check advisories
	$(BIN)/pip freeze --exclude-editable > target/frozen.txt && $(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement target/frozen.txt

$(VENV)-llama/installed $(VENV)-sglang/installed $(VENV)-vllm/installed: $(VENV)-%/installed: benches/engines/install.sh
	$< $* $(VENV)-$*

target/engines/prompts.json: benches/engines/workload.py
	PYTHONPATH=python:benches $(BIN)/python -m engines.workload

target/engines/demo.gguf: benches/engines/gguf_model.py | $(VENV)-llama/installed target/engines/prompts.json
	$(VENV)-llama/bin/python $< packages/demo/specds_demo/main $@

# Engines lie in environments of their own, where specds is read from its sources.
test-llama: target/engines/demo.gguf ## the adapter in a real llama-cpp-python (0.3 GB, compiled on first use)
test-sglang: ## the adapter in a real SGLang on a CPU, its kernels stand-ins (6.6 GB, installed on first use)
test-vllm: ## the adapter in a real vLLM on a CPU (6.3 GB, installed on first use)

test-llama test-sglang test-vllm: test-%: dev target/engines/prompts.json $(VENV)-%/installed
	PATH="$(CURDIR)/$(VENV)-$*/bin:$$PATH" PYTHONPATH=python:benches:benches/engines/sglang_cpu OMP_NUM_THREADS=1 \
	python -m pytest -m engine -W default -s tests/integrations/engines/test_$*.py --timeout 600

bench-engines: dev target/engines/prompts.json ## tokens a row step in each engine that is installed: plain, its own n-grams, specds
	PYTHONPATH=benches $(BIN)/python -m engines

test-gpu: dev ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu --timeout 1800

test-matrix: dev ## the Python tests against the oldest and the newest transformers supported
	for version in '==5.19.*' '>=5.19'; do \
	  rm -rf target/matrix && $(BIN)/pip install --quiet --target target/matrix "transformers$$version" && \
	  PYTHONPATH=target/matrix $(BIN)/pytest || exit 1; done

train-demo: dev ## train the demo's tokenizer and models again (hours on a CPU)
	$(BIN)/pip install --quiet -e '.[train]' && $(BIN)/python scripts/train_demo_models.py --out packages/demo/specds_demo

clean: ## remove what was built
	rm -rf $(VENV) $(VENV)-rivals $(VENV)-llama $(VENV)-sglang $(VENV)-vllm $(VENV)-wheels target build && find python -name '*.so' -delete
