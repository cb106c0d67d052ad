# An overlay port of this checkout: vcpkg install dtensor --overlay-ports=packaging/vcpkg
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DDTENSOR_BUILD_TESTS=OFF -DDTENSOR_BUILD_APPS=OFF -DDTENSOR_BUILD_EXAMPLES=OFF -DDTENSOR_BUILD_TOOLS=OFF -DDTENSOR_BUILD_BENCH=OFF
    -DDTENSOR_WITH_PYTHON=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/dtensor)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
