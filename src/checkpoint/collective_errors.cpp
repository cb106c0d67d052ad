// Reductions and errors across ranks. Tensors from at::from_blob are not visible to dispatch modes.
#include "checkpoint/collective_errors.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::files {
namespace {

at::Tensor view_of(std::vector<std::int64_t>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong);
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

}  // namespace

void reduce_numbers(const Communicator& ranks, std::vector<std::int64_t>& numbers, ReduceOp op) {
  if (!numbers.empty()) ranks.all_reduce(view_of(numbers), op).wait();
}

// Sums modulo 2^64: the 32-bit halves are summed separately, so that int64 does not overflow.
std::vector<Checksum> sum_over_ranks(const Communicator& ranks, const std::vector<Checksum>& own) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(3 * own.size());
  for (const Checksum& c : own) {
    numbers.push_back(static_cast<std::int64_t>(c.sum & 0xFFFFFFFFu));
    numbers.push_back(static_cast<std::int64_t>(c.sum >> 32));
    numbers.push_back(c.count);
  }
  reduce_numbers(ranks, numbers, ReduceOp::sum);
  std::vector<Checksum> all;
  all.reserve(own.size());
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    all.push_back(
        {static_cast<std::uint64_t>(numbers[i]) + (static_cast<std::uint64_t>(numbers[i + 1]) << 32), numbers[i + 2]});
  }
  return all;
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

}  // namespace dtensor::files
