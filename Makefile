# Each target first does what it needs and what is not done yet: packages, LibTorch, configuration, build. PRESET selects
# another build: make test PRESET=asan-ubsan.
PRESET ?= release
PREFIX ?= $(HOME)/.local
BUILD := build/$(PRESET)
JOBS := $(shell nproc)
# Inputs of the configuration, besides CMake's own files, whose changes CMake detects.
INPUTS := $(shell { cat CMakePresets.json; echo "$$LIBTORCH|$$CMAKE_PREFIX_PATH|$$XDG_CACHE_HOME"; } | sha256sum | cut -c1-16)

.PHONY: help setup configure build demo test bench calibrate gpu-check docs install clean format format-check tidy
help:
	@echo 'make setup           installs packages and LibTorch where they are missing'
	@echo 'make build           builds everything into $(BUILD)'
	@echo 'make demo            trains a tiny transformer on one device and on a mesh, and compares the curves'
	@echo 'make test            runs all tests'
	@echo 'make bench           measures ratios to plain ATen, memcpy and, where it is installed, PyTorch'
	@echo 'make calibrate       measures this machine and writes $(BUILD)/hardware.json for the search of layouts'
	@echo 'make gpu-check       runs what needs a GPU: collectives, kernels, recorded calls, training, speed'
	@echo 'make docs            builds the docs site in $(BUILD)/docs/html'
	@echo 'make install PREFIX=...   builds and installs the library for find_package(dtensor CONFIG)'
	@echo 'make format, format-check, tidy, clean'
	@echo 'PRESET=release|dev|asan-ubsan|tsan|cuda selects the build.'

setup:
	@scripts/setup.sh

configure: setup
	@test -e $(BUILD)/build.ninja -a -e $(BUILD)/.inputs-$(INPUTS) || \
	  { cmake --preset $(PRESET) && rm -f $(BUILD)/.inputs-* && touch $(BUILD)/.inputs-$(INPUTS); }

build: configure
	@cmake --build --preset $(PRESET)

demo: configure
	@cmake --build --preset $(PRESET) --target train
	@scripts/demo.sh $(BUILD)

test: build
	@ctest --preset $(PRESET) -j $(JOBS) --output-junit $(CURDIR)/$(BUILD)/tests.xml

bench: build
	@scripts/bench.sh $(BUILD)

calibrate: configure
	@cmake --build --preset $(PRESET) --target plan
	@$(BUILD)/apps/plan calibrate --out $(BUILD)/hardware.json

# On a machine with a GPU; no more is built than is run.
gpu-check:
	@$(MAKE) configure PRESET=cuda
	@cmake --build --preset cuda --target test_gpu aten_cases train moe inside wiring all_to_all dmoe shampoo \
	  long_sequence bench_dispatch
	@scripts/gpu_check.sh build/cuda

docs:
	@SETUP_DOCS=1 scripts/setup.sh
	@scripts/docs.sh $(BUILD)

install: configure
	@cmake --build --preset $(PRESET) --target dtensor_installed
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@scripts/format.sh

format-check:
	@scripts/format.sh --check

tidy: build
	@scripts/tidy.sh $(BUILD)

clean:
	rm -rf build
