// Loads from folders of other programs: a tensor is filled from parts of stored ones, by a table of names.
#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/destination.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/named_checksums.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/load/shared_reads.h"
#include "checkpoint/load/stored_pieces.h"
#include "checkpoint/part.h"
#include "dtensor/debug_rank.h"
#include "dtensor/tensor.h"
#include "names/names.h"

namespace dtensor::files {
namespace {

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Sizes that the stored tensor must have; -1 where any will do that holds the range.
bool sizes_fit(const StoredPiece& piece, at::IntArrayRef stored) {
  if (static_cast<std::int64_t>(stored.size()) != piece.stored_dims()) return false;
  for (std::int64_t s = 0; s < piece.stored_dims(); ++s) {
    const std::int64_t here = piece.in[at_index(piece.dim_of_tensor(s))].length, there = stored[at_index(s)];
    const IndexRange& of = piece.of_stored;
    if (of.dim == s && of.count >= 0 ? of.count != here || of.begin + here > there
                                     : here + (of.dim == s ? of.begin : 0) != there)
      return false;
  }
  return true;
}

}  // namespace

// The pieces of the first of the tensor's names that is there, and what does not fit.
struct Loader::NamedTarget {
  at::Tensor target, landing;
  std::vector<std::pair<StoredPiece, const CheckpointEntry*>> pieces;
};

void Loader::compare_piece(const StoredPiece& piece, const CheckpointEntry& entry, const Listed& tensor,
                           Problems& problems) const {
  if (!sizes_fit(piece, entry.sizes)) {
    problems.mismatched.push_back(c10::str("'", entry.name, "' has sizes ", at::IntArrayRef(entry.sizes),
                                           " there, which do not fit '", tensor.name, "' of sizes ",
                                           at::IntArrayRef(tensor.sizes), piece.transposed ? ", transposed" : ""));
  } else {
    compare_dtype(tensor, entry, problems);
  }
}

// The first of its names that is there with all its pieces; what all of them would read is asked for.
Loader::NamedTarget Loader::named_target(const Listed& listed, const std::vector<std::string>& names,
                                         std::unordered_set<std::string>& used, Problems& problems) const {
  NamedTarget target;
  std::string missing;
  const auto lack = [&](const std::string& name) {
    if (missing.empty()) missing = name;
    return false;
  };
  for (const std::string& name : names) {
    const auto pieces = stored_pieces(name, listed.sizes, options_.names);
    if (pieces.empty()) lack(name);
    const bool here = !pieces.empty() && std::all_of(pieces.begin(), pieces.end(), [&](const StoredPiece& piece) {
      return find(piece.stored) != nullptr || lack(piece.stored);
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
                                                     Problems& problems) const {
  const std::unordered_map<std::string, at::Tensor> mine(targets.begin(), targets.end());
  std::unordered_set<std::string> used;
  std::vector<NamedTarget> found;
  for (const Listed& listed : manifest.tensors) {
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
    problems.there.push_back(entry.name);
    const bool passed_over = std::any_of(options_.names.begin(), options_.names.end(), [&](const StoredName& row) {
      return row.tensor.empty() && matches(row.stored, entry.name);
    });
    if (!options_.allow_unexpected && !passed_over && !used.contains(entry.name)) {
      problems.unexpected.push_back(entry.name);
    }
  }
  problems.here.insert(problems.here.end(), used.begin(), used.end());
  return found;
}

void Loader::read_named(const StateTensors& targets, Problems problems) {
  const Manifest manifest = agree_on(targets, ranks_, Purpose::load, what_);
  std::vector<NamedTarget> found;
  run_on_all(ranks_, what_, [&] { found = match_names(manifest, targets, problems); });
  problems.raise(ranks_, what_);
  NamedChecksums sums(index_, options_.verify);
  std::vector<Destination> there;
  std::vector<std::string> parts;
  run_on_all(ranks_, what_, [&] {
    for (std::size_t i = 0; i < found.size(); ++i) {
      sums.expect(found[i].pieces, manifest.tensors[i].homes);
      found[i].landing = found[i].target.defined() ? landing_of(found[i].target) : at::Tensor();
      for (const auto& [piece, entry] : found[i].pieces) {
        there.push_back(destination(found[i].landing, piece, *entry));
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
  const NoTimeout patience;  // a slow disk on one rank is no fault of the others
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there[i].to.defined()) there[i].read(reads, i, files, sums);
  }
  for (const NamedTarget& f : found) {
    if (f.landing.defined()) mark_written(f.landing);
  }
  raise_on_all(ranks_, what_, reads.error());
  sums.verify(ranks_, what_);
  for (const NamedTarget& f : found) {
    if (f.target.defined()) take_landing(f.target, f.landing);
  }
}

}  // namespace dtensor::files
