// The CommBackend over NCCL.
#pragma once

#include <memory>

#include "comm/nccl/id_exchange.h"
#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// The world of `size` ranks, of which this is `rank`, on CUDA device `device` of this machine. `record`: of what this
// rank does, on whatever backend. Collective.
std::shared_ptr<CommBackend> make_world_backend(std::shared_ptr<IdExchange> ids, int rank, int size, int device,
                                                RunOptions options, std::shared_ptr<RankRecord> record);

}  // namespace dtensor::nccl
