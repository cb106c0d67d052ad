// Libraries and modules that this one does not depend on register their entry points here: NCCL, dry runs.
#include <atomic>

#include "comm/launch/launchers.h"

namespace dtensor {
namespace {
std::atomic<ProcessMain> registered{nullptr};
std::atomic<SimulationMain> registered_simulation{nullptr};
}  // namespace

ProcessMain nccl_main() { return registered.load(); }
void register_nccl_main(ProcessMain main) { registered.store(main); }

SimulationMain simulation_main() { return registered_simulation.load(); }
void register_simulation_main(SimulationMain main) { registered_simulation.store(main); }

}  // namespace dtensor
