// Exchanges the sizes first and then the bytes, on tensors that dispatch modes do not see.
#include "object_collectives/object_collectives.h"

#include <ATen/ATen.h>

namespace dtensor {
namespace {

at::Tensor view_of(std::string& text) {
  return at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte);
}

at::Tensor view_of(std::int64_t& number) { return at::from_blob(&number, {1}, at::kLong); }

}  // namespace

std::vector<std::string> all_gather_strings(const Communicator& ranks, const std::string& text) {
  const auto count = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> sizes(count);
  auto own = static_cast<std::int64_t>(text.size());
  std::vector<at::Tensor> outputs;
  for (auto& size : sizes) outputs.push_back(view_of(size));
  ranks.all_gather(outputs, view_of(own)).wait();
  std::vector<std::string> texts(count);
  outputs.clear();
  for (std::size_t rank = 0; rank < count; ++rank) {
    texts[rank].resize(static_cast<std::size_t>(sizes[rank]));
    outputs.push_back(view_of(texts[rank]));
  }
  std::string mine = text;
  ranks.all_gather(outputs, view_of(mine)).wait();
  return texts;
}

std::string broadcast_string(const Communicator& ranks, const std::string& text, int root) {
  auto size = static_cast<std::int64_t>(text.size());
  ranks.broadcast(view_of(size), root).wait();
  std::string result = text;
  result.resize(static_cast<std::size_t>(size));
  ranks.broadcast(view_of(result), root).wait();
  return result;
}

}  // namespace dtensor
