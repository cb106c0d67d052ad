"""spack repo add packaging/spack && spack dev-build dtensor@main"""
from spack.package import *


class Dtensor(CMakePackage):
    """Distributed tensors under ATen's dispatcher: a C++20 library that turns a single-device model into a distributed one."""

    version("main")
    variant("mpi", default=True, description="ranks as MPI processes")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("nlohmann-json")
    depends_on("py-torch@2.15")
    depends_on("mpi", when="+mpi")

    def cmake_args(self):
        torch = join_path(self.spec["py-torch"].package.module.python_platlib, "torch")
        parts = [self.define("DTENSOR_BUILD_" + part, False) for part in ("TESTS", "EXAMPLES", "TOOLS", "BENCH")]
        mpi = self.define("DTENSOR_WITH_MPI", "ON" if "+mpi" in self.spec else "OFF")
        return [self.define("LIBTORCH", torch), self.define("DTENSOR_WITH_PYTHON", "OFF"), mpi, *parts]
