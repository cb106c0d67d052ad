// Texts and numbers between ranks, over memory that no dispatch mode sees.
#include "checkpoint/collective_errors.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::files {
namespace {

at::Tensor view_of(std::string& text) {
  return at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte);
}

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

std::vector<std::string> gather_texts(const Communicator& ranks, const std::string& text) {
  const auto count = static_cast<std::size_t>(ranks.size());
  std::vector<std::vector<std::int64_t>> sizes(count, std::vector<std::int64_t>(1));
  std::vector<std::int64_t> own{static_cast<std::int64_t>(text.size())};
  std::vector<at::Tensor> outputs;
  for (auto& size : sizes) outputs.push_back(view_of(size));
  ranks.all_gather(outputs, view_of(own)).wait();
  std::vector<std::string> texts(count);
  outputs.clear();
  for (std::size_t rank = 0; rank < count; ++rank) {
    texts[rank].resize(static_cast<std::size_t>(sizes[rank][0]));
    outputs.push_back(view_of(texts[rank]));
  }
  std::string mine = text;
  ranks.all_gather(outputs, view_of(mine)).wait();
  return texts;
}

std::string broadcast_text(const Communicator& ranks, const std::string& text, int root) {
  std::vector<std::int64_t> size{static_cast<std::int64_t>(text.size())};
  ranks.broadcast(view_of(size), root).wait();
  std::string result = text;
  result.resize(static_cast<std::size_t>(size[0]));
  ranks.broadcast(view_of(result), root).wait();
  return result;
}

void reduce_numbers(const Communicator& ranks, std::vector<std::int64_t>& numbers, ReduceOp op) {
  if (!numbers.empty()) ranks.all_reduce(view_of(numbers), op).wait();
}

void raise_on_all(const Communicator& ranks, const std::string& what, const std::string& error) {
  std::vector<std::int64_t> failed{error.empty() ? 0 : 1};
  reduce_numbers(ranks, failed, ReduceOp::max);
  if (failed[0] == 0) return;
  TORCH_CHECK(false, what, ": ", list_errors(gather_texts(ranks, error)));
}

}  // namespace dtensor::files
