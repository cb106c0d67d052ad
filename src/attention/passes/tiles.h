// Which parts of a score matrix are to be computed: rows of queries and of keys are given as segments of positions, and
// each pair of segments falls into tiles that are seen whole, seen up to the diagonal, or masked element by element.
// What no query sees is no tile, so it is neither moved nor computed. Pure: every rank finds the same for any rank.
#pragma once

#include <cstdint>
#include <vector>

#include "internal/shard_segments.h"

namespace dtensor::attention_impl {

// Which keys a query at position i sees: with `causal` j <= i; with `window` > 0 |i - j| < window; with documents only
// those of its own. `documents`: position of each one's first token, ascending from 0; empty: one.
struct Pattern {
  bool causal = false;
  std::int64_t window = 0;
  std::vector<std::int64_t> documents = {};
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

// Rows of a local tensor that are consecutive there and in the whole.
struct Rows {
  std::int64_t local = 0, global = 0, length = 0;
  friend bool operator==(const Rows&, const Rows&) = default;
};

enum class TileMask : std::uint8_t {
  full,
  causal,  // q and kv begin at one position: row r sees columns up to r
  masked,  // as the pattern says for each element
};

struct Tile {
  Rows q, kv;
  TileMask mask_kind = TileMask::full;
  friend bool operator==(const Tile&, const Tile&) = default;
};

std::vector<Tile> tiles_of(const Segments& q, const Segments& kv, const Pattern& pattern);
// Adjacent full tiles become one. Their rows are then no longer consecutive in the whole: only where neither a mask nor
// dropout asks for positions.
std::vector<Tile> merge_full_tiles(std::vector<Tile> tiles);
// The rows of keys that some tile reads, each once, ascending by local index.
std::vector<Rows> keys_read(const std::vector<Tile>& tiles);
// Pairs of a query and a key that are computed.
double count_pairs(const std::vector<Tile>& tiles);

}  // namespace dtensor::attention_impl
