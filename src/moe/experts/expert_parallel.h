// Where a layer's experts are, and experts that are split over several ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtensor/moe/layer.h"

namespace dtensor {

struct MixtureOfExperts::Parallel {
  DeviceMesh mesh;
  Communicator ep, etp;  // none: of one rank
  std::vector<std::int64_t> etp_ranks;
  std::vector<std::string> split;  // mesh axes on which parameters stay split
};

namespace moe {

using RunExperts = std::function<at::Tensor(const at::Tensor& rows, at::IntArrayRef counts)>;
// Each rank of `etp` holds a part of the same experts and rows of its own tokens: the rows of all are brought together,
// run, and the parts summed where the rows came from. So only 1/size of the tokens crosses the ranks of ep.
at::Tensor run_over_etp(const at::Tensor& rows, at::IntArrayRef counts, const Communicator& etp, const RunExperts& run);

}  // namespace moe
}  // namespace dtensor
