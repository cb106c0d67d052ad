// Where the CUDA library leaves its entry point, so that this library needs nothing of CUDA.
#include <atomic>

#include "comm/launch/launchers.h"

namespace dtensor {
namespace {
std::atomic<ProcessMain> registered{nullptr};
}

ProcessMain nccl_main() { return registered.load(); }

void register_nccl_main(ProcessMain main) { registered.store(main); }

}  // namespace dtensor
