// Steps of training that remove noise from volumes, on one device or on a mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/mesh.h"
#include "model.h"

namespace unet {

struct Options {
  std::vector<std::int64_t> sizes;  // of the volume; multiples of 4
  std::int64_t channels = 4;
  double rate = 0.1;
};

// The model, its data, and where they are.
class Training {
 public:
  explicit Training(const Options& options);
  // The volume is sharded along depth, height and width by the axes of `mesh`, in this order. Parameters are
  // replicated.
  Training(const Options& options, const dtensor::DeviceMesh& mesh);

  // One step of gradient descent. Returns the loss. Collective on a mesh.
  double step();

  const Parameters& parameters() const { return parameters_; }
  // Bytes that this rank received in the last forward and backward pass.
  std::int64_t forward_bytes() const { return forward_bytes_; }
  std::int64_t backward_bytes() const { return backward_bytes_; }

 private:
  double rate_;
  Parameters parameters_;
  at::Tensor noisy_, clean_;
  std::int64_t forward_bytes_ = 0, backward_bytes_ = 0;
};

// The largest difference of the parameters. Collective if one of them is on a mesh.
double largest_difference(const Parameters& a, const Parameters& b);

}  // namespace unet
