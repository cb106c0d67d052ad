// Errors of the simulated NCCL. Requires the simulator's lock.
#pragma once

#include <nccl.h>

#include <string>

namespace dtensor::test::fake_cuda {

// Stores the text for ncclGetLastError of this thread, and returns `result`.
ncclResult_t refuse(ncclResult_t result, const std::string& text);

// Whether calls may use the communicator now.
ncclResult_t check_usable(ncclComm_t comm, const std::string& call);

}  // namespace dtensor::test::fake_cuda
