// METIS's k-way partition. The width of its integers is that of its header.
#include "halo/partition/metis.h"

#include <ATen/ATen.h>
#include <metis.h>

#include <limits>
#include <mutex>

#include "dtensor/halo.h"

namespace dtensor {

bool is_metis_available() { return true; }

namespace halo {

at::Tensor metis_parts(const at::Tensor& offsets, const at::Tensor& neighbors, std::int64_t parts) {
  constexpr auto kDtype = sizeof(idx_t) == 4 ? at::kInt : at::kLong;
  TORCH_CHECK(neighbors.numel() <= std::numeric_limits<idx_t>::max(), "partition_graph: expected at most ",
              std::numeric_limits<idx_t>::max(), " ends of edges, the limit of this METIS, got ", neighbors.numel());
  at::Tensor begin = offsets.to(kDtype), adjacent = neighbors.to(kDtype);
  at::Tensor part = at::zeros({offsets.numel() - 1}, kDtype);
  idx_t nodes = static_cast<idx_t>(part.numel()), constraints = 1, count = static_cast<idx_t>(parts), cut = 0;
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = 1;
  static std::mutex mutex;  // METIS's random numbers are state of the process
  const std::lock_guard lock(mutex);
  const int status =
      METIS_PartGraphKway(&nodes, &constraints, static_cast<idx_t*>(begin.mutable_data_ptr()),
                          static_cast<idx_t*>(adjacent.mutable_data_ptr()), nullptr, nullptr, nullptr, &count, nullptr,
                          nullptr, options, &cut, static_cast<idx_t*>(part.mutable_data_ptr()));
  TORCH_CHECK(status == METIS_OK, "partition_graph: METIS failed with status ", status, " for ", nodes, " nodes and ",
              count, " parts");
  return part.to(at::kLong);
}

}  // namespace halo
}  // namespace dtensor
