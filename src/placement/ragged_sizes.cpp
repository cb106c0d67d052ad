// The table of size lists. Placements are trivially destructible values, so the use of a list cannot be counted. The
// table only grows, up to a bound that only programs with new lists in each step reach.
#include "placement/ragged_sizes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace dtensor {
namespace {

constexpr std::size_t kMaxRaggedLists = 1u << 20;

struct Table {
  std::mutex mutex;
  std::deque<std::vector<std::int64_t>> lists;  // a deque, so that entries never move
  std::map<std::vector<std::int64_t>, std::int32_t> numbers;
};

// Never destroyed: placements with static lifetime may be used during static destruction.
Table& table() {
  static auto* table = new Table();
  return *table;
}

}  // namespace

std::int32_t intern_ragged_sizes(c10::IntArrayRef sizes) {
  TORCH_CHECK(!sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](auto n) { return n >= 0; }),
              "RaggedShard: expected a non-negative number of elements for each rank, got ", sizes);
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto found = t.numbers.find(sizes.vec());
  if (found != t.numbers.end()) return found->second;
  TORCH_CHECK(t.lists.size() < kMaxRaggedLists, "RaggedShard: this process created ", kMaxRaggedLists,
              " different lists of sizes; use ragged shards for fixed layouts, not for sizes that change in each step");
  t.lists.push_back(sizes.vec());
  return t.numbers.emplace(sizes.vec(), static_cast<std::int32_t>(t.lists.size())).first->second;
}

c10::IntArrayRef ragged_sizes_by_id(std::int32_t number) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  return t.lists[static_cast<std::size_t>(number - 1)];
}

}  // namespace dtensor
