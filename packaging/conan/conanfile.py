"""conan create packaging/conan: builds the library from this checkout and a consumer against it. LibTorch is the system's:
LIBTORCH, or the active Python's torch (cmake/LocateLibTorch.cmake); so are nlohmann_json and, where it is there, MPI."""
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class DTensor(ConanFile):
    name = "dtensor"
    version = "0.1.0"
    description = "Distributed tensors under ATen's dispatcher"
    license = "see LICENSE"
    settings = "os", "compiler", "build_type", "arch"
    package_type = "shared-library"
    parts = "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "CHANGELOG.md", "cmake/*", "docs/*", "examples/*", "include/*", "src/*"

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in self.parts:
            copy(self, pattern, root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        for part in ("TESTS", "APPS", "EXAMPLES", "TOOLS", "BENCH"):
            toolchain.cache_variables["DTENSOR_BUILD_" + part] = False
        toolchain.cache_variables["DTENSOR_WITH_PYTHON"] = "OFF"  # pip's
        toolchain.user_presets_path = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The package's own dtensorConfig.cmake finds LibTorch and says which release it must be.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append("lib/cmake/dtensor")
        self.cpp_info.libs = ["dtensor"]
