# The one habit: make demo, make test. Each pulls in what it needs (packages, LibTorch, configuration, build), and does none of
# it twice. PRESET picks another build: make test PRESET=asan-ubsan.
PRESET ?= release
PREFIX ?= $(HOME)/.local
BUILD := build/$(PRESET)
JOBS := $(shell nproc)
# What the configuration was made from; cmake notices changes of its own files by itself.
INPUTS := $(shell { cat CMakePresets.json; echo "$$LIBTORCH|$$CMAKE_PREFIX_PATH|$$XDG_CACHE_HOME"; } | sha256sum | cut -c1-16)

.PHONY: help setup configure build demo test bench gpu-check docs install clean format format-check tidy
help:
	@echo 'make setup           packages and LibTorch, only what is missing'
	@echo 'make build           everything, into $(BUILD)'
	@echo 'make demo            train a tiny transformer on one device and on a mesh; the curves coincide. Builds no more than that'
	@echo 'make test            all tests'
	@echo 'make bench           ratios against plain ATen, memcpy and PyTorch where it is installed'
	@echo 'make gpu-check       all that wants a GPU: collectives, kernels, recorded calls, training, speed beside PyTorch'
	@echo 'make docs            the docs site, into $(BUILD)/docs/html'
	@echo 'make install PREFIX=...   then find_package(dtensor CONFIG)'
	@echo 'make format, format-check, tidy, clean'
	@echo 'PRESET=release|dev|asan-ubsan|tsan|cuda picks the build.'

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

# On a machine with a GPU; no more is built than is run.
gpu-check:
	@$(MAKE) configure PRESET=cuda
	@cmake --build --preset cuda --target test_gpu aten_cases train moe inside wiring bench_dispatch
	@scripts/gpu_check.sh build/cuda

docs:
	@scripts/docs.sh $(BUILD)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@scripts/format.sh

format-check:
	@scripts/format.sh --check

tidy: build
	@scripts/tidy.sh $(BUILD)

clean:
	rm -rf build
