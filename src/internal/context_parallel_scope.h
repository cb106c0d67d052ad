// Context parallelism of programs with regular tensors, for the Python bindings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/mesh.h"

namespace dtensor {

// While it lives, regular tensors that ATen's scaled_dot_product_attention receives on this thread are this rank's
// zigzag shards of the sequence, and attention covers the full sequence. A function that runs again in backward sees
// the scope of its forward pass.
class DTENSOR_API ContextParallelScope {
 public:
  // `lengths`: full lengths of the sequences that the program has sharded.
  ContextParallelScope(const DeviceMesh& mesh, std::vector<std::int64_t> lengths);

  static bool current();  // on this thread

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
