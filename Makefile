# Each verb makes what it needs. `make serve` never installs torch.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
SERVE   := .venv/serve
TRAIN   := .venv/train
DEV     := .venv/dev
NEWER   := .venv/transformers-5
CLIENTS := .venv/clients
PEERS   := .venv/peers
FUZZ    := .venv/fuzz
AUDIT   := .venv/audit
BULK    := .venv/bulk
IMAGE   ?= cpu
HUB_CLIENT = $(shell sed -n 's/^ENV HUB_CLIENT="\(.*\)"/\1/p' Dockerfile)
OTHERS  := $(basename $(notdir $(wildcard benchmarks/peers/*.txt)))
FAMILIES ?= $(basename $(notdir $(wildcard tests/clients/requirements/*.txt))) javascript

# One sentence where Python is too old; pip would say more, and later.
OLD = This is Python %d.%d, and S2Sent needs 3.11 or later: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11
VENV = $(PYTHON) -c 'import sys; v = sys.version_info[:2]; v < (3, 11) and sys.exit("$(OLD)" % v)' && $(PYTHON) -m venv

.PHONY: fuzz soak serve train test test-transformers5 test-bulk test-clients check fix bench peers audit sbom clean
serve: $(SERVE)/installed       ## start the service with the embedded model; PORT=9000 for another port
	$(SERVE)/bin/s2sent serve $(if $(PORT),--port $(PORT))

train: $(TRAIN)/installed        ## install what training and export need, s2sent-train among it

# What the service's processes import is compiled once, also where the environment forbids it.
test: $(DEV)/installed          ## run every test, in two processes
	PYTHONDONTWRITEBYTECODE= $(DEV)/bin/python -m pytest -n 2 --dist worksteal

# Each release exports its own models and those of the other.
test-transformers5: $(DEV)/installed $(NEWER)/installed ## exports under transformers 5 beside 4.57
	$(DEV)/bin/python -m tests.support.saved_models build/saved-by-4
	$(NEWER)/bin/python -m tests.support.saved_models build/saved-by-5
	TEST_SAVED_MODELS=$(CURDIR)/build/saved-by-4 $(NEWER)/bin/python -m pytest -n 2 --dist worksteal \
	  tests/model/export/test_releases.py tests/model/export/test_models_of_2026.py \
	  tests/model/export/packed tests/training/loop/test_settings_kept.py -k "kept or roberta or not int8"
	TEST_SAVED_MODELS=$(CURDIR)/build/saved-by-5 $(DEV)/bin/python -m pytest \
	  tests/model/export/test_releases.py -k elsewhere

test-clients: $(DEV)/installed $(FAMILIES:%=$(CLIENTS)/%/installed) ## real client libraries
	$(DEV)/bin/python -m tests.clients $(FAMILIES)

test-bulk: $(BULK)/installed    ## s2sent embed on a Ray cluster, and its vectors in stores
	cd tests/bulk && ORT_DISABLE_TELEMETRY=1 RAY_USAGE_STATS_ENABLED=0 \
	  $(CURDIR)/$(BULK)/bin/python -m pytest -c pytest.ini

check: $(DEV)/installed         ## lint, format and types
	$(DEV)/bin/ruff check . && $(DEV)/bin/ruff format --check . && $(DEV)/bin/mypy

fix: $(DEV)/installed           ## format and mend what can be mended
	$(DEV)/bin/ruff check --fix . ; $(DEV)/bin/ruff format .

bench: $(DEV)/installed         ## measure the service beside its peers (needs wrk and cc), with BENCH=--options
	-$(MAKE) --keep-going peers
	$(DEV)/bin/python -m benchmarks $(BENCH)

peers: $(OTHERS:%=$(PEERS)/%/installed)  ## install what bench compares with

soak: $(DEV)/installed          ## twenty minutes of faults, leavers and restarts; MINUTES=2 for less
	$(DEV)/bin/python -m tests.support.chaos --minutes $(or $(MINUTES),20)

fuzz: $(DEV)/installed $(FUZZ)/installed ## 10,000 cases made from the OpenAPI document
	$(DEV)/bin/python -m tests.fuzz

$(SERVE)/installed: pyproject.toml constraints.txt
	@$(VENV) $(SERVE)
	$(SERVE)/bin/pip install --constraint constraints.txt --editable '.[cpu]'
	touch $@

$(TRAIN)/installed: pyproject.toml constraints.txt
	@$(VENV) $(TRAIN)
	$(TRAIN)/bin/pip install --constraint constraints.txt --editable '.[cpu,train,optimum]'
	touch $@

$(DEV)/installed: pyproject.toml constraints.txt
	@$(VENV) $(DEV)
	$(DEV)/bin/pip install --constraint constraints.txt --editable '.[cpu,train,optimum,dev]'
	touch $@

$(NEWER)/installed: pyproject.toml constraints.txt tests/model/transformers_5.txt
	@$(VENV) $(NEWER)
	grep -vE '^(transformers|sentence-transformers|huggingface_hub|tokenizers)==' constraints.txt \
	  >$(NEWER)/constraints.txt
	$(NEWER)/bin/pip install --constraint $(NEWER)/constraints.txt --editable '.[cpu,train]' \
	  --requirement tests/model/transformers_5.txt
	touch $@

$(BULK)/installed: pyproject.toml constraints.txt tests/bulk/requirements.txt
	@$(VENV) $(BULK)
	$(BULK)/bin/pip install --constraint constraints.txt --editable '.[cpu,ray]' \
	  --requirement tests/bulk/requirements.txt
	touch $@

$(FUZZ)/installed: tests/fuzz/requirements.txt
	@$(VENV) $(FUZZ)
	$(FUZZ)/bin/pip install --requirement $<
	touch $@

$(AUDIT)/installed: deploy/requirements-audit.txt
	@$(VENV) $(AUDIT)
	$(AUDIT)/bin/pip install --requirement $<
	touch $@

$(CLIENTS)/%/installed: tests/clients/requirements/%.txt
	@$(VENV) $(CLIENTS)/$*
	$(CLIENTS)/$*/bin/pip install --requirement $<
	touch $@

$(CLIENTS)/javascript/installed: $(wildcard tests/clients/javascript/package*.json)
	mkdir -p $(@D)
	cp tests/clients/javascript/package*.json tests/clients/javascript/.npmrc $(@D)
	npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --silent
	touch $@

$(PEERS)/%/installed: benchmarks/peers/%.txt
	@$(VENV) $(PEERS)/$*
	$(PEERS)/$*/bin/pip install --requirement $<
	touch $@

audit: $(AUDIT)/installed       ## look the images' packages up among known vulnerabilities
	$(AUDIT)/bin/pip-audit --strict --require-hashes --disable-pip --vulnerability-service osv \
	  $(patsubst %,--requirement %,$(wildcard deploy/requirements-?pu.txt))

sbom: $(AUDIT)/installed        ## list what an image installs, with IMAGE=gpu the other
	@$(VENV) --clear --without-pip .venv/image
	$(AUDIT)/bin/pip --python .venv/image/bin/python install --quiet --require-hashes \
	  --requirement deploy/requirements-$(IMAGE).txt
	$(AUDIT)/bin/pip --python .venv/image/bin/python uninstall --quiet --yes $(HUB_CLIENT)
	mkdir -p build
	$(AUDIT)/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	  --output-file build/sbom-$(IMAGE).json .venv/image/bin/python

clean:                          ## remove the environments and caches
	rm -rf .venv .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
