// Checks on the global arguments if shards are uneven (ops/checks/global_call_check).
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>

#include "dtensor/rule.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

std::atomic<int> zeros_seen = 0;

TORCH_LIBRARY(full_call, m) {
  for (const char* operands : {"by_pivots(Tensor x, Tensor pivots)", "by_rows(Tensor x, Tensor rows)"}) {
    m.def(c10::str(operands, " -> Tensor").c_str());
  }
  for (const char* name : {"by_pivots", "by_rows"}) {
    m.impl(name, c10::DispatchKey::CPU, [](const at::Tensor& x, const at::Tensor& which) {
      zeros_seen += which.numel() > 0 && which.eq(0).any().item<bool>() ? 1 : 0;
      return x * 2;
    });
  }
}

void call(const char* name, const Rule& rule) {
  const std::string op = c10::str("full_call::", name);
  RuleBook::get().rule(op, rule);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({5, 3}), mesh, {Shard(0)});
    const auto which = distribute_tensor(at::full({5, 2}, 3, at::kInt), mesh, {Shard(0)});
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
    const auto y = handle.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, which);
    EXPECT_TRUE(at::equal(DTensor(y).full_tensor(), at::full({5, 3}, 2.0)));
  });
}

// With a pivot of 0, LAPACK writes in front of a matrix, so the check must not call a kernel with zero pivots.
TEST(FullCall, RestrictedValuesAreNotReplacedByZeros) {
  const Rule rule = Rule("mn, m_ -> mn").no_meta();
  zeros_seen = 0;
  call("by_pivots", Rule(rule).restricts_values());
  EXPECT_EQ(zeros_seen, 0);
  call("by_rows", rule);
  EXPECT_EQ(zeros_seen, 2);
}

}  // namespace
}  // namespace dtensor::test
