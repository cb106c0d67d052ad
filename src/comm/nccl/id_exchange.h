// How the members of a new NCCL communicator learn its id, and how ranks that wait on their GPUs hear that one aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::nccl {

class IdExchange {
 public:
  virtual ~IdExchange() = default;
  // The first of `members` (world ranks) gives `bytes`, the others receive them. Called by the members alone; `key` is
  // the same on all of them and never used twice.
  virtual void share(void* data, std::size_t bytes, const std::vector<std::int64_t>& members,
                     const std::string& key) = 0;
  // Tells all ranks of the run, once.
  virtual void abort(const std::string& text) = 0;
  // What a rank told; empty: nothing. Asked often, from any thread.
  virtual std::string failure() = 0;
};

// Over a communicator of the same ranks that moves CPU tensors.
std::shared_ptr<IdExchange> exchange_over(const Communicator& cpu);

}  // namespace dtensor::nccl
