// Libraries and modules that this one does not depend on register their entry points here: NCCL, dry runs.
#include <atomic>

#include "comm/launch/launchers.h"

namespace dtensor {
namespace {
NcclEntries registered_nccl;  // written while a library is loaded, by load_nccl() under its lock
std::atomic<SimulationMain> registered_simulation{nullptr};
}  // namespace

const NcclEntries& nccl_entries() { return registered_nccl; }
void register_nccl(const NcclEntries& entries) { registered_nccl = entries; }

SimulationMain simulation_main() { return registered_simulation.load(); }
void register_simulation_main(SimulationMain main) { registered_simulation.store(main); }

}  // namespace dtensor
