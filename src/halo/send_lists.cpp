// Checks send lists. A rank with an invalid list takes part in the exchange of sizes, so that all ranks report the
// error.
#include "halo/send_lists.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "object_collectives/collective_errors.h"
#include "object_collectives/object_collectives.h"

namespace dtensor::halo {
namespace {

constexpr std::int64_t kInvalid = -1;  // sent as a size by a rank with invalid lists, which reports its own error

at::Tensor view_of(std::vector<std::int64_t>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong);
}

at::Tensor checked_list(const at::Tensor& list, std::size_t to, std::int64_t owned) {
  TORCH_CHECK(list.defined() && !is_dtensor(list), "the send list for rank ", to, ": expected a regular tensor, got ",
              list.defined() ? "a DTensor" : "an undefined tensor");
  TORCH_CHECK(list.dim() == 1 && (list.scalar_type() == at::kInt || list.scalar_type() == at::kLong),
              "the send list for rank ", to, ": expected int32 or int64 row numbers of shape [n], got ",
              list.scalar_type(), " ", list.sizes());
  at::Tensor rows = list.to(at::kCPU, at::kLong).contiguous();
  const auto* row = rows.const_data_ptr<std::int64_t>();
  const auto* end = row + rows.numel();
  const auto* bad = std::find_if(row, end, [&](auto value) { return value < 0 || value >= owned; });
  TORCH_CHECK(bad == end, "the send list for rank ", to, ": expected rows in [0, ", owned,
              "), the rows that this rank ", "owns, got ", *bad, " at position ", bad - row);
  return rows;
}

void check_arguments(const Communicator& ranks, std::int64_t owned, at::TensorList lists, at::IntArrayRef expected) {
  const auto size = static_cast<std::size_t>(ranks.size());
  TORCH_CHECK(owned >= 0, "expected a number of owned rows of at least 0, got ", owned);
  TORCH_CHECK(lists.size() == size, "expected one send list for each of ", size, " ranks, got ", lists.size(),
              "; pass empty lists for ranks that receive nothing");
  TORCH_CHECK(expected.empty() || expected.size() == size, "expected receive counts for each of ", size,
              " ranks (or none), got ", expected.size());
}

// Fills the parts of `result` that need no other rank.
void read_lists(SendLists& result, const Communicator& ranks, std::int64_t owned, at::TensorList lists,
                at::IntArrayRef expected) {
  check_arguments(ranks, owned, lists, expected);
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> counts;
  for (std::size_t to = 0; to < lists.size(); ++to) {
    parts.push_back(checked_list(lists[to], to, owned));
    counts.push_back(parts.back().numel());
  }
  result.index = at::cat(parts);
  result.send_counts = std::move(counts);
}

void exchange_counts(SendLists& lists, const Communicator& ranks) {
  lists.receive_counts.resize(lists.send_counts.size());
  ranks.all_to_all(view_of(lists.receive_counts).split(1), view_of(lists.send_counts).split(1)).wait();
}

void check_receive_counts(const SendLists& lists, at::IntArrayRef expected) {
  for (std::size_t from = 0; from < expected.size(); ++from) {
    const auto sent = lists.receive_counts[from];
    TORCH_CHECK(sent == expected[from] || sent == kInvalid, "expected ", expected[from], " rows from rank ", from,
                ", but its send list for this rank has ", sent);
  }
}

bool sends_to_others(const SendLists& lists, int me) {
  for (int to = 0; to < static_cast<int>(lists.send_counts.size()); ++to) {
    if (to != me && lists.send_counts[to] > 0) return true;
  }
  return false;
}

}  // namespace

SendLists agree_on_send_lists(const Communicator& ranks, std::int64_t owned, at::TensorList lists,
                              at::IntArrayRef expected_counts) {
  const LocalBelowAutogradGuard local;
  SendLists result;
  std::string error = error_of([&] { read_lists(result, ranks, owned, lists, expected_counts); });
  if (!error.empty()) result.send_counts.assign(static_cast<std::size_t>(ranks.size()), kInvalid);
  exchange_counts(result, ranks);
  if (error.empty()) error = error_of([&] { check_receive_counts(result, expected_counts); });
  std::vector<std::int64_t> any{error.empty() ? 0 : 1, sends_to_others(result, ranks.rank()) ? 1 : 0};
  reduce_numbers(ranks, any, ReduceOp::max);
  TORCH_CHECK(any[0] == 0, "GraphHalo: ", list_errors(all_gather_strings(ranks, error)));
  result.remote = any[1] != 0;
  return result;
}

}  // namespace dtensor::halo
