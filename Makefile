# Every target does its own set-up: the environment in .venv, under the pinned versions of requirements/.
# PYTHON=... chooses the interpreter; PIP_EXTRA_INDEX_URL=... an index that has a CPU build of PyTorch.

PYTHON ?= $(shell scripts/find_python.sh 3.11 3.12 3.13)
EDGE_PYTHON ?= $(shell scripts/find_python.sh 3.10)
PYTEST_ARGS ?=
# Tests that need the bench, the verifier or the fuzzer, which no device has. On 3.10 asyncio lets a connection read that was paused as
# it was made, so that the relay drops a server that speaks first: wan-relay is for 3.11 and later.
NOT_THE_EDGES := $(foreach name,baseline bench chaos codec_fuzz hostile lab protocol_fuzz relay time_model_virtual verifier_bench,--ignore-glob='tests/test_$(name)*')
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_SECONDS ?= 45
CHAOS_ARGS ?=
CHECK_ARGS ?=
GENAI_VERSION := 0.18.0
TQDM_VERSION := 4.70.1

BIN := .venv/bin
EDGE_BIN := .venv-edge310/bin
READY := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: check-lab help demo test lint format types proto proto-check lock check check-wheels check-arm64 packages report-branches bench-export test-edge-py310 clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## generate text through the whole system, in rounds and in a race, and compare with cloud-only decoding
	$(BIN)/acespec demo $(DEMO_ARGS)

test: $(READY) ## run every test, those on the real model included (of the laboratory: make check-lab)
	$(BIN)/pytest $(PYTEST_ARGS)

lint: $(READY) ## check style and format, and the containers' files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile.jetson Dockerfile.cloud
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml

format: $(READY) ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .

types: $(READY) ## check types
	$(BIN)/mypy
	$(BIN)/mypy scripts deploy

proto: $(READY) ## regenerate the gRPC stubs
	$(BIN)/python scripts/proto.py

proto-check: $(READY) ## fail if the gRPC stubs are stale
	$(BIN)/python scripts/proto.py --check

lock: ## regenerate the pinned requirements (UPGRADE=1: move versions up)
	$(PYTHON) scripts/lock.py $(if $(UPGRADE),--upgrade)

# Both runs of tests at the same time: each keeps one of two cores busy.
check: lint types proto-check packages check-wheels fuzz ## what CI runs
	$(MAKE) --jobs=2 --output-sync=target test-edge-py310 test

.PHONY: fuzz
fuzz: $(READY) ## fuzz the codec for FUZZ_SECONDS
	$(BIN)/python tests/fuzz_codec.py --seconds $(FUZZ_SECONDS)

.PHONY: chaos
chaos: $(READY) ## run 200 generations through broken connections and killed servers (CHAOS_ARGS="--only N": one)
	$(BIN)/python tests/chaos.py $(CHAOS_ARGS)

.PHONY: hostile
hostile: $(READY) ## attack a verifier in every way known, and print what each took of its memory
	$(BIN)/python tests/hostile.py

check-lab: $(READY) ## that the laboratory's remembered rows give the real engines' run, on the demo pair
	$(BIN)/pytest -m laboratory $(PYTEST_ARGS)

.PHONY: check-wall
check-wall: $(READY) ## wall clock against virtual clock on this machine, which should be quiet (CHECK_ARGS=...)
	$(BIN)/python -m acespec.bench.lab.wall_check $(CHECK_ARGS)

report-branches: $(READY) ## how many cached branches equal sequential drafting, on the real draft at float32
	$(BIN)/python -m acespec.bench.branch_equality

.PHONY: report-race
report-race: $(READY) ## tokens a forward by how a race's nodes are valued (PROMPTS="a.jsonl ...")
	$(BIN)/python -m acespec.bench.lab.race_nodes $(PROMPTS) $(BENCH_ARGS)

.PHONY: bench-verifier soak-verifier
bench-verifier: $(READY) ## the verifier's rounds a second, latency and memory, and what batching gains
	$(BIN)/acespec models fetch smollm2-135m
	$(BIN)/python -m acespec.bench.verifier_bench $(BENCH_ARGS)

soak-verifier: $(READY) ## ten minutes of sessions that come, break off and go: memory must stay flat
	$(BIN)/python -m acespec.bench.verifier_soak $(BENCH_ARGS)

# Of genai its model builder is used, on the environment's PyTorch and Transformers: nothing else is installed.
bench-export: $(READY) .venv-genai/.installed ## step times of exported bundles against onnxruntime-genai's int4 build
	$(BIN)/acespec models fetch smollm2-135m
	$(BIN)/python -m acespec.bench.export_bench --genai .venv-genai $(BENCH_ARGS)

.venv-genai/.installed: $(READY)
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv-genai onnxruntime-genai==$(GENAI_VERSION) tqdm==$(TQDM_VERSION)
	touch $@

# The wheel is built from the sdist, so a file missing from the sdist is missing from the wheel.
packages: $(READY) ## build sdist and wheel, and test them away from the sources
	rm -rf dist
	$(BIN)/pyproject-build --no-isolation --outdir dist . >/dev/null
	ACESPEC_DIST=$(CURDIR)/dist $(BIN)/pytest tests/test_packaging.py

check-wheels: $(READY) ## check that a wheel for Arm exists of all that JetPack 6.2 and 7.2 install
	$(BIN)/python scripts/check_wheels.py

check-arm64: ## carry out Dockerfile.jetson's steps and the edge's tests in an arm64 root (as root; an hour)
	scripts/check_arm64.sh

# The device's part on the oldest supported Python, from the wheel, without PyTorch and Transformers.
ifneq ($(EDGE_PYTHON),)
test-edge-py310: packages $(EDGE_BIN)/.installed ## run the edge's tests on Python 3.10 without PyTorch
	$(EDGE_BIN)/pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(EDGE_BIN)/python -c 'import importlib.util as u; assert not any(map(u.find_spec, ["torch", "transformers"]))'
	$(EDGE_BIN)/pytest -m "not real_model and not laboratory" -p no:cacheprovider $(NOT_THE_EDGES)
else
test-edge-py310:
	@echo '*** SKIPPED: no Python 3.10 found, so the edge was not tested on it (EDGE_PYTHON=... names one) ***'
endif

$(READY): pyproject.toml requirements/dev.txt
	@test -n "$(PYTHON)" || { echo 'Python 3.11, 3.12 or 3.13 with venv and pip is needed; PYTHON=... names one' >&2; exit 1; }
	@echo 'Installing into .venv; the first time takes a few minutes.'
	$(BIN)/python -c '' 2>/dev/null || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/pip install --quiet -c requirements/dev.txt setuptools
	$(BIN)/pip install --quiet -c requirements/dev.txt --no-build-isolation -e '.[dev]'
	touch $@

$(EDGE_BIN)/.installed: pyproject.toml requirements/edge.txt | packages
	$(EDGE_BIN)/python -c '' 2>/dev/null || "$(EDGE_PYTHON)" -m venv --clear .venv-edge310
	$(EDGE_BIN)/pip install --quiet -c requirements/edge.txt "$$(echo dist/*.whl)[edge,test]"
	touch $@

clean: ## remove environments and whatever was built
	rm -rf .venv .venv-edge310 .venv-genai dist build src/acespec.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
