// Local kernels of windows over dimensions that are split (windows.h).
#pragma once

#include "ops/local_call.h"

namespace dtensor {

// Whether a convolution's input is split along one of its places (dimension 2 and on).
bool splits_places(const TensorSpec* input);
// `groups`: those of this rank's channels.
void convolve_split_places(LocalCall& call, std::int64_t groups);
void convolve_split_places_backward(LocalCall& call, std::int64_t groups);
// The same where it is transposed.
void convolve_transposed_places(LocalCall& call, std::int64_t groups);
void convolve_transposed_places_backward(LocalCall& call, std::int64_t groups);
// constant_pad_nd along split dimensions; negative amounts cut.
void pad_split(LocalCall& call);
// flip of split dimensions.
void flip_split(LocalCall& call);

}  // namespace dtensor
