# Everything a person types. `make` alone lists it; each target installs what it needs, once, until pyproject.toml changes.
#   PYTHON=python3.12 make demo       another interpreter (3.11 or newer) for the environment
#   PYTHON=/opt/env/bin/python make test-gpu      the GPU targets use an interpreter as it is and never install

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RAPIDS := .venv-rapids
HOST := .venv-host

# The CUDA major the driver can run, empty without a GPU. For CUDA 12, TORCH_INDEX names the index with PyTorch's builds for it.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d . -f 1)
CUDA := $(shell if [ "$(DRIVER)" -ge 580 ]; then echo 13; elif [ "$(DRIVER)" -ge 525 ]; then echo 12; fi 2>/dev/null)
OPTIONS := $(if $(CUDA),$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)),-c constraints-cpu.txt)
comma := ,
EXTRA := $(if $(CUDA),cuda$(CUDA))

.DEFAULT_GOAL := help
.PHONY: help setup fmt check test test-all test-rapids test-host test-all-hosts test-gpu smoke-gpu soak notebooks renew-notebooks docs package resolve demo bench bench-gpu bench-gpu-large pack-gpu first-hour

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## make .venv with everything for developing

fmt: $(VENV)/.dev ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

check: $(VENV)/.dev ## lint, format, types, architecture: before every commit
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/architecture

test: $(VENV)/.dev ## unit tests and laws, before every commit; three minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow" --hypothesis-profile=few --ignore tests/architecture

# A file's tests stay together: what its fixtures start (a site, ranks, a dry run) starts once. In order: heavy files are
# no long end of one process. Three processes for two cores: some tests wait for others that they start.
test-all: $(VENV)/.dev test-rapids ## all else that needs no GPU: more examples, faults, stores, clusters, pages, notebooks, packaging too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --nbmake-timeout=900 --nbmake notebooks gpupipe tests --ignore tests/architecture

test-rapids: $(RAPIDS)/.installed ## the GPU backend against RAPIDS' own signatures, the kernel compiled; needs no GPU, takes 8 GB of disk
	OMP_NUM_THREADS=1 $(RAPIDS)/bin/python -m pytest -q -n 2 tests/rapids tests/kernels tests/project/test_packaging.py

# In the environment of a GPU host without a network, on its CPU: Python 3.12, and versions as in constraints-host.txt.
HOST_TESTS := tests/training tests/tensors tests/models tests/kernels tests/backend

test-host: $(HOST)/.installed ## the tests of training, loaders and kernels with the GPU host's older torch and newer NumPy; 8 GB of disk
	mkdir -p build
	OMP_NUM_THREADS=1 $(HOST)/bin/python -m pytest -q -n 2 --hypothesis-profile=few --junitxml build/host.xml $(HOST_TESTS); \
		status=$$?; $(HOST)/bin/python tests/keep_host_result.py build/host.xml tests/host.json; exit $$status

test-all-hosts: HOST_TESTS := tests --ignore tests/project --ignore tests/architecture
test-all-hosts: test-host ## the whole suite there, most of an hour; the last result of either is tests/host.json

# `pytest -m gpu --collect-only` lists some 2,700, of which a hundred, of stores and lakes, need more packages.
GPU_CASES := 2000

test-gpu: ## all tests with $PYTHON as it is; fails without a GPU, or with fewer than GPU_CASES on it; resumes if ended
	$(PYTHON) -m pytest -q -n 6 --require-gpu --gpu-cases $(GPU_CASES) --resume build/passed-on-gpu.txt

smoke-gpu: ## what reading could not answer, asked of a GPU with $PYTHON as it is; five minutes
	PYTHONPATH=.:benchmarks $(PYTHON) benchmarks/gpu/smoke.py benchmarks/results/smoke_gpu.json

soak: $(VENV)/.dev ## the fault tests twenty times, and property tests on random examples, about an hour; the log is build/soak.log
	mkdir -p build
	bash -o pipefail -c 'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -n 2 -m soak 2>&1 | tee build/soak.log'
	bash -o pipefail -c 'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --hypothesis-profile=random tests/laws tests/preprocessing \
		tests/transforms tests/backend tests/io 2>&1 | tee -a build/soak.log'

notebooks: $(VENV)/.dev ## run the notebooks, and leave the files as they are
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --nbmake-timeout=900 --nbmake notebooks

renew-notebooks: $(VENV)/.dev ## run the notebooks, and keep what they put out in them
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/renew.py

docs: $(VENV)/.dev ## build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(VENV)/.dev ## build wheel and sdist, install each into a new environment, run the demo there; some minutes
	rm -rf build/package
	$(BIN)/python -m build --outdir build/package
	for file in build/package/gpupipe-*; do \
		$(PYTHON) -m venv --clear build/package/env && build/package/env/bin/python -m pip install -q $(OPTIONS) $$file && \
		(cd build/package && env/bin/gpupipe demo --data $(CURDIR)/data --no-reference) || exit 1; done

resolve: $(VENV)/.dev ## whether pip finds versions for both CUDA majors that go together; downloads some GB to look at
	$(BIN)/python -m pip install --dry-run --ignore-installed '.[cuda13]'
	$(BIN)/python -m pip install --dry-run --ignore-installed --extra-index-url $(or $(TORCH_INDEX),$(error TORCH_INDEX=...)) '.[cuda12]'

demo: $(VENV)/.base ## a year of flights: from Parquet to a trained, saved, reloaded model
	$(BIN)/gpupipe demo

bench: $(VENV)/.dev ## speed beside Polars, pandas and torch, on the CPU
	$(BIN)/python benchmarks/bench.py

bench-gpu: ## speed on a GPU, with $PYTHON as it is, in less than ten minutes; the result is benchmarks/results/gpu.json
	PYTHONPATH=.:benchmarks $(PYTHON) benchmarks/gpu/measure.py $(if $(MINUTES),--minutes $(MINUTES))

bench-gpu-large: ## the same from Parquet to a trained model, at 100 million rows; ten minutes, 20 GB of disk
	PYTHONPATH=.:benchmarks $(PYTHON) benchmarks/gpu/measure.py benchmarks/results/gpu_large.json --only large $(if $(MINUTES),--minutes $(MINUTES))

pack-gpu: ## what a GPU host without a network lacks, in parts of 50 MiB in build/offline; downloads 1 GB
	$(PYTHON) benchmarks/gpu/offline/pack.py build/offline

first-hour: ## the commands for half an hour on a GPU host without a network, after `make pack-gpu`: what each proves
	@$(PYTHON) benchmarks/gpu/offline/first_hour.py

# installation ---------------------------------------------------------------------------------------------------------
SOURCES := pyproject.toml constraints-cpu.txt

$(VENV)/.base: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install $(OPTIONS) -e '.$(if $(EXTRA),[$(EXTRA)])'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install $(OPTIONS) -e '.[dev$(if $(EXTRA),$(comma)$(EXTRA))]'
	@touch $(VENV)/.base $@

$(RAPIDS)/.installed: $(SOURCES) | $(RAPIDS)/bin/python
	$(RAPIDS)/bin/python -m pip install -c constraints-cpu.txt -e '.[cuda13,dev,triton]'
	@touch $@

$(HOST)/bin/python: PYTHON := python3.12

$(HOST)/.installed: pyproject.toml constraints-host.txt | $(HOST)/bin/python
	$(HOST)/bin/python -m pip install --quiet --upgrade pip # an older one tries versions for a quarter of an hour
	$(HOST)/bin/python -m pip install -c constraints-host.txt -e '.[dev,triton]' cupy-cuda13x
	@touch $@

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gpupipe needs Python 3.11 or newer, '$(PYTHON)' is not: make ... PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; } # half an environment would pass for a whole one next time
