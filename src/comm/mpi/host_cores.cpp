// A launcher may bind each rank to cores of its own, all ranks of a host to the same ones, or none. The affinity masks
// of the ranks tell these cases apart.
#include "comm/mpi/host_cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "comm/mpi/api.h"
#include "comm/mpi/transport.h"

namespace dtensor::mpi {
namespace {

// Ranks of this job on this host as the launcher counts them: `comm` may have fewer. 0: it does not say.
int ranks_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}) {
    if (const char* text = std::getenv(name); text != nullptr) return std::max(0, std::atoi(text));
  }
  return 0;
}

}  // namespace

HostCores cores_of_host(MPI_Comm comm) {
  MPI_Comm host = api().constants.no_comm;
  check(api().comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, api().constants.no_info, &host), "MPI_Comm_split_type");
  HostCores result;
  api().comm_size(host, &result.ranks);
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof(own), &own);
  std::vector<cpu_set_t> all(static_cast<std::size_t>(result.ranks));
  const int bytes = static_cast<int>(sizeof(own));
  const int code = api().allgather(&own, bytes, api().constants.byte, all.data(), bytes, api().constants.byte, host);
  api().comm_free(&host);
  check(code, "MPI_Allgather");
  const auto is_own = [&](const cpu_set_t& other) { return CPU_EQUAL(&own, &other) != 0; };
  int sharers = static_cast<int>(std::count_if(all.begin(), all.end(), is_own));
  if (sharers == result.ranks) sharers = std::max(sharers, ranks_by_launcher());
  result.cores_per_rank = std::max(1, CPU_COUNT(&own) / std::max(1, sharers));
  result.ranks = std::max(result.ranks, ranks_by_launcher());
  return result;
}

}  // namespace dtensor::mpi
