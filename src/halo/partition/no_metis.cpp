// For builds without METIS.
#include <c10/util/Exception.h>

#include "dtensor/halo.h"
#include "halo/partition/metis.h"

namespace dtensor {

bool is_metis_available() { return false; }

namespace halo {

at::Tensor metis_parts(const at::Tensor&, const at::Tensor&, std::int64_t) {
  TORCH_CHECK(false, "partition_graph: expected a build with METIS, got one without: install it (libmetis-dev) and ",
              "configure with -DDTENSOR_WITH_METIS=ON, or pass owners of your own to graph_part()");
}

}  // namespace halo
}  // namespace dtensor
