// Plans from mesh to mesh, checked on sets of elements. A sender has what it sends, every rank receives what it lacks
// exactly once, and replicas share the sends.
#include "redistribute/plan/transfer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "layouts.h"

namespace dtensor {
namespace {

using test::Shape;
using Elements = std::set<std::int64_t>;

// The elements by definition: every index of every dimension, from shard_segments.
Elements elements_of(const Region& region, const Shape& sizes) {
  std::vector<std::int64_t> flat{0};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t base : flat) {
      for (const Segment& s : region.dims[d]) {
        for (std::int64_t i = 0; i < s.length; ++i) next.push_back(base * sizes[d] + s.offset + i);
      }
    }
    flat = std::move(next);
  }
  return {flat.begin(), flat.end()};
}

Elements held(const MeshLayout& mesh, const Placements& placements, const Shape& sizes, std::int64_t rank) {
  const auto found = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  if (found == mesh.ranks.end()) return {};
  Region region;
  const auto coordinate = coordinate_of_index(mesh, found - mesh.ranks.begin());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    region.dims.push_back(shard_segments(sizes[d], static_cast<std::int64_t>(d), placements, mesh.shape, coordinate));
  }
  return elements_of(region, sizes);
}

struct Drawn {
  MeshLayout mesh;
  Placements placements;
};

constexpr int kWorld = 8;

Drawn draw(const Shape& sizes) {
  static const std::vector<Shape> shapes{{1}, {2}, {3}, {4}, {2, 2}, {2, 3}, {2, 2, 2}};
  Drawn drawn;
  drawn.mesh.shape = *rc::gen::elementOf(shapes);
  std::vector<std::int64_t> ranks(kWorld);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (std::size_t i = ranks.size(); i-- > 1;) std::swap(ranks[i], ranks[*rc::gen::inRange<std::size_t>(0, i + 1)]);
  std::int64_t count = 1;
  for (const auto n : drawn.mesh.shape) count *= n;
  drawn.mesh.ranks.assign(ranks.begin(), ranks.begin() + count);
  for (std::size_t a = 0; a < drawn.mesh.shape.size(); ++a) {
    const auto dim = *rc::gen::inRange<std::int64_t>(-1, static_cast<std::int64_t>(sizes.size()));
    const auto kind = *rc::gen::inRange(0, 5);
    drawn.placements.push_back(dim < 0     ? Placement(Replicate())
                               : kind == 0 ? StridedShard(dim, 2)
                               : kind == 1 ? ZigzagShard(dim)
                                           : Shard(dim));
  }
  return drawn;
}

RC_GTEST_PROP(Transfer, EachRankReceivesMissingElementsOnce, ()) {
  const auto sizes = *rc::gen::container<Shape>(*rc::gen::inRange(0, 4), rc::gen::inRange<std::int64_t>(0, 9));
  const Drawn from = draw(sizes), to = draw(sizes);
  // Elements of 16 KB, so that some blocks are split among replicas.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Elements>> sent, received;
  for (std::int64_t rank = 0; rank < kWorld; ++rank) {
    const auto plan = plan_transfer(sizes, 1 << 14, {from.mesh, from.placements}, {to.mesh, to.placements}, rank);
    const Elements mine = held(from.mesh, from.placements, sizes, rank);
    Elements missing, got;
    const Elements wanted = held(to.mesh, to.placements, sizes, rank);
    std::set_difference(wanted.begin(), wanted.end(), mine.begin(), mine.end(), std::inserter(missing, missing.end()));
    for (const Transfer& t : plan.sends) {
      const auto part = elements_of(t.part, sizes);
      RC_ASSERT(std::includes(mine.begin(), mine.end(), part.begin(), part.end()));
      sent[{rank, t.peer}].push_back(part);
    }
    std::size_t count = 0;
    for (const Transfer& t : plan.receives) {
      const auto part = elements_of(t.part, sizes);
      RC_ASSERT(!part.empty());
      count += part.size();
      got.insert(part.begin(), part.end());
      received[{t.peer, rank}].push_back(part);
    }
    RC_ASSERT(got == missing);
    RC_ASSERT(count == missing.size());
  }
  RC_ASSERT(sent == received);
}

std::map<std::int64_t, std::int64_t> sent_by(const Shape& sizes, const Drawn& from, const Drawn& to) {
  std::map<std::int64_t, std::int64_t> load;
  for (const std::int64_t rank : from.mesh.ranks) {
    const auto plan = plan_transfer(sizes, 1 << 14, {from.mesh, from.placements}, {to.mesh, to.placements}, rank);
    for (const Transfer& t : plan.sends) load[rank] += t.part.numel();
  }
  return load;
}

TEST(Transfer, ReplicasShareTheSends) {
  // Three replicas and one receiver: a third each. Two replicas and four receivers of one shard each: two shards each.
  const Drawn three{{{3}, {0, 1, 2}, {}}, {Replicate()}}, one{{{1}, {3}, {}}, {Replicate()}};
  EXPECT_EQ(sent_by({12, 5}, three, one), (std::map<std::int64_t, std::int64_t>{{0, 20}, {1, 20}, {2, 20}}));
  const Drawn two{{{2}, {0, 1}, {}}, {Replicate()}}, four{{{4}, {2, 3, 4, 5}, {}}, {Shard(0)}};
  EXPECT_EQ(sent_by({4, 2}, two, four), (std::map<std::int64_t, std::int64_t>{{0, 4}, {1, 4}}));
}

}  // namespace
}  // namespace dtensor
