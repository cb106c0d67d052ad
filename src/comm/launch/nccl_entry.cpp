// The CUDA library registers its entry point here, so that this library does not depend on CUDA.
#include <atomic>

#include "comm/launch/launchers.h"

namespace dtensor {
namespace {
std::atomic<ProcessMain> registered{nullptr};
}

ProcessMain nccl_main() { return registered.load(); }

void register_nccl_main(ProcessMain main) { registered.store(main); }

}  // namespace dtensor
