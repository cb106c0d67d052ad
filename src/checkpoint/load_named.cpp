// Loads from folders of other programs: a tensor is filled from parts of stored ones, by a table of names.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "checkpoint/coalesced_reader.h"
#include "checkpoint/collective_errors.h"
#include "checkpoint/file.h"
#include "checkpoint/load.h"
#include "checkpoint/part.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_pieces.h"
#include "dtensor/debug_rank.h"
#include "dtensor/tensor.h"
#include "names/names.h"

namespace dtensor::files {
namespace {

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// This rank's part of a tensor, by dimensions.
struct Held {
  at::Tensor local;  // undefined: nothing
  std::vector<Segments> segments;
};

Held held_of(const at::Tensor& tensor) {
  Held held;
  if (!is_dtensor(tensor)) {
    held.local = tensor.detach();
    for (const std::int64_t n : tensor.sizes()) held.segments.push_back({{0, n}});
    return held;
  }
  const DTensor placed(tensor);
  const auto coordinate = placed.mesh().coordinate();
  if (!coordinate) return held;
  const at::NoGradGuard no_grad;
  held.local = placed.to_local();
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    held.segments.push_back(shard_segments(placed.size(d), d, placed.placements(), placed.mesh().shape(), *coordinate));
  }
  return held;
}

struct Cut {
  Segments both;                      // indices of the whole dimension
  std::int64_t begin = 0, count = 0;  // the same as local indices
};

Cut intersection(const Segments& held, const Segment& range) {
  Cut cut;
  for (const Segment& s : held) {
    const std::int64_t from = std::max(s.offset, range.offset);
    const std::int64_t to = std::min(s.offset + s.length, range.offset + range.length);
    if (from < to) {
      cut.both.push_back({from, to - from});
      cut.count += to - from;
    } else if (s.offset < range.offset && cut.count == 0) {
      cut.begin += s.length;
      continue;
    }
    if (from < to && cut.both.size() == 1) cut.begin += from - s.offset;
  }
  return cut;
}

// Rows of `to` (in dimensions as stored) from the file.
void read_rows(const at::Tensor& to, const ContiguousRanges& ranges, const CheckpointEntry& entry, const File& file) {
  const auto item = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  const std::int64_t rows = to.dim() == 0 ? 1 : to.size(0), inner = to.numel() / rows;
  const std::int64_t step = std::max<std::int64_t>(1, kBufferBytes / std::max<std::int64_t>(1, inner * item));
  for (std::int64_t row = 0; row < rows; row += step) {
    const at::Tensor part = to.dim() == 0 ? to : to.narrow(0, row, std::min(step, rows - row));
    const bool direct = part.is_cpu() && part.is_contiguous() && part.scalar_type() == entry.dtype;
    const at::Tensor buffer = direct ? part : at::Tensor(at::detail::empty_cpu(part.sizes(), entry.dtype));
    auto* data = static_cast<char*>(buffer.mutable_data_ptr());
    CoalescedReader reader(file);
    const std::int64_t first = row * inner;
    ranges.each(first, first + part.numel(), [&](std::int64_t local, const Range& range) {
      reader.want(entry.offset + range.global * item, range.length * item, data + (local - first) * item);
    });
    reader.flush();
    if (!direct) part.copy_(buffer);
  }
}

void read_piece(const Held& held, const StoredPiece& piece, const CheckpointEntry& entry, const File& file) {
  at::Tensor to = held.local;
  std::vector<Segments> wanted(at_index(piece.stored_dims()));
  std::vector<Cut> cuts;
  for (std::size_t d = 0; d < piece.in.size(); ++d) {
    cuts.push_back(intersection(held.segments[d], piece.in[d]));
    if (cuts.back().count == 0) return;
    to = to.narrow(static_cast<std::int64_t>(d), cuts[d].begin, cuts[d].count);
  }
  for (std::int64_t s = 0; s < piece.stored_dims(); ++s) {
    const auto d = at_index(piece.dim_of_tensor(s));
    const std::int64_t shift = (piece.of_stored.dim == s ? piece.of_stored.begin : 0) - piece.in[d].offset;
    for (Segment segment : cuts[d].both) {
      segment.offset += shift;
      wanted[at_index(s)].push_back(segment);
    }
  }
  if (piece.index >= 0) to = to.squeeze(0);
  if (piece.transposed) to = to.transpose(-1, -2);
  read_rows(to, ContiguousRanges(entry.sizes, std::move(wanted)), entry, file);
}

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
  } else if (tensor.dtype != entry.dtype && (!options_.allow_cast || entry.dtype == at::ScalarType::Undefined)) {
    problems.mismatched.push_back(c10::str("'", entry.name, "' is ", entry.dtype, " there, ", tensor.dtype, " here",
                                           options_.allow_cast ? "" : " (allow_cast converts)"));
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
  problems.raise(what_);
  const NoTimeout patience;  // a slow disk on one rank is no fault of the others
  for (NamedTarget& f : found) f.landing = f.target.defined() ? landing_of(f.target) : at::Tensor();
  run_on_all(ranks_, what_, [&] {
    std::map<std::string, File> files;
    for (const NamedTarget& f : found) {
      if (!f.target.defined()) continue;
      const Held held = held_of(f.landing);
      if (!held.local.defined()) continue;
      for (const auto& [piece, entry] : f.pieces) {
        auto file = files.find(entry->file);
        if (file == files.end()) file = files.emplace(entry->file, File::open_to_read(entry->file)).first;
        read_piece(held, piece, *entry, file->second);
      }
      mark_written(f.landing);
    }
  });
  for (const NamedTarget& f : found) {
    if (f.target.defined()) take_landing(f.target, f.landing);
  }
}

}  // namespace dtensor::files
