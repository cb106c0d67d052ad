// Checked mode finds wrong rules and replicas that differ.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/rule.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TORCH_LIBRARY(checked_mode, m) {
  m.def("flip_rows(Tensor x) -> Tensor");
  m.impl("flip_rows", c10::DispatchKey::CPU, [](const at::Tensor& x) { return x.flip({0}); });
}

at::Tensor flip_rows(const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("checked_mode::flip_rows", "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

// The rule is right if columns are split, and wrong if rows are split.
TEST(Checked, FindsAWrongRule) {
  RuleBook::get().rule("checked_mode::flip_rows", "mn -> mn").no_meta();
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full_tensor = Draw(1).normal({4, 4});
    const auto rows = distribute_tensor(full_tensor, mesh, {Shard(0)}),
               columns = distribute_tensor(full_tensor, mesh, {Shard(1)});
    EXPECT_EQ(error_of([&] { flip_rows(rows); }), "no error");
    const Checked checked;
    EXPECT_EQ(error_of([&] { flip_rows(columns); }), "no error");
    const auto text = error_of([&] { flip_rows(rows); });
    EXPECT_NE(text.find("checked_mode::flip_rows"), std::string::npos) << text;
    EXPECT_NE(text.find("sharding rule is wrong"), std::string::npos) << text;
  });
}

TEST(Checked, FindsReplicasThatDiffer) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto mine = at::full({}, 2.0 * static_cast<double>(mesh.coordinate()->front()));
    const at::Tensor x = DTensor::from_local(mine, mesh, {Replicate(), Replicate()});
    EXPECT_EQ(error_of([&] { x.item<double>(); }), "no error");
    const Checked checked;
    for (const auto& text : {error_of([&] { x.item<double>(); }), error_of([&] { x + x; })}) {
      EXPECT_NE(text.find("differs between ranks"), std::string::npos) << text;
      EXPECT_NE(text.find("labeled Replicate"), std::string::npos) << text;
    }
    const at::Tensor shares = DTensor::from_local(mine, mesh, {Partial(), Replicate()});
    EXPECT_EQ(shares.item<double>(), 2);
  });
}

// Correct operators pass with any placements, in place, with gradients, and if results are uninitialized.
TEST(Checked, AcceptsCorrectPrograms) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw data(seed);
    const auto x = data.normal({6, 4}), w = data.normal({4, 6}), b = data.normal({6});
    const auto index = data.integers({6}, 6);
    const auto program = [&](at::Tensor x, at::Tensor w, at::Tensor b, const at::Tensor& index) {
      auto y = at::softmax(at::addmm(b, x, w), 1);
      y = at::layer_norm(y.t().contiguous(), {6}).index_select(0, index);
      auto out = at::zeros_like(y).index_add_(0, index, y);
      out.select(0, 1).mul_(3);
      at::empty_like(out).normal_();
      auto [values, order] = out.topk(2, 1);
      const auto loss =
          (at::gelu(out).std() + values.sum() + at::cat({y, out}).logsumexp(0).mean() + out.cumsum(0).sum());
      loss.backward();
      return std::vector<at::Tensor>{loss.detach(), x.grad(), w.grad(), b.grad()};
    };
    const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(); };
    const auto expected = program(leaf(x), leaf(w), leaf(b), index);
    on_mesh(mesh_shapes()[seed % mesh_shapes().size()], [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 1);
      Draw positions(seed);
      const auto place = [&](const at::Tensor& t) -> at::Tensor {
        return distribute_tensor(t.clone(), mesh, positions.placements_of(mesh, t.sizes(), t.is_floating_point()));
      };
      const Checked checked;
      const auto actual =
          program(place(x).requires_grad_(), place(w).requires_grad_(), place(b).requires_grad_(), place(index));
      for (std::size_t i = 0; i < actual.size(); ++i)
        expect_close(actual[i], expected[i], c10::str("seed ", seed), 1e-8);
    });
  }
}

}  // namespace
}  // namespace dtensor::test
