// Cache hits respect what changed since the decision was cached: scopes, the rule book, the default dtype.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/inspect.h"
#include "dtensor/rule.h"
#include "ops/cache/decision_cache.h"
#include "ops/plan/compile_call.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TORCH_LIBRARY(known_calls, m) {
  for (const char* name : {"unruled", "late", "refused", "between"}) {
    m.def(c10::str(name, "(Tensor x) -> Tensor").c_str());
    m.impl(name, c10::DispatchKey::CPU, [](const at::Tensor& x) { return x * 2; });
  }
}

at::Tensor call(const char* name, const at::Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(c10::str("known_calls::", name).c_str(), "");
  return op.typed<at::Tensor(const at::Tensor&)>().call(x);
}

DTensor shards(const DeviceMesh& mesh) { return distribute_tensor(at::arange(6, at::kLong) + 1, mesh, {Shard(0)}); }

TEST(CachedCalls, StrictRefusesWhatRanReplicatedBefore) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = shards(mesh);
    call("unruled", x);
    if (mesh.world().rank() == 0) clear_cache();  // Whether a rank has the decision cached makes no difference.
    const Strict strict;
    EXPECT_NE(error_of([&] { call("unruled", x); }).find("has no sharding rule"), std::string::npos);
  });
}

// Each rank's kernel would draw different numbers.
TEST(CachedCalls, AttentionWithDropoutIsRefusedAfterCallWithoutDropout) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto q = distribute_tensor(at::ones({2, 2, 4, 8}), mesh, {Shard(0)});
    const auto attend = [&](double dropout) { at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, dropout); };
    attend(0);
    const auto text = error_of([&] { attend(0.5); });
    EXPECT_NE(text.find("draws other numbers on each rank"), std::string::npos) << text;
  });
}

// The error must be the same if a rank's local tensor has no rows, for which ATen's kernel has a different error.
TEST(CachedCalls, UnsupportedMarginLossPowerIsErrorOnEveryRank) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({1, 4}), mesh, {Shard(0)});
    const auto target = distribute_tensor(at::zeros({1}, at::kLong), mesh, {Shard(0)});
    EXPECT_EQ(at::multi_margin_loss(x, target, 1).item<float>(), 0.75);
    const auto text = error_of([&] { at::multi_margin_loss(x, target, 3); });
    EXPECT_NE(text.find("only p == 1 and p == 2 supported"), std::string::npos) << text;
  });
}

// The decision is cached on one rank only; both ranks use the current rules.
TEST(CachedCalls, RulesRegisteredAfterFirstCallAreUsed) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh);
    const auto everyone = [&] { mesh.communicator().all_reduce(at::zeros({1}), ReduceOp::sum).wait(); };
    call("late", x), call("refused", x);
    everyone();
    if (mesh.world().rank() == 0) {
      RuleBook::get().rule("known_calls::late", "X -> X").no_meta();
      RuleBook::get().refuse("known_calls::refused", "it is no longer served");
      clear_cache();
    }
    everyone();
    EXPECT_EQ(DTensor(call("late", x)).placements(), (Placements{Shard(0)}));
    EXPECT_NE(error_of([&] { call("refused", x); }).find("it is no longer served"), std::string::npos);
  });
}

// If another thread changes the rule book while a call is decided, the decision must not be cached.
TEST(CachedCalls, DecisionFromOutdatedRuleBookIsNotCached) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh);
    const auto& entry = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("known_calls::between", ""));
    const std::vector<c10::IValue> args{x};
    const CallOperands operands(entry, args);
    ASSERT_EQ(find_call(entry.index, operands.key), nullptr);
    const auto insert = [&](const std::function<void()>& overlapped) {
      const std::uint64_t book = book_version;
      auto decided = compile_call(entry, args, operands);
      overlapped();
      return insert_call(entry.index, std::move(decided), book);
    };
    EXPECT_NE(insert([] { RuleBook::get().rule("known_calls::between", "X -> X").no_meta(); }), nullptr);
    EXPECT_EQ(find_call(entry.index, operands.key), nullptr);
    const auto kept = insert([] {});
    EXPECT_EQ(find_call(entry.index, operands.key), kept);
  });
}

struct DefaultType {
  explicit DefaultType(at::ScalarType type) : former(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(type));
  }
  ~DefaultType() { c10::set_default_dtype(former); }
  const caffe2::TypeMeta former;
};

// Integer operands give the default dtype at the time of the call. The second call is a cache hit.
TEST(CachedCalls, TrueDivisionUsesDefaultDtypeOfTheCall) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    const at::Tensor x = shards(mesh), y = DTensor(x).to_local();
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> calls{
        [](const at::Tensor& t) { return at::div(t, t); },
        [](const at::Tensor& t) { return at::sqrt(t); },
        [](const at::Tensor& t) { return at::mul(t, 0.5); },
        [](const at::Tensor& t) { return at::_foreach_div(std::vector<at::Tensor>{t}, std::vector<at::Tensor>{t})[0]; },
    };
    for (int i = 0; i < 6; ++i) {
      const DefaultType type(i % 3 == 0 ? at::kFloat : i % 3 == 1 ? at::kDouble : at::kBFloat16);
      for (const auto& run : calls) {
        const auto expected = run(y), result = run(x);
        EXPECT_EQ(result.scalar_type(), expected.scalar_type());
        EXPECT_TRUE(at::equal(DTensor(result).to_local(), expected));
      }
    }
  });
}

}  // namespace
}  // namespace dtensor::test
