# Packages: `cpack -G DEB` and `cpack -G TGZ` in a build folder. They do not contain LibTorch. find_package(dtensor)
# finds it, and requires the version that the package was built with (cmake/dtensorConfig.cmake.in).
set(CPACK_PACKAGE_NAME dtensor)
set(CPACK_PACKAGE_VENDOR "the dtensor authors")
set(CPACK_PACKAGE_CONTACT "the dtensor authors <dtensor@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_RESOURCE_FILE_README ${CMAKE_SOURCE_DIR}/README.md)
set(CPACK_PACKAGE_FILE_NAME "dtensor-${PROJECT_VERSION}-libtorch-${LIBTORCH_VERSION}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)

set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# Listed explicitly, because shlibdeps requires a package that contains libtorch_cpu.so, and none does.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libstdc++6 (>= 12), libgcc-s1")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake (>= 3.25)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenmpi3, openmpi-bin")
include(CPack)
