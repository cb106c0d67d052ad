// Attention on split sequences equals one device for random sizes, masks, placements and strategies, forward and
// backward.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

template <class T>
T one_of(Draw& draw, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
}

std::int64_t length(Draw& draw) {
  const auto pick = draw.integer(0, 299);
  if (pick == 0) return 4097;
  return pick < 210 ? draw.integer(1, 9) : one_of<std::int64_t>(draw, {62, 63, 64});
}

Placement split(Draw& draw, std::int64_t length, std::int64_t ranks) {
  if (draw.integer(0, 4) > 0) return draw.coin() ? ZigzagShard(2) : Shard(2);
  return RaggedShard(2, random_cut(length, ranks, draw.engine()));
}

void draw_positions(Draw& draw, Case& c) {
  c.mesh = one_of<Shape>(draw, {{2}, {3}, {4}, {2, 2}, {2, 3}, {2, 2, 2}});
  const auto axes = c.mesh.size();
  for (auto& where : c.where) where = Placements(axes);
  const auto row_axis = static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(axes) - 1));
  for (std::size_t a = 0; a < axes; ++a) {
    const auto other =
        one_of<Placement>(draw, {Shard(0), Shard(1), Shard(2), ZigzagShard(2), Replicate(), Partial(), Shard(3)});
    const bool rows = a == row_axis;
    const auto row_split = draw.coin() ? ZigzagShard(2) : Shard(2);
    for (auto& where : c.where) {
      where[a] = rows ? row_split : other;
      if (draw.integer(0, 9) == 0)
        where[a] = one_of<Placement>(draw, {Shard(0), Shard(1), Shard(2), ZigzagShard(2), Replicate()});
    }
    if (rows && draw.integer(0, 5) == 0) c.where[0][a] = Replicate();  // only keys are split
    if (rows && c.queries == c.keys && axes == 1 && !c.where[0][a].is_replicate()) {
      for (auto& where : c.where) where[a] = split(draw, c.keys, c.mesh[a]);
    }
  }
}

void draw_mask(Draw& draw, Case& c) {
  const auto kind = draw.integer(0, 3);
  if (kind < 2) return;
  Shape sizes{c.batch, c.heads, c.queries, c.keys};
  for (auto& size : sizes) size = draw.integer(0, 2) == 0 ? 1 : size;
  if (draw.coin()) sizes.erase(sizes.begin(), sizes.begin() + draw.integer(1, 2));
  c.options.mask = draw.normal(sizes, c.dtype);
  if (kind == 3) c.options.mask = c.options.mask.lt(draw.integer(-1, 1));
  // Half types are compared with double, which would not lose scores beside -1e9.
  const bool half = c.dtype == at::kBFloat16 || c.dtype == at::kHalf;
  const double hidden = draw.coin() && !half ? -1e9 : -INFINITY;
  if (kind == 2 && draw.coin()) c.options.mask = c.options.mask.masked_fill(c.options.mask.lt(0), hidden);
  if (!draw.coin()) return;
  for (std::size_t a = 0; a < c.mesh.size(); ++a) {
    const auto dim = draw.integer(-1, static_cast<std::int64_t>(sizes.size()) - 1);
    c.mask_where.push_back(dim < 0 ? Replicate() : Shard(dim));
  }
}

void draw_documents(Draw& draw, std::vector<std::int64_t>& starts, std::int64_t length) {
  starts = {0};
  while (draw.integer(0, 2) > 0 && starts.back() + 1 < length) {
    starts.push_back(draw.integer(starts.back() + 1, length - 1));
  }
}

void draw_options(Draw& draw, Case& c) {
  draw_mask(draw, c);
  c.options.causal = draw.coin() && !(c.by_aten && c.options.mask.defined());
  if (draw.integer(0, 3) == 0) c.options.dropout = 0.5;
  if (draw.integer(0, 3) == 0) c.options.scale = 0.7;
  if (c.by_aten) return;
  if (draw.coin()) c.options.window = draw.integer(1, std::min<std::int64_t>(c.keys, 12));
  if (draw.coin()) c.options.sinks = draw.normal({c.heads}, c.dtype);
  if (c.queries != c.keys || draw.coin()) return;
  if (draw.coin()) return draw_documents(draw, c.options.documents, c.keys);
  c.rows.resize(static_cast<std::size_t>(c.batch));
  for (auto& row : c.rows) draw_documents(draw, row, c.keys);
  if (!draw.coin()) return;
  for (std::size_t a = 0; a < c.mesh.size(); ++a) {
    c.rows_where.push_back(one_of<Placement>(draw, {Shard(0), Shard(1), Replicate()}));
  }
}

Case draw_case(std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.seed = seed % 1000;
  c.keys = length(draw);
  const bool long_sequence = c.keys > 1000;
  c.queries = long_sequence || draw.coin() ? c.keys : draw.integer(1, 66);
  c.batch = long_sequence ? 1 : draw.integer(1, 2);
  c.heads = long_sequence ? 1 : one_of<std::int64_t>(draw, {1, 3, 8});
  c.groups = one_of<std::int64_t>(draw, {1, 2, 8});
  if (c.heads % c.groups != 0) c.groups = draw.coin() ? c.heads : 1;
  c.features = draw.integer(1, 8);
  c.values = draw.integer(0, 3) == 0 ? draw.integer(1, 8) : c.features;
  c.dtype = one_of<at::ScalarType>(draw, {at::kDouble, at::kDouble, at::kFloat, at::kFloat, at::kBFloat16});
  c.by_aten = draw.coin();
  draw_positions(draw, c);
  draw_options(draw, c);
  c.strategy = static_cast<AttentionStrategy>(draw.integer(0, 3));
  return c;
}

// RC_PARAMS="max_success=3000" runs more cases.
void check_property(const char* name) {
  EXPECT_TRUE(rc::check(name, [](std::uint64_t seed) {
    const Case c = draw_case(seed);
    RC_LOG() << c.str();
    check_case(c);
  }));
}

TEST(Attention, EqualsOneDevice) { check_property("attention on split sequences"); }
TEST(Attention, EqualsOneDeviceSecondRun) { check_property("attention on split sequences, further draws"); }
TEST(Attention, EqualsOneDeviceThirdRun) { check_property("attention on split sequences, still others"); }

}  // namespace
}  // namespace dtensor::test
