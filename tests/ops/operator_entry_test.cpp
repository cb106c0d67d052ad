// Properties of a rule take effect whenever they are registered and do not depend on the operator's name.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/inspect.h"
#include "dtensor/rule.h"
#include "ops/dispatch/operator_entry.h"
#include "sharding_prop/rule_book/rule_list.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TORCH_LIBRARY(op_entry, m) {
  m.def("shift(Tensor x, float by) -> Tensor");
  m.impl("shift", c10::DispatchKey::CPU, [](const at::Tensor& x, double by) { return x + by; });
  // Writes to its second operand, although the schema does not say so.
  m.def("collect(Tensor x, Tensor sum) -> Tensor");
  m.impl("collect", c10::DispatchKey::CPU, [](const at::Tensor& x, const at::Tensor& sum) {
    sum.add_(x);
    return x.clone();
  });
}

c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

std::uint64_t misses_of(const at::Tensor& x, double first, double second) {
  const auto shift = find("op_entry::shift").typed<at::Tensor(const at::Tensor&, double)>();
  shift.call(x, first);
  const auto before = cache_stats().misses;
  shift.call(x, second);
  return cache_stats().misses - before;
}

TEST(OpEntry, RuleRegisteredAfterFirstCallChangesTheCacheKey) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
    EXPECT_EQ(misses_of(x, 1, 2), 1u);  // An operator without a rule may read scalars.
    RuleBook::get().rule("op_entry::shift", "... -> ...").no_meta();
    EXPECT_EQ(misses_of(x, 3, 4), 0u);
    RuleBook::get().rule("op_entry::shift", "... -> ...").no_meta().reads_scalars();
    EXPECT_EQ(misses_of(x, 5, 6), 1u);
  });
}

// Thread ranks share the rule book: registering an operator must not free its rule while another rank still changes it.
TEST(OpEntry, ConcurrentRegistrationOfTheSameOperator) {
  run_local(4, [](const Communicator&) {
    for (int i = 0; i < 2000; ++i)
      RuleBook::get().rule("op_entry::unused", "mk, kn -> mn").linear({0}, {1}).unsharded("k");
  });
  const auto lines = rule_strings();
  EXPECT_TRUE(std::ranges::any_of(lines, [](const auto& line) { return line.starts_with("op_entry::unused: "); }));
}

// A Partial that was reduced by an earlier call keeps both forms. A write must change the tensor, not its reduced form.
TEST(OpEntry, WrittenOperandIsNotReplacedByItsReducedForm) {
  RuleBook::get().rule("op_entry::collect", Rule("..., ... -> ...").writes({1})).no_meta();
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::arange(4, at::kFloat), mesh, {Replicate()});
    const at::Tensor sum = DTensor::from_local(at::ones({4}), mesh, {Partial()});
    at::relu(sum);
    find("op_entry::collect").typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, sum);
    EXPECT_TRUE(at::equal(DTensor(sum).full_tensor(), at::arange(4, at::kFloat) + 2)) << DTensor(sum).full_tensor();
  });
}

TEST(OpEntry, ListOperatorsAreMarkedByTheirRule) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !needs_kernel(*op)) continue;
    const bool list = name.name.starts_with("aten::_foreach_") || name.name.starts_with("aten::_fused_ada") ||
                      name.name.starts_with("aten::_fused_sgd");
    EXPECT_EQ(entry_of(*op).foreach_op(), list) << name;
  }
}

}  // namespace
}  // namespace dtensor::test
