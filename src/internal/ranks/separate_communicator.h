// Communicators whose collectives do not wait for those of the program. Collectives of one communicator run in order.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// The communicator of these world ranks for one purpose, as MPI_Comm_dup creates. The first call creates it,
// collectively; later calls return the same one, because communicators use memory of the device. `label` names it in
// messages.
DTENSOR_API Communicator separate_communicator(const DeviceMesh& mesh, const std::vector<std::int64_t>& ranks,
                                               const std::string& label, const std::string& purpose);

}  // namespace dtensor
