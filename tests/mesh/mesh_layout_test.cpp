// Mesh layouts: slicing, flattening and viewing against their definitions on random meshes.
#include "mesh/mesh_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "support/errors.h"

namespace dtensor {
namespace {

using test::error_of;

// Formats as [[[0],[1]]].
std::string nested(const MeshLayout& layout, std::int64_t dim = 0, std::int64_t first = 0) {
  if (dim == layout.ndim()) {
    return std::to_string(layout.ranks[first]);
  }
  std::int64_t stride = 1;
  for (auto d = dim + 1; d < layout.ndim(); ++d) {
    stride *= layout.shape[d];
  }
  std::string text = "[";
  for (std::int64_t i = 0; i < layout.shape[dim]; ++i) {
    text += (i ? "," : "") + nested(layout, dim + 1, first + i * stride);
  }
  return text + "]";
}

#define EXPECT_ERROR(expression, part)                                           \
  EXPECT_NE(error_of([&] { (void)(expression); }).find(part), std::string::npos) \
      << error_of([&] { (void)(expression); })

const std::vector<std::string> kThree{"replicate", "shard", "tp"};

// A mesh of up to 4 dimensions of sizes 1 to 3 over shuffled ranks of a larger world.
MeshLayout random_layout() {
  const auto ndim = *rc::gen::inRange(1, 5);
  const auto shape = *rc::gen::container<std::vector<std::int64_t>>(ndim, rc::gen::inRange<std::int64_t>(1, 4));
  std::int64_t size = 1;
  for (const auto n : shape) size *= n;
  const auto world = size + *rc::gen::inRange<std::int64_t>(0, 3);
  std::vector<std::int64_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::mt19937 engine(*rc::gen::arbitrary<std::uint32_t>());
  std::shuffle(ranks.begin(), ranks.end(), engine);
  ranks.resize(size);
  std::vector<std::string> names;
  for (int d = 0; d < ndim; ++d) names.push_back(std::string(1, static_cast<char>('a' + d)));
  return make_layout(world, ranks, shape, names);
}

std::vector<std::int64_t> random_coordinate(const MeshLayout& layout) {
  std::vector<std::int64_t> c;
  for (const auto n : layout.shape) c.push_back(*rc::gen::inRange<std::int64_t>(0, n));
  return c;
}

std::int64_t rank_at(const MeshLayout& layout, at::IntArrayRef coordinate) {
  std::int64_t index = 0;
  for (std::size_t d = 0; d < coordinate.size(); ++d) index = index * layout.shape[d] + coordinate[d];
  return layout.ranks[index];
}

// Shuffled ranks, and evenly spaced ones in either order, which are found without a search.
RC_GTEST_PROP(MeshLayout, CoordinateOfARankIsThatOfItsIndex, ()) {
  auto layout = random_layout();
  if (*rc::gen::arbitrary<bool>()) {
    const auto first = *rc::gen::inRange<std::int64_t>(0, 4), step = *rc::gen::inRange<std::int64_t>(1, 4);
    for (std::size_t i = 0; i < layout.ranks.size(); ++i) layout.ranks[i] = first + step * static_cast<std::int64_t>(i);
    if (*rc::gen::arbitrary<bool>()) std::reverse(layout.ranks.begin(), layout.ranks.end());
  }
  const auto size = static_cast<std::int64_t>(layout.ranks.size());
  for (std::int64_t rank = -4; rank < 4 * size + 8; ++rank) {
    const auto found = std::find(layout.ranks.begin(), layout.ranks.end(), rank);
    const auto got = coordinate_of_rank(layout, rank);
    RC_ASSERT(got.has_value() == (found != layout.ranks.end()));
    if (got) RC_ASSERT(*got == coordinate_of_index(layout, found - layout.ranks.begin()));
  }
}

TEST(MeshLayout, NestedRanksMatchNativeParallelism) {
  EXPECT_EQ(nested(make_layout(2, {1, 2, 1}, kThree)), "[[[0],[1]]]");
  EXPECT_EQ(nested(make_layout(2, {2, 1, 1}, kThree)), "[[[0]],[[1]]]");
  EXPECT_EQ(nested(make_layout(2, {1, 1, 2}, kThree)), "[[[0,1]]]");
  const auto cube = make_layout(8, {2, 2, 2}, kThree);
  EXPECT_EQ(nested(cube), "[[[0,1],[2,3]],[[4,5],[6,7]]]");
  EXPECT_EQ(nested(slice_layout(cube, {0, 1}, {0, 0, 0})), "[[0,2],[4,6]]");
  EXPECT_EQ(nested(slice_layout(cube, {2}, {0, 0, 0})), "[0,1]");
  EXPECT_EQ(slice_layout(cube, {0, 1}, {0, 0, 0}).names, (std::vector<std::string>{"replicate", "shard"}));
}

TEST(MeshLayout, DenseAndSparseViews) {
  const auto dense = make_layout(8, {2, 2, 2}, kThree);
  const auto sparse = view_layout(dense, {2, 4}, {"edp", "ep"});
  EXPECT_EQ(nested(sparse), "[[0,1,2,3],[4,5,6,7]]");
  EXPECT_EQ(nested(flatten_layout(dense, "")), "[0,1,2,3,4,5,6,7]");
  EXPECT_EQ(flatten_layout(dense, "").names, std::vector<std::string>{"replicate_shard_tp"});
  EXPECT_EQ(flatten_layout(dense, "all").names, std::vector<std::string>{"all"});
  EXPECT_TRUE(flatten_layout(make_layout(4, {2, 2}, {}), "").names.empty());
  // A flattened slice is the line of its dimensions.
  const auto slice = slice_layout(dense, {0, 1}, {1, 0, 1});
  EXPECT_EQ(flatten_layout(slice, "").ranks, line_ranks(dense, 0b011, {1, 0, 1}));
}

TEST(MeshLayout, ErrorsNameBothValues) {
  EXPECT_ERROR(make_layout(2, {2, 2}, {}), "mesh shape [2, 2] needs 4 ranks, but the world has 2");
  EXPECT_ERROR(make_layout(4, {0, 1}, {2, 2}, {}), "holds 4 ranks, but 2 were given");
  EXPECT_ERROR(make_layout(4, {0, 4}, {2}, {}), "mesh rank 4 is not in a world of 4 ranks");
  EXPECT_ERROR(make_layout(4, {1, 1}, {2}, {}), "rank 1 is in the mesh twice");
  EXPECT_ERROR(make_layout(4, {2, 0}, {}), "at least 1, got [2, 0]");
  EXPECT_ERROR(make_layout(4, at::IntArrayRef{}, {}), "at least one dimension");
  EXPECT_ERROR(make_layout(4, {2, 2}, {"dp"}), "needs 2 names, got 1: dp");
  EXPECT_ERROR(make_layout(4, {2, 2}, {"dp", "dp"}), "'dp' is given twice in dp, dp");
  EXPECT_ERROR(make_layout(4, {2, 2}, {"dp", ""}), "must not be empty");
  EXPECT_ERROR(make_layout(4, {std::int64_t{1} << 40, std::int64_t{1} << 40}, {}), "overflows the number of ranks");
  EXPECT_ERROR(make_layout(1, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {}), "at most 8 dimensions, got 9");
  const auto mesh = make_layout(4, {2, 2}, {"dp", "tp"});
  EXPECT_ERROR(dim_of_name(mesh, "pp"), "no dimension 'pp'; its dimensions are: dp, tp");
  EXPECT_ERROR(dim_of_name(make_layout(4, {2, 2}, {}), "pp"), "its dimensions have no names");
  EXPECT_ERROR(checked_dim(mesh, 2), "mesh dimension 2 is out of range for a mesh of 2 dimensions");
  EXPECT_ERROR(slice_layout(mesh, {0, -2}, {0, 0}), "'dp' is sliced twice");
  EXPECT_ERROR(slice_layout(mesh, {}, {0, 0}), "at least one dimension");
  EXPECT_ERROR(view_layout(mesh, {3}, {}), "shape [2, 2] (4 ranks) cannot be viewed as [3] (3 ranks)");
  EXPECT_ERROR(line_ranks(mesh, 0b100, {0, 0}), "axis mask 4");
}

RC_GTEST_PROP(MeshLayout, SliceHasTheRanksOfItsCoordinates, ()) {
  const auto layout = random_layout();
  const auto at = random_coordinate(layout);
  std::vector<std::int64_t> dims(layout.ndim());
  std::iota(dims.begin(), dims.end(), 0);
  std::mt19937 engine(*rc::gen::arbitrary<std::uint32_t>());
  std::shuffle(dims.begin(), dims.end(), engine);
  dims.resize(*rc::gen::inRange<std::size_t>(1, dims.size() + 1));
  const auto slice = slice_layout(layout, dims, at);
  const auto in_slice = random_coordinate(slice);
  auto in_mesh = at;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    in_mesh[dims[i]] = in_slice[i];
    RC_ASSERT(slice.names[i] == layout.names[dims[i]]);
  }
  RC_ASSERT(rank_at(slice, in_slice) == rank_at(layout, in_mesh));
  RC_ASSERT(std::count(slice.ranks.begin(), slice.ranks.end(), rank_at(layout, at)) == 1);
}

RC_GTEST_PROP(MeshLayout, LinesPartitionTheMesh, ()) {
  const auto layout = random_layout();
  const auto mask = *rc::gen::inRange<AxisMask>(0, 1U << layout.ndim());
  std::set<std::vector<std::int64_t>> lines;
  std::set<std::int64_t> covered;
  for (std::int64_t i = 0; i < layout.size(); ++i) {
    std::vector<std::int64_t> at(layout.ndim());
    for (auto [d, rest] = std::pair{layout.ndim() - 1, i}; d >= 0; rest /= layout.shape[d--]) {
      at[d] = rest % layout.shape[d];
    }
    RC_ASSERT(rank_at(layout, at) == layout.ranks[i]);
    const auto line = line_ranks(layout, mask, at);
    RC_ASSERT(std::count(line.begin(), line.end(), layout.ranks[i]) == 1);
    lines.insert(line);
    covered.insert(line.begin(), line.end());
  }
  std::int64_t per_line = 1;
  for (std::int64_t d = 0; d < layout.ndim(); ++d) per_line *= (mask >> d) & 1U ? layout.shape[d] : 1;
  RC_ASSERT(static_cast<std::int64_t>(lines.size()) * per_line == layout.size());
  RC_ASSERT(static_cast<std::int64_t>(covered.size()) == layout.size());
}

RC_GTEST_PROP(MeshLayout, ViewsAndFlatteningKeepTheOrder, ()) {
  const auto layout = random_layout();
  const auto flat = flatten_layout(layout, "all");
  RC_ASSERT(flat.ranks == layout.ranks);
  RC_ASSERT(view_layout(flat, layout.shape, layout.names) == layout);
}

TEST(MeshLayout, TextHasAxesAndRanks) {
  const auto mesh = make_layout(4, {2, 2}, {"replicate", "tp"});
  EXPECT_EQ(layout_str(mesh, c10::DeviceType::CPU), "DeviceMesh(cpu, replicate=2, tp=2, ranks=[0, 1, 2, 3])");
  EXPECT_EQ(layout_str(make_layout(2, {2}, {}), c10::DeviceType::CPU), "DeviceMesh(cpu, 0=2, ranks=[0, 1])");
}

TEST(MeshLayout, PlotShowsAxesAndRanks) {
  EXPECT_EQ(draw_layout(make_layout(8, {2, 2, 2}, kThree), c10::DeviceType::CPU, 5),
            R"(DeviceMesh(cpu, replicate=2, shard=2, tp=2, ranks=[0, 1, 2, 3, 4, 5, 6, 7])
+- replicate=0 -----+  +- replicate=1 -----+
|         tp=0 tp=1 |  |         tp=0 tp=1 |
| shard=0  0    1   |  | shard=0  4   [5]  |
| shard=1  2    3   |  | shard=1  6    7   |
+-------------------+  +-------------------+
)");
  EXPECT_EQ(draw_layout(make_layout(2, {2}, {"dp"}), c10::DeviceType::CPU, 0),
            "DeviceMesh(cpu, dp=2, ranks=[0, 1])\ndp=0 dp=1\n[0]   1\n");
  EXPECT_EQ(draw_layout(make_layout(4, {4, 1}, {}), c10::DeviceType::CPU, 9),
            R"(DeviceMesh(cpu, 0=4, 1=1, ranks=[0, 1, 2, 3])
       dim1=0
dim0=0  0
dim0=1  1
dim0=2  2
dim0=3  3
)");
}

RC_GTEST_PROP(MeshLayout, PlotShowsEachRankOnce, ()) {
  const auto layout = random_layout();
  const auto plot = draw_layout(layout, c10::DeviceType::CPU);
  const auto body = plot.substr(plot.find('\n'));
  std::multiset<std::int64_t> seen;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const bool starts = std::isdigit(body[i]) && body[i - 1] == ' ';  // titles have '=' before their number
    if (starts) seen.insert(std::stoll(body.substr(i)));
  }
  RC_ASSERT((seen == std::multiset<std::int64_t>(layout.ranks.begin(), layout.ranks.end())));
}

}  // namespace
}  // namespace dtensor
