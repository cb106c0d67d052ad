// Finds out which stored tensors are read completely, and sums the checksums of their parts.
#include "checkpoint/load/mapped_checksums.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/read_ranges.h"

namespace dtensor::files {

NamedChecksums::NamedChecksums(const CheckpointIndex& index, bool wanted) {
  if (!wanted) return;
  for (const CheckpointEntry& entry : index.entries) {
    if (entry.checksum) stored_[entry.name].entry = &entry;
  }
}

void NamedChecksums::expect(const std::vector<std::pair<StoredPiece, const CheckpointEntry*>>& pieces,
                            std::int64_t owner_groups) {
  for (const auto& [piece, entry] : pieces) {
    const auto found = stored_.find(entry->name);
    if (found != stored_.end()) found->second.uses.push_back({piece, owner_groups});
  }
}

void NamedChecksums::add(const CheckpointEntry& entry, const ContiguousRanges& ranges, std::int64_t first,
                         const char* data, std::int64_t count) {
  const auto found = stored_.find(entry.name);
  if (found != stored_.end()) found->second.sum += checksum_of(ranges, entry, first, data, count);
}

// Either each use covers the full tensor, or the uses are consecutive ranges of one dimension.
std::int64_t NamedChecksums::times_read(const Stored& stored) {
  const std::int64_t numel = numel_of(stored.entry->sizes);
  std::int64_t times = 0;
  std::vector<Use> uses = stored.uses;
  if (std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return use.piece.numel() == numel; })) {
    for (const Use& use : uses) times += use.owner_groups;
    return times;
  }
  const auto begin = [](const Use& use) { return use.piece.stored_slice.begin; };
  std::sort(uses.begin(), uses.end(), [&](const Use& a, const Use& b) { return begin(a) < begin(b); });
  const std::int64_t dim = uses[0].piece.stored_slice.dim;
  const std::int64_t line = numel / stored.entry->sizes[static_cast<std::size_t>(dim)];
  std::int64_t end = 0;
  for (const Use& use : uses) {
    if (use.owner_groups != uses[0].owner_groups || use.piece.stored_slice.dim != dim || begin(use) != end) return 0;
    end += use.piece.numel() / line;
  }
  return end == stored.entry->sizes[static_cast<std::size_t>(dim)] ? uses[0].owner_groups : 0;
}

void NamedChecksums::verify(const Communicator& ranks, const std::string& what) const {
  if (stored_.empty()) return;
  std::vector<Checksum> own;
  for (const auto& [name, stored] : stored_) own.push_back(stored.sum);
  const std::vector<Checksum> all = sum_over_ranks(ranks, own);
  std::vector<std::string> damaged;
  std::size_t i = 0;
  for (const auto& [name, stored] : stored_) {
    const std::int64_t numel = numel_of(stored.entry->sizes);
    const Checksum expected = times({*stored.entry->checksum, numel}, numel == 0 ? 0 : times_read(stored));
    const Checksum& found = all[i++];
    if (found.count == 0 || found.count != expected.count) continue;  // some rank did not request its part
    if (found != expected) damaged.push_back("'" + name + "'");
  }
  TORCH_CHECK(damaged.empty(), what, ": the checksum of ", c10::Join(", ", damaged),
              " does not match the data: the file is damaged");
}

}  // namespace dtensor::files
