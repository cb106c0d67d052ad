// Point-to-point messages between MPI processes.
#pragma once

#include "comm/mpi/collective.h"

namespace dtensor::mpi {

Work start_message(const std::shared_ptr<Members>& members, const CollectiveCall& call, const at::Tensor& tensor);

}  // namespace dtensor::mpi
