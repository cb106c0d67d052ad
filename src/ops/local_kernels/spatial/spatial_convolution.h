// Local kernels of windows over dimensions that are split (halo_exchange.h).
#pragma once

#include "ops/local_kernels/local_kernel.h"

namespace dtensor {

// Whether a convolution's input is split along one of its places (dimension 2 and on).
bool shards_spatial_dims(const TensorSpec* input);
// `groups`: those of this rank's channels.
void convolve_sharded_spatial(LocalCall& call, std::int64_t groups);
void convolve_sharded_spatial_backward(LocalCall& call, std::int64_t groups);
// The same where it is transposed.
void conv_transpose_sharded_spatial(LocalCall& call, std::int64_t groups);
void conv_transpose_sharded_spatial_backward(LocalCall& call, std::int64_t groups);
// constant_pad_nd along split dimensions; negative amounts cut.
void pad_split(LocalCall& call);
// flip of split dimensions.
void flip_split(LocalCall& call);

}  // namespace dtensor
