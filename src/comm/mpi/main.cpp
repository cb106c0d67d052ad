// To come.
#include "comm/launchers.h"

namespace dtensor {

ProcessMain mpi_main() { return nullptr; }

}  // namespace dtensor
