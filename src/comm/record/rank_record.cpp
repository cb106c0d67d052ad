// The text of a record, and the error for an object used by another rank.
#include "comm/record/rank_record.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor {
namespace {

constexpr std::uint64_t kShown = 8;

}  // namespace

RankRecord::RankRecord(std::int64_t rank, int size, std::uint64_t run)
    : name_("rank " + std::to_string(rank) + " of " + std::to_string(size)) {
  if (run > 0) name_ += " of run " + std::to_string(run);
}

std::string RankRecord::recent() const {
  const auto end = next_.load(std::memory_order_acquire);
  std::string out;
  for (auto at = end - std::min(end, kShown); at < end; ++at) {
    const Entry& entry = entries_[at % kKept];
    const auto* name = entry.name.load(std::memory_order_acquire);
    const auto collective = entry.collective.load(std::memory_order_relaxed);
    if (next_.load(std::memory_order_acquire) >= at + kKept) continue;  // overwritten meanwhile
    if (collective == 0 && name == nullptr) continue;                   // half written by another thread of the rank
    out += out.empty() ? "" : ", ";
    if (collective == 0) {
      out += *name;
      continue;
    }
    out += to_string(static_cast<CollectiveKind>((collective >> kKindShift) - 1));
    out += " #" + std::to_string(collective & ((std::uint64_t{1} << kKindShift) - 1));
    out += name == nullptr ? "" : " on " + *name;
  }
  return out;
}

void RankRecord::record_error(std::string text) {
  const std::lock_guard lock(error_mutex_);
  error_ = std::move(text);
  error_at_.store(next_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

std::string RankRecord::last_error() const {
  const auto at = error_at_.load(std::memory_order_acquire);
  if (at == 0 || next_.load(std::memory_order_acquire) - (at - 1) > kShown) return "";
  const std::lock_guard lock(error_mutex_);
  return error_;
}

std::string failed_before(const std::vector<std::pair<std::int64_t, std::string>>& errors) {
  std::string out;
  bool differ = false;
  for (const auto& [rank, text] : errors) {
    differ = differ || text != errors[0].second;
    if (text.empty()) continue;
    out += (out.empty() ? "rank " : ", rank ") + std::to_string(rank) + " failed: " + text;
  }
  return differ ? out + "; then " : "";
}

void throw_wrong_rank(const RankRecord& owner, const std::string& what) {
  TORCH_CHECK(false, what, " of ", owner.str(), " is used by a thread of ", RankRecord::current()->str(),
              ". Each rank has its own tensors, meshes and communicators: make them inside its function. To share "
              "values between ranks, or "
              "with an enclosing run_local, use regular tensors (full_tensor(), to_local()).");
}

}  // namespace dtensor
