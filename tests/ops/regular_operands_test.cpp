// Regular tensors among DTensors. They are compared across ranks at calls that all ranks choose alike, whatever their
// caches contain.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// The same values in another memory order.
at::Tensor turned(const at::Tensor& matrix) { return matrix.t().contiguous().t(); }

TEST(RegularOperands, EqualOperandsMayDifferInStrides) {
  const auto full_tensor = Draw(1).normal({4, 4});
  const auto mask = at::ones({4, 4}, at::kBool).tril();
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(full_tensor, mesh, {Shard(0)});
    for (int call = 0; call < 6; ++call) {
      const bool odd = mesh.coordinate()->front() == 1 && call > 0;
      expect_close(x.masked_fill(odd ? turned(mask) : mask, 0), full_tensor.masked_fill(mask, 0), "masked");
    }
  });
}

TEST(RegularOperands, ClearingTheCacheOfOneRankChangesNoCollective) {
  const auto full_tensor = Draw(1).normal({4, 4});
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(full_tensor, mesh, {Shard(0)});
    for (int call = 0; call < 10; ++call) {
      if (mesh.coordinate()->front() == call % 3) clear_cache();
      expect_close(x * full_tensor[0], full_tensor * full_tensor[0], "product");
    }
  });
}

// ATen does not read `self` if beta is 0, so it may be uninitialized: `out` of a product is often its `self`.
TEST(RegularOperands, SelfOfAddmmIsIgnoredIfBetaIsZero) {
  const auto full_tensor = Draw(1).normal({4, 6});
  const auto product = full_tensor.mm(full_tensor.t());
  for (const bool checked : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto mode = checked ? std::make_unique<Checked>() : nullptr;
      const at::Tensor x = distribute_tensor(full_tensor, mesh, {Shard(0)}), xt = x.t();
      const double nothing = mesh.coordinate()->front() == 1 ? NAN : 1;
      const auto self = at::full({4, 4}, nothing, at::kDouble), row = at::full({4}, nothing, at::kDouble);
      expect_close(at::addmm(self, x, xt, 0), product, "addmm");
      expect_close(at::baddbmm(self[0], x.unsqueeze(0), xt.unsqueeze(0), 0), product.unsqueeze(0),
                   "baddbmm, self broadcast");
      expect_close(at::addbmm(self, x.unsqueeze(0), xt.unsqueeze(0), 0), product, "addbmm");
      expect_close(at::addmv(row, x, full_tensor[0], 0), product[0], "addmv");
      expect_close(at::addr(self, x.select(1, 0), x.select(1, 0), 0),
                   full_tensor.select(1, 0).outer(full_tensor.select(1, 0)), "addr");
      auto out = self.clone();
      at::addmm_out(out, out, x, xt, 0);
      expect_close(out, product, "addmm with out = self");
      expect_close(self.clone().addmm_(x, xt, 0), product, "addmm_");
    });
  }
}

TEST(RegularOperands, SelfOfAddmmIsComparedIfBetaIsNotZero) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = zeros({4, 4}, mesh, {Shard(0)});
    const auto self = at::full({4, 4}, static_cast<float>(mesh.coordinate()->front()));
    EXPECT_EQ(error_of([&] { at::addmm(self, x, x, 0); }), "no error");
    EXPECT_NE(error_of([&] { at::addmm(self, x, x, 2); }).find("differ between ranks"), std::string::npos);
  });
}

TEST(RegularOperands, DifferentSizesAreErrorThatNamesTheOperand) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = zeros({4, 4}, mesh, {Shard(0)});
    const bool odd = mesh.coordinate()->front() == 1;
    const auto text = error_of([&] { x + at::ones({odd ? 1 : 4, 4}); });
    EXPECT_NE(text.find("operand `other`"), std::string::npos) << text;
    EXPECT_NE(text.find("differ between ranks"), std::string::npos) << text;
  });
}

// At the first call of a kind and at a few of thousands; in checked mode at once.
TEST(RegularOperands, DifferenceIsFoundInRepeatedCalls) {
  for (const bool checked : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto x = zeros({4, 4}, mesh, {Shard(0)});
      const auto add = [&](double value) { return error_of([&] { x + at::full({4}, value); }) != "no error"; };
      int calls = 0;
      while (calls < 300 && !add(0)) ++calls;
      EXPECT_EQ(calls, 300);
      const auto mode = checked ? std::make_unique<Checked>() : nullptr;
      const double mine = mesh.coordinate()->front() == 1 ? 1 : 0;
      while (calls < 3000 && !add(mine)) ++calls;
      EXPECT_LT(calls, checked ? 301 : 3000);
    });
  }
}

TEST(RegularOperands, AreComparedAtFewCalls) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = zeros({4, 4}, mesh, {Shard(0)});
    int collectives = 0;
    const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
    const auto calls = [&](int count) {
      for (int call = 0; call < count; ++call) x + at::ones({4});
      return std::exchange(collectives, 0);
    };
    EXPECT_EQ(calls(200), 1);
    EXPECT_LE(calls(3000), 20);
    x + at::ones({4, 4});
    EXPECT_EQ(collectives, 1);
  });
}

// Ranks may store equal values in different memory orders; lists of results are packed in the order of their strides.
TEST(RegularOperands, MemoryOrderMayDifferBetweenRanks) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto values = at::arange(6, at::kDouble).view({2, 3});
    const auto mine = mesh.coordinate()->front() == 0 ? values : values.t().contiguous().t();
    std::vector<DTensor> results;
    for (const double share : {1.0, 2.0}) {
      const auto x = DTensor::from_local(at::full({2, 3}, share, at::kDouble), mesh, {Partial()}, {2, 3}, {3, 1});
      results.emplace_back(at::mul(mine, x));
      EXPECT_EQ(results.back().strides(), at::IntArrayRef({3, 1}));
    }
    const auto replicated = redistribute(results, {{Replicate()}, {Replicate()}});
    for (const double k : {0, 1}) {
      const auto full_tensor = replicated[static_cast<std::size_t>(k)].to_local();
      EXPECT_TRUE(at::equal(full_tensor, values * (2 * (k + 1)))) << full_tensor;
    }
  });
}

}  // namespace
}  // namespace dtensor::test
