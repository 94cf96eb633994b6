# A thin front for CMake: the targets people type. Everything real is in CMakeLists.txt.
#
#   make            build/tandem
#   make demo       set-up, build, and a scripted chat that compares drafted with plain decoding
#   make test       set-up, build, every test
#   make asan       every test under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan
#   make tsan       the tests of what threads share under ThreadSanitizer, in build-tsan (some minutes)
#   make test-isas  every test once for each level of kernels of this machine, as if it had no better (ISAS="avx2 ...")
#   make neon       the ARM kernels: cross-build tests into build-neon and run them under qemu, without and with the
#                   dot-product extension (some minutes; scripts/setup --neon installs what it takes)
#   make bench      build and run the benchmarks
#   make fuzz       build the fuzz targets with clang and run each for FUZZ_SECONDS
#   make install    into PREFIX (/usr/local), under DESTDIR
#   make clean      remove the build directories
#
# Variables: BUILD (directory), JOBS, WERROR=ON, CMAKE_ARGS, TEST_ARGS (passed to ctest), FUZZ_SECONDS, BENCH_ARGS, PREFIX.

BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS ?= 2
WERROR ?= OFF
FUZZ_SECONDS ?= 30
PREFIX ?= /usr/local
CMAKE ?= cmake
CTEST ?= ctest

# A build directory keeps the generator it began with.
generator = $(if $(wildcard $(1)/CMakeCache.txt),,$(if $(shell command -v ninja 2>/dev/null),-G Ninja))
configure = $(CMAKE) -S . -B $(1) $(call generator,$(1)) -DTD_WERROR=$(WERROR) $(2) $(CMAKE_ARGS) >$(1).log 2>&1 \
	&& rm -f $(1).log || { cat $(1).log; rm -f $(1).log; exit 1; }

# The tests need cmocka; somebody who only wants the program does not.
tests_if_possible = -DTD_TESTS=$(if $(shell pkg-config --exists cmocka 2>/dev/null && echo yes),ON,OFF)

.PHONY: all setup demo test asan tsan test-isas neon bench fuzz install clean

all:
	@scripts/setup --check
	@$(call configure,$(BUILD),$(tests_if_possible))
	@$(CMAKE) --build $(BUILD) --target tandem -j $(JOBS)

setup:
	@scripts/setup --tests

demo:
	@scripts/setup
	@$(MAKE) --no-print-directory all
	@$(BUILD)/tandem demo

test:
	@scripts/setup --tests
	@$(call configure,$(BUILD),-DTD_TESTS=ON)
	@$(CMAKE) --build $(BUILD) -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD) --output-on-failure -j $(TEST_JOBS) $(TEST_ARGS)

asan:
	@scripts/setup --tests
	@$(call configure,build-asan,-DTD_TESTS=ON -DTD_ASAN=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O2 -g1")
	@$(CMAKE) --build build-asan -j $(JOBS)
	@UBSAN_OPTIONS=print_stacktrace=1 \
		$(CTEST) --test-dir build-asan --output-on-failure -j $(TEST_JOBS) $(TEST_ARGS)

# What threads share: the pool, the operations that deal out tiles, and the scheduler. Where addresses are randomised by
# more bits than GCC's ThreadSanitizer expects (vm.mmap_rnd_bits over 28), it stops at "unexpected memory mapping".
tsan_tests = test_pool test_attention test_delta test_linear test_moe test_rows test_scheduler
tsan:
	@scripts/setup --tests
	@$(call configure,build-tsan,-DTD_TESTS=ON -DTD_TSAN=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O2 -g1")
	@$(CMAKE) --build build-tsan --target $(tsan_tests) -j $(JOBS)
	@TSAN_OPTIONS=halt_on_error=1 $$(setarch -R true 2>/dev/null && echo setarch -R) $(CTEST) --test-dir build-tsan \
		--output-on-failure -j $(TEST_JOBS) -R '/($(subst $(eval ) ,|,$(strip $(tsan_tests))))$$' $(TEST_ARGS)

# With TD_AUTO_ISA a build takes the named level for the best; only one file is compiled again.
ISAS ?= generic avx2 avxvnni avx512
test-isas:
	@scripts/setup --tests
	@set -e; for isa in $(ISAS); do echo "with $$isa:"; \
		$(MAKE) --no-print-directory test BUILD=build-isas CMAKE_ARGS="-DTD_AUTO_ISA=$$isa $(CMAKE_ARGS)"; done

# What runs there: all of the kernels, and families, checkpoints and rounds on top of them.
neon_tests = $(notdir $(basename $(wildcard tests/tensor/test_*.c tests/backend/test_*.c))) \
	test_gemma4_vectors test_qwen35_vectors test_gguf_vectors test_round
neon:
	@scripts/setup --neon
	@$(call configure,build-neon,-DTD_TESTS=ON -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake)
	@$(CMAKE) --build build-neon --target $(neon_tests) -j $(JOBS)
	@for cpu in cortex-a53 max; do echo "on $$cpu:"; QEMU_CPU=$$cpu $(CTEST) --test-dir build-neon \
		--output-on-failure -j $(TEST_JOBS) -R '/($(subst $(eval ) ,|,$(strip $(neon_tests))))$$' $(TEST_ARGS) \
		|| exit 1; done

bench:
	@scripts/setup
	@$(call configure,$(BUILD),$(tests_if_possible))
	@$(CMAKE) --build $(BUILD) --target tandem benches -j $(JOBS)
	@scripts/bench $(BUILD) $(BENCH_ARGS)

fuzz:
	@scripts/setup
	@command -v clang >/dev/null || { echo "make fuzz needs clang (Debian: apt-get install clang)" >&2; exit 1; }
	@CC=clang && export CC && $(call configure,build-fuzz,-DTD_TESTS=ON -DTD_FUZZ=ON -DTD_ASAN=ON)
	@$(CMAKE) --build build-fuzz --target fuzzers -j $(JOBS)
	@scripts/fuzz build-fuzz $(FUZZ_SECONDS)

install: all
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-asan build-tsan build-isas build-fuzz build-neon
