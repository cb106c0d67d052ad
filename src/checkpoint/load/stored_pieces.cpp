// Converts rows of a StateDictKeyMapping to ranges.
#include "checkpoint/load/stored_pieces.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "checkpoint/format/safetensors.h"
#include "name_patterns/name_patterns.h"

namespace dtensor::files {
namespace {

std::string filled_in(const std::string& to, const std::string& from, const std::vector<std::string>& stars,
                      std::int64_t index) {
  std::string text;
  std::size_t star = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] == '#') {
      text += std::to_string(index);
    } else if (to[i] == '*') {
      if (to.compare(i, 2, "**") == 0) ++i;
      TORCH_CHECK(star < stars.size(), "the stored name '", to, "' has more wildcards than '", from, "'");
      text += stars[star++];
    } else {
      text += to[i];
    }
  }
  return text;
}

bool takes_all(const StateDictKeyRule::Range& range) { return range.begin == 0 && range.count < 0; }

bool only_renames(const StateDictKeyRule& row) {
  return !row.tensor.empty() && row.stored.find('#') == std::string::npos && !row.transposed &&
         takes_all(row.stored_slice) && takes_all(row.tensor_slice);
}

StoredPiece piece_of(const std::string& name, at::IntArrayRef sizes, const StateDictKeyRule& row) {
  StoredPiece piece{{}, row.transposed, -1, row.stored_slice, {}};
  for (const std::int64_t n : sizes) piece.target_segments.push_back({0, n});
  const StateDictKeyRule::Range& here = row.tensor_slice;
  if (!takes_all(here)) {
    const auto dims = static_cast<std::int64_t>(sizes.size());
    TORCH_CHECK(here.dim >= 0 && here.dim < dims, "'", row.tensor, "': tensor_slice.dim is ", here.dim, ", but '", name,
                "' has sizes ", sizes);
    Segment& range = piece.target_segments[static_cast<std::size_t>(here.dim)];
    const std::int64_t count = here.count < 0 ? range.length - here.begin : here.count;
    TORCH_CHECK(here.begin >= 0 && count >= 0 && here.begin + count <= range.length, "'", row.tensor, "': indices ",
                here.begin, " to ", here.begin + count, " are out of range of '", name, "' with sizes ", sizes);
    range = {here.begin, count};
  }
  return piece;
}

bool overlap(const std::vector<Segment>& a, const std::vector<Segment>& b) {
  for (std::size_t d = 0; d < a.size(); ++d) {
    const std::int64_t begin = std::max(a[d].offset, b[d].offset);
    if (begin >= std::min(a[d].offset + a[d].length, b[d].offset + b[d].length)) return false;
  }
  return true;
}

void check_filled(const std::string& name, at::IntArrayRef sizes, const std::vector<StoredPiece>& pieces) {
  std::int64_t filled = 0;
  for (const StoredPiece& piece : pieces) filled += piece.numel();
  TORCH_CHECK(pieces.empty() || filled == numel_of(sizes), "the rows for '", name, "' of sizes ", sizes, " fill ",
              filled, " of its ", numel_of(sizes), " elements");
  // With the right total, some elements may still be filled twice.
  for (auto a = pieces.begin(); a != pieces.end(); ++a) {
    const auto again = std::find_if(
        a + 1, pieces.end(), [&](const StoredPiece& b) { return overlap(a->target_segments, b.target_segments); });
    TORCH_CHECK(again == pieces.end(), "the rows for '", name, "' of sizes ", sizes, " overlap: '", a->stored,
                "' and '", again->stored, "' fill the same elements");
  }
}

void check_row(const StateDictKeyRule& row, const std::string& name, at::IntArrayRef sizes, bool stacked) {
  const std::int64_t dims = std::ssize(sizes) - (stacked ? 1 : 0);
  TORCH_CHECK(dims >= 0, "'", row.stored, "' stacks tensors, but '", name, "' has no dimension");
  TORCH_CHECK(!row.transposed || dims >= 2, "'", row.tensor, "' has transposed = true, but '", name, "' has sizes ",
              sizes);
  const StateDictKeyRule::Range& there = row.stored_slice;
  if (takes_all(there)) return;
  TORCH_CHECK(there.begin >= 0 && there.dim >= 0 && there.dim < dims, "'", row.tensor, "' takes from '", row.stored,
              "' index ", there.begin, " of dimension ", there.dim, ", but '", name, "' has sizes ", sizes);
}

}  // namespace

std::int64_t StoredPiece::dim_of_tensor(std::int64_t d) const {
  const std::int64_t dims = stored_dims();
  if (transposed && d >= dims - 2) d = 2 * dims - 3 - d;
  return d + (index < 0 ? 0 : 1);
}

std::int64_t StoredPiece::numel() const {
  std::int64_t product = 1;
  for (const Segment& range : target_segments) product *= range.length;
  return product;
}

std::string renamed(const std::string& name, const StateDictKeyMapping& names, bool to_stored) {
  for (const StateDictKeyRule& row : names) {
    const std::string &from = to_stored ? row.tensor : row.stored, &to = to_stored ? row.stored : row.tensor;
    std::vector<std::string> stars;
    if (only_renames(row) && matches_pattern(from, name, false, &stars)) return filled_in(to, from, stars, -1);
  }
  return name;
}

std::vector<StoredPiece> stored_pieces(const std::string& name, at::IntArrayRef sizes,
                                       const StateDictKeyMapping& names) {
  std::vector<StoredPiece> pieces;
  const std::string* pattern = nullptr;
  for (const StateDictKeyRule& row : names) {
    if (row.tensor.empty()) continue;  // rows for stored tensors to ignore
    std::vector<std::string> stars;
    if (!matches_pattern(row.tensor, name, false, &stars) || (pattern != nullptr && *pattern != row.tensor)) continue;
    pattern = &row.tensor;
    StoredPiece piece = piece_of(name, sizes, row);
    const bool stacked = row.stored.find('#') != std::string::npos;
    check_row(row, name, sizes, stacked);
    piece.renamed = !stacked && !row.transposed && takes_all(row.stored_slice) && piece.numel() == numel_of(sizes);
    const Segment first = stacked ? piece.target_segments[0] : Segment{-1, 1};
    for (std::int64_t i = first.offset; i < first.offset + first.length; ++i) {
      piece.index = i;
      if (stacked) piece.target_segments[0] = {i, 1};
      piece.stored = filled_in(row.stored, row.tensor, stars, i);
      pieces.push_back(piece);
    }
  }
  check_filled(name, sizes, pieces);
  return pieces;
}

}  // namespace dtensor::files
