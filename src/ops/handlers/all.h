// The one call that makes every local kernel known, so that static archives keep them.
#pragma once

namespace dtensor {

// Idempotent and thread-safe.
void register_all_local_kernels();

}  // namespace dtensor
