// Collectives of checkpoints: errors of all ranks, and checksums.
#pragma once

#include <vector>

#include "checkpoint/format/checksum.h"
#include "object_collectives/collective_errors.h"
#include "object_collectives/object_collectives.h"

namespace dtensor::files {

// The sum of all ranks' checksums.
std::vector<Checksum> sum_over_ranks(const Communicator& ranks, const std::vector<Checksum>& own);

}  // namespace dtensor::files
