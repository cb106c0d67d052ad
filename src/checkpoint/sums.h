// Checksums of all ranks added up.
#pragma once

#include <vector>

#include "checkpoint/checksum.h"
#include "dtensor/comm.h"

namespace dtensor::files {

// Collective.
std::vector<Checksum> add_up(const Communicator& ranks, const std::vector<Checksum>& own);

// What `copies` of the same give.
inline Checksum times(const Checksum& one, std::int64_t copies) {
  return {one.sum * static_cast<std::uint64_t>(copies), one.count * copies};
}

}  // namespace dtensor::files
