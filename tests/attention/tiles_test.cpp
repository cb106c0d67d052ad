// Tiles cover each visible query-key pair exactly once, and no tile is empty.
#include "attention/passes/tiles.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "support/ranks.h"

namespace dtensor::attention_impl {
namespace {

using test::Draw;

// Returns random segments of [0, n) in ascending or descending order.
Segments draw_segments(Draw& draw, std::int64_t n) {
  Segments segments;
  for (std::int64_t at = draw.integer(0, 2); at < n;) {
    const auto length = std::min(draw.integer(0, 5), n - at);
    segments.push_back({at, length});
    at += length + draw.integer(0, 3);
  }
  if (draw.coin()) std::reverse(segments.begin(), segments.end());
  return segments;
}

Pattern draw_pattern(Draw& draw, std::int64_t n) {
  Pattern p{draw.coin(), draw.coin() ? draw.integer(1, 9) : 0, {}};
  if (draw.coin()) p.documents = {0};
  while (!p.documents.empty() && draw.coin() && p.documents.back() + 1 < n) {
    p.documents.push_back(draw.integer(p.documents.back() + 1, n - 1));
  }
  return p;
}

std::vector<std::int64_t> positions(const Segments& segments) {
  std::vector<std::int64_t> all;
  for (const auto& s : segments) {
    for (std::int64_t i = 0; i < s.length; ++i) all.push_back(s.offset + i);
  }
  return all;
}

std::int64_t document_of(const Pattern& p, std::int64_t position) {
  return std::count_if(p.documents.begin(), p.documents.end(), [&](auto start) { return start <= position; });
}

// Returns whether the key at position j is visible to the query at position i.
bool sees(const Pattern& p, std::int64_t i, std::int64_t j) {
  if (p.causal && j > i) return false;
  if (p.window > 0 && std::abs(i - j) >= p.window) return false;
  return document_of(p, i) == document_of(p, j);
}

// Number of times that the tiles compute each pair.
std::vector<std::vector<int>> computed(const std::vector<Tile>& tiles, const Pattern& p, std::size_t q,
                                       std::size_t kv) {
  std::vector<std::vector<int>> times(q, std::vector<int>(kv));
  for (const Tile& t : tiles) {
    for (std::int64_t i = 0; i < t.q.length; ++i) {
      for (std::int64_t j = 0; j < t.kv.length; ++j) {
        const bool seen = t.mask_kind == TileMask::full || (t.mask_kind == TileMask::causal && j <= i) ||
                          (t.mask_kind == TileMask::masked && sees(p, t.q.global + i, t.kv.global + j));
        times[static_cast<std::size_t>(t.q.local + i)][static_cast<std::size_t>(t.kv.local + j)] += seen ? 1 : 0;
      }
    }
  }
  return times;
}

TEST(Tiles, CoverVisiblePairsOnce) {
  EXPECT_TRUE(rc::check("tiles", [](std::uint64_t seed) {
    Draw draw(seed);
    const auto n = draw.integer(0, 24);
    const auto q = draw_segments(draw, draw.integer(0, 24)), kv = draw_segments(draw, n);
    const auto p = draw_pattern(draw, n);
    const auto rows = positions(q), columns = positions(kv);
    const auto tiles = tiles_of(q, kv, p);
    for (const Tile& t : tiles) RC_ASSERT(t.q.length > 0 && t.kv.length > 0);
    for (const auto& list : {tiles, p.window == 0 ? merge_full_tiles(tiles) : tiles}) {
      const auto times = computed(list, p, rows.size(), columns.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t j = 0; j < columns.size(); ++j)
          RC_ASSERT(times[i][j] == (sees(p, rows[i], columns[j]) ? 1 : 0));
      }
    }
  }));
}

TEST(Tiles, KeysAreReadOnce) {
  const Pattern causal{true, 0, {}};
  // Chunks 1 and 4 of six chunks of two rows against chunks 0 and 5 of another rank: only visible keys are read.
  const Segments own{{2, 2}, {8, 2}}, other{{0, 2}, {10, 2}};
  EXPECT_EQ(keys_read(tiles_of(own, other, causal)), (std::vector<Rows>{{0, 0, 2}}));
  EXPECT_EQ(keys_read(tiles_of(other, own, causal)), (std::vector<Rows>{{0, 2, 4}}));
}

// Chunks r and 2P - 1 - r give every rank the same work.
TEST(Tiles, HeadAndTailChunksAreBalanced) {
  const std::int64_t ranks = 4, chunk = 32, n = 2 * ranks * chunk;
  const auto most_over_mean = [&](const std::function<Segments(std::int64_t)>& part) {
    double most = 0, sum = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const double pairs = count_pairs(tiles_of(part(r), {{0, n}}, {true, 0, {}}));
      most = std::max(most, pairs);
      sum += pairs;
    }
    EXPECT_EQ(sum, static_cast<double>(n) * (n + 1) / 2);
    return most * ranks / sum;
  };
  EXPECT_LE(most_over_mean([&](auto r) {
              return Segments{{r * chunk, chunk}, {(2 * ranks - 1 - r) * chunk, chunk}};
            }),
            1.001);
  EXPECT_NEAR(most_over_mean([&](auto r) { return Segments{{r * 2 * chunk, 2 * chunk}}; }), 1.75, 0.01);
}

}  // namespace
}  // namespace dtensor::attention_impl
