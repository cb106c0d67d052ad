// Writing the data of DTensors into regular tensors. Every rank writes the full result, which equals that of one device
// for any placements. Models can use their own buffers without a scope.
#include <gtest/gtest.h>

#include "dtensor/inspect.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Place = std::function<at::Tensor(const at::Tensor&)>;

// A function that creates regular tensors, writes to them from distributed operands and returns them. On one device all
// tensors are regular.
struct Program {
  const char* name;
  std::vector<at::Tensor> (*run)(Draw& draw, const Place& place);
};

std::vector<at::Tensor> beam_search(Draw& draw, const Place& place) {
  auto scores = at::zeros({3, 8}, at::kDouble), beams = at::zeros({3, 8}, at::kLong),
       running = at::zeros({}, at::kDouble);
  const auto columns = place(draw.integers({3, 4}, 8)), values = place(draw.normal({3, 4}));
  for (int step = 0; step < 3; ++step) {
    scores.scatter_(1, place(at::arange(4).expand({3, 4}).clone()), values);
    scores.scatter_add_(1, columns, values);
    beams.copy_(place(draw.integers({3, 8}, 8)));
    beams.index_fill_(1, place(draw.integers({2}, 8)), -1);
    scores.masked_fill_(place(draw.integers({3, 8}, 2).to(at::kBool)), -5);
    scores.index_put_({place(draw.integers({2}, 3))}, place(draw.normal({8})));
    running.add_(values.sum());
  }
  return {scores, beams, running};
}

std::vector<at::Tensor> static_cache(Draw& draw, const Place& place) {
  auto keys = at::zeros({2, 2, 9, 4}, at::kDouble), values = at::zeros({2, 2, 9, 4});
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto k = place(draw.normal({2, 2, 3, 4}));
    const auto where = at::arange(3 * step, 3 * step + 3);
    keys.index_copy_(2, step == 1 ? place(where) : where, k);
    values.narrow(2, 3 * step, 3).copy_(k);  // Through a view, with another dtype.
    keys.select(0, 1).add_(k.select(0, 0).sum());
  }
  return {keys, values};
}

std::vector<at::Tensor> experts(Draw& draw, const Place& place) {
  const auto x = draw.normal({6, 4});
  auto out = at::zeros({6, 4}, at::kDouble);
  for (int expert = 0; expert < 3; ++expert) {
    const auto tokens = draw.integers({3}, 6);
    const auto weight = place(draw.normal({4, 4}));
    out.index_add_(0, tokens, at::mm(x.index_select(0, tokens), weight));
  }
  return {out};
}

std::vector<at::Tensor> running_statistics(Draw& draw, const Place& place) {
  auto mean = at::zeros({4}, at::kDouble), var = at::ones({4}, at::kDouble);
  const auto x = place(draw.normal({6, 4, 3}));
  const auto y = at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
  const auto z = at::instance_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
  return {mean, var, y, z};
}

std::vector<at::Tensor> given_results(Draw& draw, const Place& place) {
  const auto x = place(draw.normal({5, 3}));
  auto same = at::empty({5, 3}, at::kDouble), grown = at::empty({0}, at::kDouble),
       turned = at::empty({3, 5}).to(at::kDouble).t();
  at::add_out(same, x, x);
  at::mul_out(turned, x, x);
  at::mm_out(grown, x, x.t());
  return {same, grown, turned};
}

const std::vector<Program>& programs() {
  static const std::vector<Program> all = {{"beam search", &beam_search},
                                           {"static cache", &static_cache},
                                           {"experts", &experts},
                                           {"running statistics", &running_statistics},
                                           {"out=", &given_results}};
  return all;
}

TEST(RegularOutputs, MatchSingleDeviceOnEveryRank) {
  for (const auto& program : programs()) {
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      Draw data(seed);
      const auto expected = program.run(data, [](const at::Tensor& t) { return t; });
      on_mesh(mesh_shapes()[seed % mesh_shapes().size()], [&](const DeviceMesh& mesh) {
        Draw same(seed), positions(seed);
        const auto place = [&](const at::Tensor& t) -> at::Tensor {
          return distribute_tensor(t.clone(), mesh, positions.placements_of(mesh, t.sizes(), t.is_floating_point()));
        };
        const auto actual = program.run(same, place);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          const auto what = c10::str(program.name, " result ", i, " seed ", seed);
          EXPECT_EQ(actual[i].strides(), expected[i].strides()) << what;
          expect_close(actual[i], expected[i], what, actual[i].scalar_type() == at::kFloat ? 1e-5 : 1e-9);
        }
      });
    }
  }
}

// Gradients flow through the regular result to the tensors that were written into it.
TEST(RegularOutputs, GradientsReachTheWrittenTensors) {
  Draw draw(3);
  const auto x = draw.normal({3, 4}), index = at::tensor({4, 0, 2}), scale = draw.normal({6, 4});
  const auto loss_of = [&](const at::Tensor& source) {
    auto out = at::zeros({6, 4}, at::kDouble);
    out.index_add_(0, index, source * source);
    out.narrow(0, 3, 3).copy_(source * 2);
    return (out * scale).sum();
  };
  const auto reference = x.clone().requires_grad_();
  loss_of(reference).backward();
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    for (const auto& p : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const at::Tensor source = distribute_tensor(x.clone(), mesh, {p, Replicate()}).requires_grad_();
      loss_of(source).backward();
      expect_close(source.grad(), reference.grad(), p.str());
    }
  });
}

TEST(RegularOutputs, AreRefusedUnderStrictAndOutsideTheMesh) {
  run_local(3, [](Communicator world) {
    const auto mesh = device_mesh(world, at::kCPU, {0, 1}, {2});
    const auto x = ones({4}, mesh, {Shard(0)});
    auto regular = at::zeros({4});
    if (world.rank() == 2) {
      EXPECT_NE(error_of([&] { regular.copy_(x); }).find("outside the mesh"), std::string::npos);
      return;
    }
    regular.copy_(x);
    EXPECT_EQ(regular.sum().item<float>(), 4);
    const Strict strict;
    EXPECT_NE(error_of([&] { regular.copy_(x); }).find("Strict refuses"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
