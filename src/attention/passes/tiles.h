// Splits a score matrix into tiles. Rows of queries and keys are segments of positions. Each pair of segments gives
// tiles that are fully visible, causal, or masked by element. Invisible parts give no tile, so they are neither
// communicated nor computed. Pure functions: all ranks compute the same tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "internal/shard_segments.h"

namespace dtensor::attention_impl {

// Visible keys of a query at position i: with `causal` j <= i; with `window` > 0 |i - j| < window; with documents only
// keys of its document. `documents`: position of each document's first token, ascending from 0; empty: one document.
struct Pattern {
  bool causal = false;
  std::int64_t window = 0;
  std::vector<std::int64_t> documents = {};
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

// Rows of a local tensor that are consecutive locally and globally.
struct Rows {
  std::int64_t local = 0, global = 0, length = 0;
  friend bool operator==(const Rows&, const Rows&) = default;
};

enum class TileMask : std::uint8_t {
  full,
  causal,  // q and kv begin at the same position: row r sees columns up to r
  masked,  // masked by the pattern for each element
};

struct Tile {
  Rows q, kv;
  TileMask mask_kind = TileMask::full;
  friend bool operator==(const Tile&, const Tile&) = default;
};

std::vector<Tile> tiles_of(const Segments& q, const Segments& kv, const Pattern& pattern);
// Merges adjacent full tiles. Their rows are then no longer consecutive globally, so this applies only without mask and
// dropout, which need positions.
std::vector<Tile> merge_full_tiles(std::vector<Tile> tiles);
// The rows of keys that the tiles read, without duplicates, ascending by local index.
std::vector<Rows> keys_read(const std::vector<Tile>& tiles);
// Number of (query, key) pairs that are computed.
double count_pairs(const std::vector<Tile>& tiles);

}  // namespace dtensor::attention_impl
