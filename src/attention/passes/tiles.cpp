// Splits pairs of segments into tiles.
#include "attention/passes/tiles.h"

#include <algorithm>

namespace dtensor::attention_impl {
namespace {

// Minimum number of query rows of masked tiles in a sliding window; smaller tiles would need many calls.
constexpr std::int64_t kWindowRows = 128;

struct Span {
  std::int64_t local, begin, end;

  bool empty() const { return end <= begin; }
  Span from(std::int64_t first) const { return first <= begin ? *this : Span{local + first - begin, first, end}; }
  Span until(std::int64_t last) const { return {local, begin, std::min(end, last)}; }
  Rows rows() const { return {local, begin, end - begin}; }
};

std::int64_t document_of(const Pattern& pattern, std::int64_t position) {
  const auto& starts = pattern.documents;
  return std::upper_bound(starts.begin(), starts.end(), position) - starts.begin();
}

// Splits segments at document starts.
std::vector<Span> spans_of(const Segments& segments, const Pattern& pattern) {
  std::vector<Span> spans;
  std::int64_t local = 0;
  for (const Segment& s : segments) {
    Span rest{local, s.offset, s.offset + s.length};
    local += s.length;
    const auto& starts = pattern.documents;
    for (auto cut = std::upper_bound(starts.begin(), starts.end(), rest.begin); cut != starts.end() && *cut < rest.end;
         ++cut) {
      spans.push_back(rest.until(*cut));
      rest = rest.from(*cut);
    }
    if (!rest.empty()) spans.push_back(rest);
  }
  return spans;
}

class Cutter {
 public:
  explicit Cutter(const Pattern& pattern) : p_(pattern) {}

  void add(Span q, Span kv) {
    clip(q, kv);
    if (q.empty() || kv.empty()) return;
    const bool past = !p_.causal || kv.end - 1 <= q.begin;
    if (!inside_window(q, kv)) {
      add_window(q, kv);
    } else if (past) {
      put(q, kv, TileMask::full);
    } else {
      if (kv.begin < q.begin) put(q, kv.until(q.begin), TileMask::full);
      put(q, kv.from(q.begin), TileMask::causal);
    }
  }

  std::vector<Tile> take() { return std::move(tiles_); }

 private:
  // Drops rows at the ends that have no visible pair.
  void clip(Span& q, Span& kv) const {
    if (p_.causal) {
      q = q.from(kv.begin);
      kv = kv.until(q.end);
    }
    if (p_.window == 0) return;
    kv = kv.from(q.begin - p_.window + 1);
    q = q.until(kv.end - 1 + p_.window);
    if (p_.causal) return;
    kv = kv.until(q.end - 1 + p_.window);
    q = q.from(kv.begin - p_.window + 1);
  }

  bool inside_window(const Span& q, const Span& kv) const {
    if (p_.window == 0) return true;
    return q.end - 1 - kv.begin < p_.window && (p_.causal || kv.end - 1 - q.begin < p_.window);
  }

  // A band: splits queries into few rows at a time, each with the keys near them.
  void add_window(Span q, const Span& kv) {
    const std::int64_t rows = std::max(p_.window, kWindowRows);
    if (q.end - q.begin <= rows) return put(q, kv, TileMask::masked);
    for (; !q.empty(); q = q.from(q.begin + rows)) add(q.until(q.begin + rows), kv);
  }

  void put(const Span& q, const Span& kv, TileMask cover) { tiles_.push_back({q.rows(), kv.rows(), cover}); }

  const Pattern& p_;
  std::vector<Tile> tiles_;
};

bool next_to(const Rows& a, const Rows& b) { return a.local + a.length == b.local; }
bool same_rows(const Rows& a, const Rows& b) { return a.local == b.local && a.length == b.length; }

bool join(Tile& into, const Tile& tile) {
  if (into.mask_kind != TileMask::full || tile.mask_kind != TileMask::full) return false;
  if (same_rows(into.q, tile.q) && next_to(into.kv, tile.kv)) return into.kv.length += tile.kv.length, true;
  if (same_rows(into.kv, tile.kv) && next_to(into.q, tile.q)) return into.q.length += tile.q.length, true;
  return false;
}

}  // namespace

std::vector<Tile> tiles_of(const Segments& q, const Segments& kv, const Pattern& pattern) {
  Cutter cutter(pattern);
  const auto keys = spans_of(kv, pattern);
  for (const Span& queries : spans_of(q, pattern)) {
    for (const Span& k : keys) {
      if (document_of(pattern, queries.begin) == document_of(pattern, k.begin)) cutter.add(queries, k);
    }
  }
  return cutter.take();
}

std::vector<Tile> merge_full_tiles(std::vector<Tile> tiles) {
  for (bool again = true; again;) {  // merges along one side, then tiles that became equal along the other
    again = false;
    std::vector<Tile> fewer;
    for (const Tile& tile : tiles) {
      const auto joined = std::any_of(fewer.begin(), fewer.end(), [&](Tile& t) { return join(t, tile); });
      if (!joined) fewer.push_back(tile);
      again |= joined;
    }
    tiles = std::move(fewer);
  }
  return tiles;
}

std::vector<Rows> keys_read(const std::vector<Tile>& tiles) {
  std::vector<Rows> read;
  for (const Tile& tile : tiles) read.push_back(tile.kv);
  std::sort(read.begin(), read.end(), [](const Rows& a, const Rows& b) { return a.local < b.local; });
  std::vector<Rows> runs;
  for (const Rows& rows : read) {
    if (!runs.empty() && rows.local <= runs.back().local + runs.back().length) {
      Rows& last = runs.back();
      last.length = std::max(last.length, rows.local + rows.length - last.local);
    } else {
      runs.push_back(rows);
    }
  }
  return runs;
}

double count_pairs(const std::vector<Tile>& tiles) {
  double pairs = 0;
  for (const Tile& tile : tiles) {
    const auto q = static_cast<double>(tile.q.length), kv = static_cast<double>(tile.kv.length);
    pairs += tile.mask_kind == TileMask::causal ? kv * (kv + 1) / 2 + (q - kv) * kv : q * kv;
  }
  return pairs;
}

}  // namespace dtensor::attention_impl
