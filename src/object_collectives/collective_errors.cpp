// Tensors from at::from_blob are not visible to dispatch modes.
#include "object_collectives/collective_errors.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "object_collectives/object_collectives.h"

namespace dtensor {

void reduce_numbers(const Communicator& ranks, std::vector<std::int64_t>& numbers, ReduceOp op) {
  if (numbers.empty()) return;
  const auto count = static_cast<std::int64_t>(numbers.size());
  ranks.all_reduce(at::from_blob(numbers.data(), {count}, at::kLong), op).wait();
}

std::string list_errors(const std::vector<std::string>& errors) {
  const bool same = std::all_of(errors.begin(), errors.end(), [&](const auto& e) { return e == errors[0]; });
  if (same) return errors[0];
  std::string text;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + errors[rank];
  }
  return text;
}

std::string gather_errors(const Communicator& ranks, const std::string& error) {
  std::vector<std::int64_t> failed{error.empty() ? 0 : 1};
  reduce_numbers(ranks, failed, ReduceOp::max);
  return failed[0] == 0 ? "" : list_errors(all_gather_strings(ranks, error));
}

void raise_on_all(const Communicator& ranks, const std::string& what, const std::string& error) {
  const std::string errors = gather_errors(ranks, error);
  TORCH_CHECK(errors.empty(), what, ": ", errors);
}

}  // namespace dtensor
