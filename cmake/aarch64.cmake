# 64-bit ARM Linux, built on another machine and run there by qemu's user emulation: `make neon`.
#
# Libraries come from TD_SYSROOT, a folder of unpacked Debian arm64 packages (scripts/setup --neon makes it); the C
# library is the cross compiler's own to link with and the folder's to run with. QEMU_CPU in the environment of the tests
# chooses the processor: cortex-a53 has no dot products, max has everything that qemu knows.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

set(TD_SYSROOT "${CMAKE_BINARY_DIR}/sysroot" CACHE PATH "Unpacked arm64 packages")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TD_SYSROOT)
set(CMAKE_FIND_ROOT_PATH ${TD_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# pkg-config looks nowhere else, and puts the folder in front of what it finds.
set(ENV{PKG_CONFIG_DIR} "")
set(ENV{PKG_CONFIG_LIBDIR} "${TD_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TD_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TD_SYSROOT})

# What the libraries need in turn is looked for there too.
set(CMAKE_EXE_LINKER_FLAGS_INIT
    "-Wl,-rpath-link,${TD_SYSROOT}/usr/lib/aarch64-linux-gnu:${TD_SYSROOT}/lib/aarch64-linux-gnu")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${TD_SYSROOT})
