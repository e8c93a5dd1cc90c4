# make demo   the whole story in three minutes: train, kill a worker, see that nothing was lost
# make test   every test, quick ones first
# make simulate   many random schedules around the membership machine (RUNS=100000), and what 1,000 workers cost it
# make bench  speed, recovery, goodput and memory beside torchrun, Ray Train and torchft (quick; QUICK= for the long way)
# make chaos   the engine under fire for MINUTES=5 with WORKERS=4, from a SEED, with any STRATEGY=int8, local_sgd, ...
#              (STRATEGY=? names them); NETWORK=1 cuts lines as well (root)
# make lint   style, types, layers
# make images   the two container images, with BUILDER=docker (or podman, buildah); make pins: what they install
# make helm-readme   the table of values in the chart's README; make spec-page: the tables of docs/spec.md
#
# TORCH=cuda  installs torch without constraints/cpu.txt (5.6 GB instead of 0.9 GB)

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= cpu

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check install --quiet
constraint := $(if $(filter cuda,$(TORCH)),,-c constraints/cpu.txt)
pytest := $(bin)/pytest

# One stamp per set of packages: a second run installs nothing, a changed pyproject.toml installs anew.
run_stamp := $(VENV)/.installed-run-$(TORCH)
dev_stamp := $(VENV)/.installed-dev-$(TORCH)
bench_stamp := $(VENV)/.installed-bench-$(TORCH)

.PHONY: help demo test quick stores sabotage fuzz helm docker engine ray e2e gpu simulate chaos bench lint venv clean images pins \
  helm-readme spec-page

help:
	@sed -n 's/^# \(make\|TORCH\)/  \1/p' Makefile

demo: $(run_stamp)
	@$(bin)/elastrain demo

test: lint quick stores sabotage fuzz helm docker engine ray e2e

quick: $(dev_stamp)
	$(pytest) -n auto -m "not stores and not sabotage and not fuzz and not helm and not docker and not engine and not ray and not e2e and not gpu"

stores fuzz: $(dev_stamp)
	$(pytest) -n auto -m $@

sabotage helm docker engine ray e2e gpu: $(dev_stamp)
	$(pytest) -m $@

RUNS ?= 100000
simulate: $(dev_stamp)
	cd tests && $(abspath $(bin))/python -m trainers.simulation --runs $(RUNS)
	cd tests && $(abspath $(bin))/python -m trainers.simulation --big

QUICK ?= --quick
BENCHES := steady recovery goodput memory growth algorithms load
bench: $(bench_stamp)
	@for name in $(BENCHES); do echo "== $$name"; $(bin)/python bench/$$name.py $(QUICK) || true; done

MINUTES ?= 5
WORKERS ?= 4
chaos: $(dev_stamp)
	cd tests && $(abspath $(bin))/python -m engine.chaos --minutes $(MINUTES) --workers $(WORKERS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(NETWORK),--network) $(if $(STRATEGY),--strategy $(STRATEGY))

lint: $(dev_stamp)
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports

venv: $(dev_stamp)

$(bin)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  f"elastrain needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# torch first and alone: pip then meets a torch that is there already, and does not look for the CUDA build.
$(run_stamp): pyproject.toml constraints/cpu.txt | $(bin)/python
	@echo "installing elastrain with torch ($(TORCH)), about two minutes the first time ..."
	$(pip) $(constraint) "torch>=2.9"
	$(pip) $(constraint) -e ".[all]"
	@touch $@

$(dev_stamp): $(run_stamp)
	$(pip) $(constraint) -e ".[dev]"
	@touch $@

$(bench_stamp): $(run_stamp)
	$(pip) $(constraint) -e ".[bench]"
	@touch $@

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILDER ?= docker
images:
	$(BUILDER) build -f docker/service.Dockerfile -t elastrain-service:$(VERSION) .
	$(BUILDER) build -f docker/ray.Dockerfile --build-arg TORCH=$(TORCH) -t elastrain-ray:$(VERSION)$(if $(filter cuda,$(TORCH)),-cuda) .

pins: $(dev_stamp)
	$(bin)/python docker/pin.py

helm-readme: $(dev_stamp)
	$(bin)/python helm/readme.py

spec-page: $(dev_stamp)
	$(bin)/python docs/spec_page.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
