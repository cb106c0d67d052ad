// Local kernels of operators with windows over sharded dimensions (halo_exchange.h).
#pragma once

#include "ops/local_kernels/local_kernel.h"

namespace dtensor {

// Whether a convolution's input is sharded along a spatial dimension (2 and later).
bool shards_spatial_dims(const TensorSpec* input);
// `groups`: the number of groups of this rank's channels.
void convolve_sharded_spatial(LocalCall& call, std::int64_t groups);
void convolve_sharded_spatial_backward(LocalCall& call, std::int64_t groups);
// The same for transposed convolutions.
void conv_transpose_sharded_spatial(LocalCall& call, std::int64_t groups);
void conv_transpose_sharded_spatial_backward(LocalCall& call, std::int64_t groups);
// constant_pad_nd along sharded dimensions; negative amounts crop.
void pad_split(LocalCall& call);
// flip of sharded dimensions.
void flip_split(LocalCall& call);

}  // namespace dtensor
