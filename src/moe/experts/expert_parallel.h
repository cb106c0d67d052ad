// Location of a layer's experts, and experts that are split over several ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtensor/moe/layer.h"
#include "moe/experts/expert_rows.h"

namespace dtensor {

struct MixtureOfExperts::Parallel {
  DeviceMesh mesh;
  Communicator ep, etp;  // undefined: one rank
  std::vector<std::int64_t> etp_ranks;
  std::vector<std::string> split;  // mesh axes on which parameters stay sharded
  // For a BitIdentical scope: the ranks with this rank's experts, edp x etp, and the ranks that send them tokens.
  DeviceMesh holders;
  moe::RowSources sources;
};

namespace moe {

using RunExperts = std::function<at::Tensor(const at::Tensor& rows, at::IntArrayRef counts)>;
// Each rank of `etp` holds a part of the same experts and rows of different tokens. All-gathers the rows, runs the
// experts and reduce-scatters the results. So only 1/size of the tokens is exchanged between ranks of ep.
at::Tensor run_over_etp(const at::Tensor& rows, at::IntArrayRef counts, const Communicator& etp, const RunExperts& run);

}  // namespace moe
}  // namespace dtensor
