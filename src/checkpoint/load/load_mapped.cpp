// Loads folders of other programs: a StateDictKeyMapping assigns slices of stored tensors to targets.
#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/load_target.h"
#include "checkpoint/load/mapped_checksums.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/load/shared_reads.h"
#include "checkpoint/load/stored_pieces.h"
#include "checkpoint/local_part.h"
#include "dtensor/comm.h"
#include "dtensor/tensor.h"
#include "internal/ranks/heartbeat_scope.h"
#include "name_patterns/name_patterns.h"

namespace dtensor::files {
namespace {

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Whether the stored tensor has the sizes that the piece requires. The sliced dimension must only contain the range.
bool sizes_fit(const StoredPiece& piece, at::IntArrayRef stored) {
  if (static_cast<std::int64_t>(stored.size()) != piece.stored_dims()) return false;
  for (std::int64_t s = 0; s < piece.stored_dims(); ++s) {
    const std::int64_t here = piece.target_segments[at_index(piece.dim_of_tensor(s))].length,
                       there = stored[at_index(s)];
    const StateDictKeyRule::Range& of = piece.stored_slice;
    if (of.dim == s && of.count >= 0 ? of.count != here || of.begin + here > there
                                     : here + (of.dim == s ? of.begin : 0) != there)
      return false;
  }
  return true;
}

}  // namespace

// A target, and the pieces of the first of its names that the checkpoint contains.
struct Loader::NamedTarget {
  at::Tensor target, read_buffer;
  std::vector<std::pair<StoredPiece, const CheckpointEntry*>> pieces;
};

void Loader::compare_piece(const StoredPiece& piece, const CheckpointEntry& entry, const ManifestEntry& tensor,
                           LoadProblems& problems) const {
  if (!sizes_fit(piece, entry.sizes)) {
    problems.mismatched.push_back(c10::str("'", entry.name, "' has sizes ", at::IntArrayRef(entry.sizes),
                                           " in the checkpoint, which do not match '", tensor.name, "' of sizes ",
                                           at::IntArrayRef(tensor.sizes), piece.transposed ? ", transposed" : ""));
  } else {
    compare_dtype(tensor, entry, problems);
  }
}

// Selects the first name whose pieces are all stored. The pieces of all names count as requested.
Loader::NamedTarget Loader::named_target(const ManifestEntry& listed, const std::vector<std::string>& names,
                                         std::unordered_set<std::string>& used, LoadProblems& problems) const {
  NamedTarget target;
  std::string missing;
  const auto note_missing = [&](const std::string& name) {
    if (missing.empty()) missing = name;
    return false;
  };
  for (const std::string& name : names) {
    const auto pieces = stored_pieces(name, listed.sizes, options_.names);
    if (pieces.empty()) note_missing(name);
    const bool here = !pieces.empty() && std::all_of(pieces.begin(), pieces.end(), [&](const StoredPiece& piece) {
      return find(piece.stored) != nullptr || note_missing(piece.stored);
    });
    for (const StoredPiece& piece : pieces) used.insert(piece.stored);
    if (!here || !target.pieces.empty()) continue;
    for (const StoredPiece& piece : pieces) {
      target.pieces.emplace_back(piece, find(piece.stored));
      compare_piece(piece, *find(piece.stored), listed, problems);
    }
  }
  if (target.pieces.empty() && !options_.allow_missing && !missing.empty()) problems.missing.push_back(missing);
  return target;
}

std::vector<Loader::NamedTarget> Loader::match_names(const Manifest& manifest, const StateTensors& targets,
                                                     LoadProblems& problems) const {
  const std::unordered_map<std::string, at::Tensor> mine(targets.begin(), targets.end());
  std::unordered_set<std::string> used;
  std::vector<NamedTarget> found;
  for (const ManifestEntry& listed : manifest.tensors) {
    std::vector<std::string> names{listed.name};
    for (const Alias& alias : manifest.aliases) {
      if (alias.entry == listed.name) names.push_back(alias.name);
    }
    found.push_back(named_target(listed, names, used, problems));
    for (const std::string& name : names) {
      const auto own = mine.find(name);
      if (own != mine.end()) found.back().target = own->second;
    }
  }
  for (const CheckpointEntry& entry : index_.entries) {
    problems.available.push_back(entry.name);
    const bool passed_over = std::any_of(
        options_.names.begin(), options_.names.end(),
        [&](const StateDictKeyRule& row) { return row.tensor.empty() && matches_pattern(row.stored, entry.name); });
    if (!options_.allow_unexpected && !passed_over && !used.contains(entry.name)) {
      problems.unexpected.push_back(entry.name);
    }
  }
  problems.requested.insert(problems.requested.end(), used.begin(), used.end());
  return found;
}

void Loader::read_named(const StateTensors& targets, LoadProblems problems) {
  const Manifest manifest = build_manifest(targets, ranks_, Purpose::load, what_);
  std::vector<NamedTarget> found;
  run_on_all(ranks_, what_, [&] { found = match_names(manifest, targets, problems); });
  problems.raise(ranks_, what_);
  NamedChecksums sums(index_, options_.verify);
  std::vector<ReadTarget> there;
  std::vector<std::string> parts;
  run_on_all(ranks_, what_, [&] {
    for (std::size_t i = 0; i < found.size(); ++i) {
      sums.expect(found[i].pieces, manifest.tensors[i].owner_groups);
      found[i].read_buffer = found[i].target.defined() ? read_buffer_for(found[i].target) : at::Tensor();
      for (const auto& [piece, entry] : found[i].pieces) {
        there.push_back(make_read_target(found[i].read_buffer, piece, *entry));
        parts.push_back(there.back().text());
      }
    }
  });
  SharedReads reads(ranks_, parts);
  run_on_all(ranks_, what_, [&] {
    for (std::size_t i = 0; i < there.size(); ++i) {
      if (there[i].to.defined()) there[i].prepare(reads, i);
    }
  });
  Files files;
  const HeartbeatScope heartbeats(ranks_);  // a disk may be slow on one rank
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there[i].to.defined()) there[i].read(reads, i, files, sums);
  }
  for (const NamedTarget& f : found) {
    if (f.read_buffer.defined()) mark_written(f.read_buffer);
  }
  raise_on_all(ranks_, what_, reads.error());
  sums.verify(ranks_, what_);
  for (const NamedTarget& f : found) {
    if (f.target.defined()) copy_from_read_buffer(f.target, f.read_buffer);
  }
}

}  // namespace dtensor::files
