// Redistribution on thread ranks: bit-exact for every pair of placements, whatever the mesh, sizes, dtype and strides.
#include "redistribute/execute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "dtensor/events.h"
#include "dtensor/mesh.h"
#include "layouts.h"
#include "mesh/mesh_impl.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

using test::all_coordinates;
using test::all_lists;
using test::Shape;

const std::vector<Placement> kAll{Replicate(),
                                  Shard(0),
                                  Shard(1),
                                  StridedShard(0, 2),
                                  Partial(),
                                  Partial(ReduceOp::avg),
                                  Partial(ReduceOp::max),
                                  Partial(ReduceOp::min),
                                  Partial(ReduceOp::product)};
const std::vector<Placement> kShards{Replicate(), Shard(0), Shard(1), StridedShard(0, 2), StridedShard(1, 3)};

struct Case {
  Shape sizes;
  Placements from, to;
  at::ScalarType dtype = at::kDouble;
  std::vector<at::Tensor> inputs{}, outputs{};  // By rank.
};

at::Tensor indices_of(const Segments& segments) {
  std::vector<at::Tensor> ranges;
  for (const Segment& s : segments) ranges.push_back(at::arange(s.offset, s.offset + s.length, at::kLong));
  return at::cat(ranges);
}

at::Tensor part_of(at::Tensor global, const Placements& placements, const Shape& mesh, const Coordinate& at) {
  for (std::int64_t dim = 0; dim < global.dim(); ++dim) {
    global = global.index_select(dim, indices_of(shard_segments(global.size(dim), dim, placements, mesh, at)));
  }
  return global;
}

at::Tensor reduce(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const at::Tensor all = at::stack(parts);
  switch (op) {
    case ReduceOp::avg:
      return all.sum(0).div(static_cast<double>(parts.size()));
    case ReduceOp::max:
      return all.amax(0);
    case ReduceOp::min:
      return all.amin(0);
    case ReduceOp::product:
      return all.prod(0, false, all.scalar_type());
    default:
      return all.sum(0, false, all.scalar_type());
  }
}

// Reduces Partial axes from the right: the values of each rank if these axes were replicated.
std::vector<at::Tensor> reduced(std::vector<at::Tensor> parts, const Placements& placements, const Shape& mesh) {
  const std::vector<Coordinate> ranks = all_coordinates(mesh);
  for (std::size_t axis = mesh.size(); axis-- > 0;) {
    if (!placements[axis].is_partial()) continue;
    std::vector<at::Tensor> next;
    for (const Coordinate& at : ranks) {
      std::vector<at::Tensor> line;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        Coordinate other = ranks[r];
        other[axis] = at[axis];
        if (other == at) line.push_back(parts[r]);
      }
      next.push_back(reduce(line, placements[axis].reduce_op()));
    }
    parts = std::move(next);
  }
  return parts;
}

// Integers with many divisors, so that averages are integers, and small enough for exact products.
at::Tensor values_for(const Case& c, std::int64_t seed) {
  std::int64_t n = 1;
  for (const std::int64_t size : c.sizes) n *= size;
  const at::Tensor i = at::arange(n, at::kLong) * 7 + seed * 13;
  if (c.dtype == at::kBool) return (i % 3 == 0).reshape(c.sizes);
  const std::int64_t unit = c.dtype == at::kDouble ? 24 : 1;
  return ((i % 5 - 2) * unit).reshape(c.sizes).to(c.dtype);
}

// A tensor of these values that is not row-major.
at::Tensor scrambled(const at::Tensor& t, unsigned how) {
  if (how % 3 == 0 || t.dim() == 0) return t.contiguous();
  if (how % 3 == 1) return t.transpose(0, -1).contiguous().transpose(0, -1);
  const at::Tensor wide = at::stack({t, t.logical_not().to(t.scalar_type())}, -1);
  return wide.select(-1, 0);
}

void prepare(Case& c, const Shape& mesh, unsigned salt) {
  for (const Coordinate& at : all_coordinates(mesh)) {
    std::int64_t seed = 0;
    for (std::size_t i = 0; i < mesh.size(); ++i) seed = seed * 5 + (c.from[i].is_partial() ? at[i] : 0);
    c.inputs.push_back(scrambled(part_of(values_for(c, seed), c.from, mesh, at), salt + at[0]));
  }
  c.outputs.resize(c.inputs.size());
}

void run(std::vector<Case>& cases, const Shape& mesh) {
  const auto ranks = static_cast<int>(all_coordinates(mesh).size());
  run_local(ranks, [&](Communicator world) {
    const DeviceMesh device_mesh = init_device_mesh(world, at::kCPU, mesh);
    for (Case& c : cases) {
      const at::Tensor& local = c.inputs[world.rank()];
      const at::DimVector strides(c.sizes.size(), 1);
      const SpecPtr spec = intern_spec(impl_of(device_mesh), c.from, c.sizes, strides, c.dtype);
      const at::Tensor before = local.clone();
      c.outputs[world.rank()] = redistribute_local(local, *spec, c.to);
      if (!at::equal(local, before)) throw std::runtime_error("expected an unchanged input");
    }
  });
}

void check(const Case& c, const Shape& mesh) {
  const std::string what = to_string(c.from) + " -> " + to_string(c.to) + " of " + std::to_string(c.sizes[0]);
  at::Tensor global = at::zeros(c.sizes, c.dtype);
  const std::vector<at::Tensor> inputs = reduced(c.inputs, c.from, mesh), outputs = reduced(c.outputs, c.to, mesh);
  const std::vector<Coordinate> ranks = all_coordinates(mesh);
  const at::Tensor ids = at::arange(global.numel(), at::kLong).reshape(c.sizes);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    global.put_(part_of(ids, c.from, mesh, ranks[r]), inputs[r]);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(c.outputs[r].scalar_type(), c.dtype) << what;
    ASSERT_TRUE(at::equal(outputs[r], part_of(global, c.to, mesh, ranks[r]))) << what << " rank " << r;
  }
}

void run_and_check(std::vector<Case> cases, const Shape& mesh) {
  unsigned salt = 0;
  for (Case& c : cases) prepare(c, mesh, ++salt);
  run(cases, mesh);
  for (const Case& c : cases) check(c, mesh);
}

// Mixed reductions that do not commute with a later average are still exact, since the values are multiples of 24.
std::vector<Case> all_cases(const std::vector<Placement>& choices, std::size_t axes, const std::vector<Shape>& sizes) {
  std::vector<Case> cases;
  for (const Placements& from : all_lists(choices, axes)) {
    for (const Placements& to : all_lists(choices, axes)) {
      for (const Shape& size : sizes) cases.push_back({size, from, to});
    }
  }
  return cases;
}

std::vector<Case> sampled(std::vector<Case> cases, std::size_t count) {
  std::shuffle(cases.begin(), cases.end(), std::mt19937(count));
  cases.resize(std::min(count, cases.size()));
  return cases;
}

std::vector<Shape> sizes_up_to_nine() {
  std::vector<Shape> sizes;
  for (std::int64_t n = 0; n < 10; ++n) sizes.push_back({n, (n * 4 + 3) % 10});
  return sizes;
}

TEST(Execute, EveryPairOnOneAxisIsExact) {
  for (const Shape& mesh : {Shape{1}, Shape{2}, Shape{3}}) run_and_check(all_cases(kAll, 1, sizes_up_to_nine()), mesh);
}

TEST(Execute, EveryPairOfShardsOnTwoAxesIsExact) {
  for (const Shape& mesh : {Shape{2, 2}, Shape{2, 3}}) run_and_check(all_cases(kShards, 2, {{4, 6}, {5, 3}}), mesh);
}

TEST(Execute, PairsOnTwoAxesAreExact) {
  for (const Shape& mesh : {Shape{2, 2}, Shape{2, 3}, Shape{1, 2}}) {
    run_and_check(sampled(all_cases(kAll, 2, sizes_up_to_nine()), 1500), mesh);
  }
}

TEST(Execute, RaggedPairsAreExact) {
  std::mt19937 random(8);
  const auto sizes = sizes_up_to_nine();
  for (const Shape& mesh : test::mesh_shapes()) {
    const auto lists = all_lists(kAll, mesh.size());
    std::vector<Case> cases;
    for (int i = 0; i < 300; ++i) {
      const Shape& size = sizes[random() % 10];
      const auto draw = [&] {
        return test::replace_some_shards_of(lists[random() % lists.size()], size, mesh, random);
      };
      cases.push_back({size, draw(), draw()});
    }
    run_and_check(cases, mesh);
  }
}

TEST(Execute, PairsOnThreeAxesAreExact) {
  const auto lists = all_lists(kAll, 3);
  const auto sizes = sizes_up_to_nine();
  std::mt19937 random(7);
  std::vector<Case> cases;
  for (int i = 0; i < 600; ++i) {
    cases.push_back({sizes[random() % 10], lists[random() % lists.size()], lists[random() % lists.size()]});
  }
  run_and_check(cases, {2, 2, 2});
}

TEST(Execute, EveryDtypeIsExact) {
  for (const at::ScalarType dtype : {at::kBool, at::kLong, at::kBFloat16, at::kFloat, at::kByte}) {
    std::vector<Placement> choices{Replicate(), Shard(0), Shard(1), StridedShard(0, 2)};
    if (dtype != at::kBool) choices.push_back(Partial());
    if (dtype != at::kByte) choices.push_back(Partial(ReduceOp::max));  // Negative values have wrapped around.
    choices.push_back(Partial(ReduceOp::product));
    std::vector<Case> cases = all_cases(choices, 1, {{5, 3}, {4, 4}, {1, 7}, {0, 2}});
    for (Case& c : cases) c.dtype = dtype;
    run_and_check(cases, {3});
  }
}

TEST(Execute, ThreeAndMoreDimensionsAreExact) {
  std::vector<Case> cases =
      all_cases({Replicate(), Shard(0), Shard(1), Shard(2), Shard(3), Partial()}, 2, {{2, 3, 4, 5}});
  run_and_check(cases, {2, 2});
}

// Large enough to bypass the cache, with sizes and offsets that are not aligned.
TEST(Execute, LargeTensorsAreExact) {
  std::vector<Case> cases;
  for (const auto& [from, to] : {std::pair<Placement, Placement>{Shard(0), Shard(1)},
                                 {Shard(1), Replicate()},
                                 {Partial(), Replicate()},
                                 {Partial(ReduceOp::max), Shard(0)},
                                 {Partial(ReduceOp::avg), Shard(1)}}) {
    cases.push_back({{1037, 2001}, {from}, {to}});
  }
  run_and_check(std::move(cases), {2});
}

TEST(Execute, ScalarsAreExact) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const SpecPtr partial = intern_spec(impl_of(mesh), {Partial()}, {}, {}, at::kFloat);
    const at::Tensor sum = redistribute_local(at::full({}, world.rank() + 1.0F), *partial, {Replicate()});
    if (sum.item<float>() != 3) throw std::runtime_error("1 + 2");
  });
}

TEST(Execute, PartialPreservesNegativeZero) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const SpecPtr spec = intern_spec(impl_of(mesh), {Shard(0)}, {4}, {1}, at::kFloat);
    const SpecPtr partial = with_placements(*spec, {Partial()});
    const at::Tensor back =
        redistribute_local(redistribute_local(at::full({2}, -0.0), *spec, {Partial()}), *partial, {Shard(0)});
    if (!back.signbit().all().item<bool>()) throw std::runtime_error("expected all signs to be negative");
  });
}

TEST(Execute, ConjugateAndNegativeViewsAreResolved) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const at::Tensor z = at::view_as_complex(at::arange(8, at::kFloat).reshape({4, 2}));
    const SpecPtr spec = intern_spec(impl_of(mesh), {Shard(0)}, {8}, {1}, at::kComplexFloat);
    const at::Tensor full_tensor = redistribute_local(z.conj(), *spec, {Replicate()});
    const at::Tensor want = at::cat({z, z}).conj().resolve_conj();
    if (!at::equal(at::view_as_real(full_tensor.resolve_conj()), at::view_as_real(want)))
      throw std::runtime_error("conj");
  });
}

TEST(Execute, ResultsOfCollectivesAreContiguousAndNewlyAllocated) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    for (const auto& [from, to] : {std::pair<Placement, Placement>{Shard(1), Replicate()},
                                   {Shard(0), Shard(1)},
                                   {Partial(), Replicate()},
                                   {Partial(), Shard(1)},
                                   {Replicate(), Partial(ReduceOp::max)}}) {
      const SpecPtr spec = intern_spec(impl_of(mesh), {from}, {4, 6}, {6, 1}, at::kFloat);
      const at::Tensor local = at::rand({spec->local_sizes[1], spec->local_sizes[0]}).t();
      const at::Tensor result = redistribute_local(local, *spec, {to});
      if (!result.is_contiguous() || result.is_alias_of(local)) throw std::runtime_error(from.str() + to.str());
    }
  });
}

TEST(Execute, WrongLocalSizesAreRefused) {
  const auto wrong = [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    redistribute_local(at::zeros({3}), *intern_spec(impl_of(mesh), {Shard(0)}, {4}, {1}, at::kFloat), {Replicate()});
  };
  try {
    run_local(2, wrong);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("sizes [3], but f32[4] on [2] [S(0)] has local sizes [2]"), std::string::npos) << text;
  }
}

TEST(Execute, EventsHavePlanAndBytes) {
  std::vector<Event> events;
  run_local(2, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const SpecPtr spec = intern_spec(impl_of(mesh), {Shard(0)}, {4}, {1}, at::kFloat);
    std::vector<Event> mine;
    {
      EventListener listener([&](const Event& e) { mine.push_back(e); });
      redistribute_local(at::zeros({2}), *spec, {Replicate()});
    }
    redistribute_local(at::zeros({2}), *spec, {Replicate()});
    if (world.rank() == 0) events = mine;
  });
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Event::Kind::collective);
  EXPECT_EQ(events[1].kind, Event::Kind::redistribute);
  EXPECT_EQ(events[1].name, "all_gather over {0}: [S(0)] -> [R]");
  EXPECT_EQ(events[1].bytes, 8);
  EXPECT_EQ(events[0].bytes, 8);
}

}  // namespace
}  // namespace dtensor
