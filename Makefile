# make demo, make test: build what is needed, then run. PYTHON chooses the interpreter.
PYTHON ?= python3
PREFIX ?= /usr/local
BIN := .venv/bin
SOURCES := $(wildcard setup.py shim/*.[ch] shim/*/*.[chm] kernels/*.h kernels/*/*.[ch] \
	kernels/*/*.metal mtlqwen/*.pyx mtlqwen/*.pxd)
DEBUG_TESTS := tests/shim tests/kernels tests/engine tests/sampling tests/gguf
COVERAGE_TESTS := tests/engine tests/sampling tests/gguf tests/text tests/api

.PHONY: demo test debug-test coverage test-arm64 lint bench build install examples clean

demo: build
	$(BIN)/mtlqwen generate "Tell me a story about a fox and a lantern."

test: build
	$(BIN)/python -m pytest -q

# The shim, the kernels and the Cython modules with ASan, UBSan and Cython's checks.
debug-test: build
	MTLQ_BUILD=debug $(BIN)/python setup.py -q build --build-lib build/debug/lib
	LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		PYTHONPATH=build/debug/lib $(BIN)/pytest -q -m "not slow" $(DEBUG_TESTS)

# Lines of Python and Cython that tests reach. Its slow modules lie in the tree until it ends.
coverage: build
	$(BIN)/pip install -q coverage
	rm -f mtlqwen/_*.so
	MTLQ_BUILD=coverage $(BIN)/python setup.py -q build_ext --inplace
	-$(BIN)/python -m coverage run -m pytest -q -m "not slow" $(COVERAGE_TESTS)
	-$(BIN)/python -m coverage report
	rm -f mtlqwen/_*.so
	$(BIN)/python setup.py -q build_ext --inplace

# The library under qemu, and every kernel's bits there against those on this machine.
test-arm64: .venv/installed
	tests/cross/run_arm64.sh $(BIN)/python
	tests/cross/kernel_bits.sh $(BIN)/python

lint: .venv/linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: build
	$(BIN)/python bench/shim.py
	$(BIN)/mtlqwen bench -p 512 -n 64 --batch 1,8

build: build/built

build/built: .venv/installed $(SOURCES)
	$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

.venv/installed: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q "setuptools>=77" "cython>=3.1"
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	@touch $@

.venv/linters: .venv/installed
	$(BIN)/pip install -q mypy ruff
	@touch $@

# The library for programs in C and other languages: docs/shim.md.
ifeq ($(shell uname -s),Darwin)
LIBRARY := libmtlq.1.dylib
LINK_NAME := libmtlq.dylib
else
LIBRARY := libmtlq.so.1
LINK_NAME := libmtlq.so
endif

install: .venv/installed
	$(BIN)/python setup.py -q build_mtlq --output build/$(LIBRARY)
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 shim/mtlq.h $(DESTDIR)$(PREFIX)/include
	install -m 644 kernels/args.h $(DESTDIR)$(PREFIX)/include/mtlq_args.h
	install -m 755 build/$(LIBRARY) $(DESTDIR)$(PREFIX)/lib
	ln -sf $(LIBRARY) $(DESTDIR)$(PREFIX)/lib/$(LINK_NAME)
	sed "s|@PREFIX@|$(PREFIX)|" mtlq.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/mtlq.pc

# Built against an installed library and run on the cpu device.
examples: PREFIX := $(CURDIR)/build/prefix
examples: install
	examples/run.sh $(PREFIX)

clean:
	rm -rf build .coverage mtlqwen/*.so mtlqwen/*.dylib mtlqwen/*.c
