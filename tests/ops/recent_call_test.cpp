// The fast path of a cache hit: a call whose arguments equal those of a recent call. A call with any different argument
// must not match. Scopes, regular operands and reduced Partials take the full path.
#include <gtest/gtest.h>

#include <ATen/record_function.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/inspect.h"
#include "ops/cache/decision_cache.h"
#include "ops/cache/recent_call.h"
#include "ops/plan/compile_call.h"
#include "support/draws.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Operands = std::vector<at::Tensor>;
using Call = std::function<at::Tensor(const Operands&)>;

at::Tensor undefined_or(const at::Tensor& t, bool undefined) { return undefined ? at::Tensor() : t; }

// Calls of one operator that differ in one argument.
std::vector<Call> variants() {
  std::vector<Call> calls;
  for (const double alpha : {1.0, 2.0, 0.5}) {
    calls.push_back([=](const Operands& t) { return at::add(t[0], t[1], alpha); });
  }
  calls.push_back([](const Operands& t) { return at::add(t[0], t[1], 2); });
  calls.push_back([](const Operands& t) { return at::add(t[0], t[0]); });
  calls.push_back([](const Operands& t) { return at::add(t[0], t[2]); });
  calls.push_back([](const Operands& t) { return at::add(t[0], t[3].select(0, 0)); });
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{24}, {4, 6}, {2, 2, 6}, {6, 4}}) {
    calls.push_back([=](const Operands& t) { return t[0].view(sizes); });
  }
  for (const std::vector<std::int64_t>& dims : {std::vector<std::int64_t>{0}, {1}, {0, 1}}) {
    for (const bool keep : {false, true}) {
      calls.push_back([=](const Operands& t) { return at::sum(t[0], dims, keep); });
    }
  }
  calls.push_back([](const Operands& t) { return at::sum(t[0], {0}, false, at::kDouble); });
  for (const bool bias : {false, true}) {
    calls.push_back([=](const Operands& t) {
      return std::get<0>(at::native_layer_norm(t[0], {6}, t[2], undefined_or(t[2], !bias), 1e-5));
    });
  }
  calls.push_back([](const Operands& t) { return at::softmax(t[0], 0); });
  calls.push_back([](const Operands& t) { return at::softmax(t[0], 1); });
  return calls;
}

Placement any_placement() {
  return *rc::gen::element(Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial()));
}

RC_GTEST_PROP(RecentCall, CallsThatDifferInOneArgumentAreDistinguished, ()) {
  const int ranks = *rc::gen::inRange(1, 4);
  std::vector<Placement> first, second;
  for (int i = 0; i < 6; ++i) first.push_back(any_placement()), second.push_back(any_placement());
  const auto order = *rc::gen::container<std::vector<std::size_t>>(120, rc::gen::inRange<std::size_t>(0, 1000));
  on_mesh({ranks}, [&](const DeviceMesh& mesh) {
    const auto calls = variants();
    const Operands unsharded = {at::arange(24, at::kFloat).view({4, 6}),
                                at::arange(24, at::kFloat).view({4, 6}) * 3 - 7, at::arange(6, at::kFloat) + 1,
                                at::arange(12, at::kFloat).view({2, 6})};
    std::vector<Operands> placed;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const auto put = [&](const at::Tensor& t, const Placement& p) {
        const bool splits = p.is_shard() && p.dim() < t.dim();
        const auto full_on_ranks = distribute_tensor(t, mesh, {Replicate()});
        return at::Tensor(p.is_partial() || splits ? full_on_ranks.redistribute({p}) : full_on_ranks);
      };
      placed.push_back(
          {put(unsharded[0], first[i]), put(unsharded[1], second[i]), put(unsharded[2], second[i]), unsharded[3]});
    }
    for (const auto number : order) {
      const auto& call = calls[number % calls.size()];
      const auto got = call(placed[number / calls.size() % placed.size()]);
      RC_ASSERT(at::allclose(DTensor(got).full_tensor(), call(unsharded), 1e-5, 1e-5));
    }
  });
}

// Shapes alternate in a model: each call is found and counted once.
TEST(RecentCall, EveryRepeatedCallIsOneHit) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    std::vector<at::Tensor> tensors;
    for (std::int64_t n = 1; n <= 12; ++n) tensors.push_back(distribute_tensor(at::ones({n, 4}), mesh, {Shard(0)}));
    for (int round = 0; round < 4; ++round) {
      const auto before = cache_stats();
      for (const auto& t : tensors) at::neg(t);
      const auto after = cache_stats();
      EXPECT_EQ(after.hits - before.hits, round == 0 ? 0u : tensors.size());
      EXPECT_EQ(after.misses - before.misses, round == 0 ? tensors.size() : 0u);
    }
  });
}

// Number of times that the profiler records an operator while fn runs: once for a call on the fast path, twice for the
// boxed kernel, whose local call passes the dispatcher.
int times_recorded(const char* name, const std::function<void()>& fn) {
  static thread_local int recorded;
  static thread_local std::string_view wanted;
  recorded = 0, wanted = name;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
    recorded += f.name() == wanted ? 1 : 0;
    return std::unique_ptr<at::ObserverContext>();
  }));
  fn();
  at::removeCallback(handle);
  return recorded;
}

// On the fast path a call is found without a key, and the profiler records only the call on DTensors.
TEST(RecentCall, ARepeatedCallIsFoundAndRecordedOnce) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    const DTensor parameter(distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)}).requires_grad_());
    set_gather_hook(parameter, [](const DTensor&, const Placements&, at::ScalarType) { return at::Tensor(); });
    const auto& entry = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::neg", ""));
    const auto is_found = [&](const at::Tensor& t) {
      const KernelGuard guard;
      RecentCall recent(entry, guard, thread_state(), t);
      while (recent.next()) {
        recent.add(t.unsafeGetTensorImpl());
        if (recent.found() != nullptr) return true;
      }
      return false;
    };
    EXPECT_FALSE(is_found(x));
    at::neg(x);
    EXPECT_TRUE(is_found(x));
    at::neg(parameter);  // A leaf gets its gradient pipeline on its first call.
    EXPECT_TRUE(is_found(parameter)) << "it needs no redistribution";
    EXPECT_TRUE(is_found(at::neg(parameter))) << "a new result in each step of training";
    EXPECT_FALSE(is_found(at::neg(x).requires_grad_())) << "a leaf gets its gradient pipeline first";
    {
      const EventListener listener([](const Event&) {});
      EXPECT_FALSE(is_found(x));
    }
    EXPECT_EQ(times_recorded("aten::neg", [&] { at::neg(x); }), 1);
  });
}

// As many shapes as a model has for one kind of activation.
TEST(RecentCall, AlternatingCallsWithTheSameFirstOperand) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 2, 3, 2}), mesh, {Shard(0)});
    const auto each = [&] {
      for (const std::int64_t a : {1, 2}) {
        for (const std::int64_t b : {2, 3}) at::transpose(x, a, b);
      }
      at::gelu(x, "tanh"), at::gelu(x, "none");
    };
    each();
    EXPECT_EQ(times_recorded("aten::transpose", each), 4);
    EXPECT_EQ(times_recorded("aten::gelu", each), 2);
    EXPECT_TRUE(DTensor(at::gelu(x, "tanh")).full_tensor().equal(at::gelu(at::ones({4, 2, 3, 2}), "tanh")));
    const auto& entry = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::gelu", ""));
    for (const std::string_view how : {"tanh", "none", "nane"}) {
      const KernelGuard guard;
      RecentCall recent(entry, guard, thread_state(), x);
      bool found = false;
      while (!found && recent.next()) {
        recent.add(x.unsafeGetTensorImpl());
        recent.key.text(how);
        found = recent.found() != nullptr;
      }
      EXPECT_EQ(found, how != "nane") << how;
    }
  });
}

// Parameters that a schedule has gathered stay on the fast path. `one` is their placement on an axis of one rank, which
// needs no communication.
void expect_gathered_on_fast_path(const DeviceMesh& line, const Placement& one) {
  const auto mesh = init_device_mesh(line.world(), at::kCPU, {1, 2}, {"tp", "shard"});
  const at::Tensor weight = Draw(3).normal({6, 4}), bias = Draw(4).normal({6}), regular = Draw(5).normal({8, 4});
  at::Tensor w = distribute_tensor(weight, mesh, {one, Replicate()}).requires_grad_();
  at::Tensor b = distribute_tensor(bias, mesh, {one, Replicate()}).requires_grad_();
  at::Tensor alone = distribute_tensor(weight, mesh, {one, Shard(0).as_storage()});
  fully_shard(NamedTensors{{"w", &w}, {"b", &b}}, mesh);
  const auto x = distribute_tensor(regular, mesh, {Replicate(), Shard(0)}).requires_grad_();
  const auto ones = distribute_tensor(at::ones({8, 6}, at::kDouble), mesh, {Replicate(), Shard(0)});
  const auto step = [&] { at::sum(at::linear(x, w, b) * ones).backward(); };  // The gradient is sharded.
  step();
  EXPECT_EQ(times_recorded("aten::linear", step), 1) << one;
  EXPECT_EQ(times_recorded("aten::linear_backward", step), 0) << one << ": its node does not call the dispatcher";
  const at::Tensor gradient = at::mm(at::ones({6, 8}, at::kDouble), regular);
  EXPECT_TRUE(at::allclose(DTensor(w.grad()).full_tensor(), 3 * gradient));
  EXPECT_TRUE(at::allclose(DTensor(b.grad()).full_tensor(), at::full({6}, 24., at::kDouble)));
  const auto expected = [&] { return at::linear(regular, DTensor(w).full_tensor(), bias); };
  EXPECT_TRUE(at::allclose(DTensor(at::linear(x, w, b)).full_tensor(), expected()));
  {
    const at::NoGradGuard no_grad;
    w.mul_(2);  // Invalidates the gathered data.
  }
  EXPECT_TRUE(at::allclose(DTensor(at::linear(x, w, b)).full_tensor(), expected()));
  for (int i = 0; i < 2; ++i) {  // No schedule has gathered it.
    EXPECT_TRUE(at::allclose(DTensor(at::linear(x, alone)).full_tensor(), at::linear(regular, weight)));
  }
}

TEST(RecentCall, OperandsGatheredByASchedule) {
  on_mesh({2}, [](const DeviceMesh& line) {
    expect_gathered_on_fast_path(line, Replicate());
    expect_gathered_on_fast_path(line, Shard(0));
  });
}

// A hook may run operators and clear the cache, including the entry of the current call. The hook clears the cache on
// every fourth call, the first time on the fast path. If it returns no tensor, the boxed kernel calls it again.
TEST(RecentCall, HookMayClearTheCache) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(Draw(5).normal({8, 4}), mesh, {Shard(0)});
    const at::Tensor weight = Draw(3).normal({6, 4}), expected = at::linear(DTensor(x).full_tensor(), weight);
    const at::Tensor w = distribute_tensor(weight, mesh, {Shard(0).as_storage()}).requires_grad_();
    int hook_calls = 0;
    set_gather_hook(DTensor(w), [&](const DTensor&, const Placements&, at::ScalarType) {
      if (++hook_calls % 4 == 2) clear_cache();
      at::neg(x);
      return hook_calls % 2 == 0 ? weight : at::Tensor();
    });
    const auto call = [&] { EXPECT_TRUE(at::allclose(DTensor(at::linear(x, w)).full_tensor(), expected)); };
    call();
    EXPECT_EQ(times_recorded("aten::linear", call), 1) << "not on the fast path";
    for (int i = 0; i < 8; ++i) call();
    EXPECT_GT(hook_calls, 10);
  });
}

// On the fast path and beside it.
TEST(RecentCall, GatheringCallIsOneHit) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(Draw(5).normal({8, 4}), mesh, {Shard(0)});
    const at::Tensor weight = Draw(3).normal({6, 4});
    const at::Tensor alone = distribute_tensor(weight, mesh, {Shard(0).as_storage()});
    const at::Tensor w = distribute_tensor(weight, mesh, {Shard(0).as_storage()}).requires_grad_();
    set_gather_hook(DTensor(w), [&](const DTensor&, const Placements&, at::ScalarType) { return weight; });
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : {alone, w}) {
      at::linear(x, parameter);
      const auto before = cache_stats();
      for (int i = 0; i < 5; ++i) at::linear(x, parameter);
      EXPECT_EQ(cache_stats().hits - before.hits, 5u);
      EXPECT_EQ(cache_stats().misses, before.misses);
    }
  });
}

// A listener sees calls that were cached outside its scope.
TEST(RecentCall, ListenerReceivesCachedCalls) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    for (int i = 0; i < 3; ++i) at::neg(x);
    int seen = 0;
    {
      const EventListener listener([&](const Event&) { ++seen; }, {Event::Kind::op});
      for (int i = 0; i < 3; ++i) at::neg(x);
    }
    at::neg(x);
    EXPECT_EQ(seen, 3);
  });
}

// A listener to collectives only, which a training loop may install in each step, does not slow operators down.
TEST(RecentCall, ListenerToCollectivesKeepsTheFastPath) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    int collectives = 0;
    const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
    EXPECT_FALSE(any_operator_scope());
    x.redistribute({Replicate()});
    EXPECT_EQ(collectives, 1);
    const EventListener all([](const Event&) {});
    EXPECT_TRUE(any_operator_scope());
  });
}

// An axis of one rank has all elements in every placement. Optimizer states whose placements differ from their
// parameter's on such an axis only are written in place.
TEST(RecentCall, WriteOverAxisOfOneRankNeedsNoCopy) {
  on_mesh({1, 2}, [](const DeviceMesh& mesh) {
    const at::Tensor unsharded = at::arange(24, at::kFloat).view({4, 6});
    for (const Placement& on_two : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
      const auto placed = [&](const Placement& on_one) {
        return std::vector<at::Tensor>{distribute_tensor(unsharded, mesh, {on_one, on_two})};
      };
      const auto parameter = placed(Shard(0).as_storage()), gradient = placed(Shard(1));
      const auto first = placed(Replicate()), second = placed(Shard(1));
      const std::vector<at::Tensor> none, step{at::ones({})};
      const auto& entry = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_adamw_", ""));
      const std::vector<c10::IValue> args{parameter, gradient, first, second, none,  step, 0.1, 0.9,
                                          0.99,      0.0,      1e-8,  false,  false, {},   {}};
      EXPECT_TRUE(compile_call(entry, args, CallOperands(entry, args))->executor == Executor::simple)
          << c10::str(on_two);
      const std::vector<at::Tensor> same{unsharded.clone()}, regular{unsharded.clone()}, m{unsharded.clone()},
          v{unsharded.clone()};
      at::_fused_adamw_(parameter, gradient, first, second, {}, step, 0.1, 0.9, 0.99, 0.0, 1e-8, false, false);
      at::_fused_adamw_(same, regular, m, v, {}, step, 0.1, 0.9, 0.99, 0.0, 1e-8, false, false);
      EXPECT_TRUE(at::equal(DTensor(parameter[0]).full_tensor(), same[0]));
      EXPECT_TRUE(at::equal(DTensor(first[0]).full_tensor(), m[0]));
    }
  });
}

// The memory of freed results that operators keep is bounded and freed with the thread.
TEST(RecentCall, MemoryKeptForResultsIsBounded) {
  run_local(1, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    const auto x = distribute_tensor(at::ones({4}), mesh, {Replicate()});
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < 3 * FreeListAllocator::kMaxFreeBlocks; ++i) results.push_back(at::neg(x));
    const auto few = thread_state().tensor_memory.count();
    results.clear();
#if C10_ASAN_ENABLED || defined(__SANITIZE_THREAD__)
    EXPECT_EQ(thread_state().tensor_memory.count(), few);
#else
    EXPECT_LT(few, FreeListAllocator::kMaxFreeBlocks);
    EXPECT_EQ(thread_state().tensor_memory.count(), FreeListAllocator::kMaxFreeBlocks);
#endif
    std::thread([results = std::vector<at::Tensor>(100, at::neg(x))]() mutable { results.clear(); }).join();
  });
}

}  // namespace
}  // namespace dtensor::test
