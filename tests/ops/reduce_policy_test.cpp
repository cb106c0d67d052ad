// ReducePolicy: half types are rounded once, after the sum over all ranks. N ranks then differ from the exact value by
// at most half a unit in the last place, like a float sum that is rounded; without the policy each rank rounds too.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

// The largest error in halves of a unit in the last place, the error of the float sum allowed for.
double halves_of_a_unit(const at::Tensor& actual, const at::Tensor& exact) {
  const double rounding = actual.scalar_type() == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
  if (exact.numel() == 0) return 0;
  const auto full = (is_dtensor(actual) ? DTensor(actual.detach()).full_tensor() : actual).to(at::kDouble);
  const auto allowed = exact.abs() * rounding * 1.01 + 2e-6 * exact.abs().max() + 1e-7;
  return ((full - exact).abs() / allowed).max().item<double>();
}

at::Tensor place(const at::Tensor& t, const DeviceMesh& mesh, Placements p) {
  return distribute_tensor(t.clone(), mesh, std::move(p));
}

Placements everywhere(const DeviceMesh& mesh, const Placement& p) {
  return Placements(static_cast<std::size_t>(mesh.ndim()), p);
}

const ReducePolicy kInFloat{.accumulate = at::kFloat};

at::ScalarType any_half() { return *rc::gen::element(at::kBFloat16, at::kHalf); }

// What a program gives on each mesh under the policy, against the same in double.
using Program = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>;

struct NamedProgram {
  const char* name;
  Program run;
};

// Multiplications by powers of two round nothing.
const std::vector<NamedProgram>& programs() {
  static const std::vector<NamedProgram> all{
      {"mm", [](auto& x, auto& w) { return at::mm(x, w); }},
      {"matmul of three dimensions",
       [](auto& x, auto& w) {
         return at::matmul(x.unsqueeze(0).expand({2, -1, -1}), w);
       }},
      {"two products", [](auto& x, auto& w) { return at::mm(x, w) + at::mm(x * 2, w) * 0.5; }},
      {"views", [](auto& x, auto& w) { return at::mm(x, w).t().unsqueeze(1).reshape({-1}); }},
      {"sum of a product", [](auto& x, auto& w) { return at::mm(x, w).sum(1); }},
      {"sum", [](auto& x, auto&) { return x.sum(1, true); }},
      {"mean", [](auto& x, auto&) { return x.mean(1); }},
      {"sum to half", [](auto& x, auto&) { return at::sum(x, {1}, false, x.scalar_type()); }},
  };
  return all;
}

// Where nothing is split, an operator's result is rounded as on one device.
Shape any_split_mesh() { return *rc::gen::element(Shape{2}, Shape{3}, Shape{2, 2}, Shape{2, 3}, Shape{2, 2, 2}); }

RC_GTEST_PROP(ReducePolicy, RoundsOnce, ()) {
  const auto shape = any_split_mesh();
  const auto& program = programs()[*rc::gen::inRange<std::size_t>(0, programs().size())];
  Draw draw(*rc::gen::arbitrary<std::uint32_t>());
  const auto m = draw.integer(0, 5), k = draw.integer(2, 40), n = draw.integer(1, 5);
  const auto type = any_half();
  const auto x = draw.normal({m, k}, type), w = draw.normal({k, n}, type);
  const auto exact = program.run(x.to(at::kDouble), w.to(at::kDouble));
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    const ReduceScope scope(kInFloat);
    const auto y = program.run(place(x, mesh, everywhere(mesh, Shard(1))), place(w, mesh, everywhere(mesh, Shard(0))));
    EXPECT_EQ(y.scalar_type() == at::kDouble ? type : y.scalar_type(), type) << program.name;
    EXPECT_LE(halves_of_a_unit(y, exact.to(at::kDouble)), 1) << program.name << " on " << at::IntArrayRef(shape);
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// The test above can tell: without the policy the same sums are off by more.
TEST(ReducePolicy, WithoutItEachRankRounds) {
  Draw draw(5);
  const auto x = draw.normal({64, 64}, at::kBFloat16), w = draw.normal({64, 64}, at::kBFloat16);
  const auto exact = at::mm(x.to(at::kDouble), w.to(at::kDouble));
  on_mesh({4}, [&](const DeviceMesh& mesh) {
    const auto product = [&] { return at::mm(place(x, mesh, {Shard(1)}), place(w, mesh, {Shard(0)})); };
    const auto before = DTensor(product()).full_tensor();
    EXPECT_GT(halves_of_a_unit(before, exact), 1.5);
    {
      const ReduceScope scope(kInFloat);
      EXPECT_LE(halves_of_a_unit(product(), exact), 1);
    }
    // The scope is part of the key: decisions made in it do not outlive it.
    EXPECT_TRUE(at::equal(before, DTensor(product()).full_tensor()));
  });
}

TEST(ReducePolicy, ViewsAndCopiesOfTheHandleKeepIt) {
  Draw draw(5);
  const auto x = draw.normal({64, 64}, at::kBFloat16), w = draw.normal({64, 64}, at::kBFloat16);
  const auto exact = at::mm(x.to(at::kDouble), w.to(at::kDouble));
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const ReduceScope scope(kInFloat);
    const auto dx = place(x, mesh, everywhere(mesh, Shard(1))), dw = place(w, mesh, everywhere(mesh, Shard(0)));
    const auto product = [&] { return at::mm(dx, dw); };
    EXPECT_LE(halves_of_a_unit(product(), exact), 1);
    EXPECT_LE(halves_of_a_unit(product().detach(), exact), 1) << "detach";
    EXPECT_LE(halves_of_a_unit(product().t(), exact.t()), 1) << "t";
    EXPECT_LE(halves_of_a_unit(product().view({32, 128}), exact.view({32, 128})), 1) << "view";
    EXPECT_LE(halves_of_a_unit(product().narrow(1, 3, 40), exact.narrow(1, 3, 40)), 1) << "narrow";
    auto leaf = place(w, mesh, everywhere(mesh, Replicate())).requires_grad_();
    (leaf * 1).backward(product());
    EXPECT_LE(halves_of_a_unit(leaf.grad(), exact), 1) << "a gradient";
  });
}

TEST(ReducePolicy, EqualsTheRoundedFloatSumBitForBit) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    Draw draw(7);
    const auto x = draw.normal({5, 30}, type), w = draw.normal({30, 6}, type);
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      const ReduceScope scope(kInFloat);
      const DTensor dx(place(x, mesh, {Shard(1)})), dw(place(w, mesh, {Shard(0)}));
      auto sum = at::mm(dx.to_local().to(at::kFloat), dw.to_local().to(at::kFloat));
      std::vector<at::Tensor> all(3);
      for (auto& t : all) t = at::empty_like(sum);
      mesh.communicator().all_gather(all, sum).wait();
      const auto expected = ((all[0] + all[1]) + all[2]).to(type);
      const DTensor y(at::mm(dx, dw));
      EXPECT_TRUE(at::equal(y.full_tensor(), expected));
      EXPECT_TRUE(at::equal(DTensor(y.redistribute({Shard(1)})).full_tensor(), expected));
      EXPECT_TRUE(at::equal(DTensor(y.relu()).full_tensor(), expected.relu()));  // reduced by an operator
    });
  }
}

RC_GTEST_PROP(ReducePolicy, Gradients, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  Draw draw(*rc::gen::arbitrary<std::uint32_t>());
  const auto type = any_half();
  const auto batch = draw.integer(1, 40);
  const auto x = draw.normal({batch, 9}, type), w = draw.normal({9, 11}, type), g = draw.normal({batch, 11}, type);
  const auto exact = at::mm(x.to(at::kDouble).t(), g.to(at::kDouble));
  const Placement stored = draw.coin() ? Replicate() : Shard(0);
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    const ReduceScope scope(kInFloat);
    const auto weight = place(w, mesh, everywhere(mesh, stored));
    weight.requires_grad_();
    const auto y = at::mm(place(x, mesh, everywhere(mesh, Shard(0))), weight);
    y.backward(place(g, mesh, everywhere(mesh, Shard(0))));
    EXPECT_LE(halves_of_a_unit(weight.grad(), exact), 1) << at::IntArrayRef(shape);
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// Shares in one's own hands are added in float and rounded once, however many steps the reduction takes.
RC_GTEST_PROP(ReducePolicy, SeveralReductions, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const ReduceScope scope(kInFloat);
    Draw mine(seed + static_cast<std::uint64_t>(mesh.communicator().rank()));
    const auto local = mine.normal({6, 5}, at::kBFloat16);
    auto exact = local.to(at::kDouble);
    mesh.communicator().all_reduce(exact, ReduceOp::sum).wait();
    const auto shares = DTensor::from_local(local, mesh, {Partial(), Partial()});
    Draw same(seed);
    const auto to = same.placements(mesh, 2, false);
    EXPECT_LE(halves_of_a_unit(shares.redistribute(to), exact), 1) << to_string(to);
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// A write takes the place of what was kept: through the tensor, through a view, and before a view is read.
TEST(ReducePolicy, WritesAreSeen) {
  Draw draw(3);
  const auto x = draw.normal({8, 16}, at::kBFloat16), w = draw.normal({16, 8}, at::kBFloat16);
  const auto exact = at::mm(x.to(at::kDouble), w.to(at::kDouble));
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const ReduceScope scope(kInFloat);
    const auto product = [&] { return at::mm(place(x, mesh, {Shard(1)}), place(w, mesh, {Shard(0)})); };
    const auto near = [&](const at::Tensor& y, const at::Tensor& expected, const char* what) {
      const auto full = DTensor(y).full_tensor().to(at::kDouble);
      EXPECT_LE((full - expected).abs().max().item<double>(), 0.02 * exact.abs().max().item<double>() * 8) << what;
    };
    auto a = product();
    a.mul_(2);
    near(a, exact * 2, "in place");
    auto b = product();
    b.t().mul_(4);
    near(b, exact * 4, "through a view");
    auto c = product();
    const auto view = c.t();
    c.mul_(8);
    near(view, exact.t() * 8, "of the base, read by a view");
    auto d = product();
    d.zero_();
    near(d.t(), exact.t() * 0, "zero");
  });
}

TEST(ReducePolicy, FloatIsCarriedInDouble) {
  Draw draw(11);
  const auto x = draw.normal({16, 300}, at::kFloat), w = draw.normal({300, 8}, at::kFloat);
  const auto exact = at::mm(x.to(at::kDouble), w.to(at::kDouble)).to(at::kFloat);
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    const auto product = [&] { return at::mm(place(x, mesh, {Shard(1)}), place(w, mesh, {Shard(0)})); };
    const auto regular = DTensor(product()).full_tensor();
    const ReduceScope scope({.accumulate = at::kDouble});
    EXPECT_TRUE(at::equal(DTensor(product()).full_tensor(), exact));
    EXPECT_FALSE(at::equal(regular, exact));
  });
  EXPECT_ANY_THROW(ReduceScope({.accumulate = at::kBFloat16}));
  EXPECT_FALSE(ReduceScope::current().accumulate.has_value());
}

}  // namespace
}  // namespace dtensor::test
