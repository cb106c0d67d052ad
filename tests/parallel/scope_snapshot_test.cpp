// Every scope that decides what a function computes is current again when checkpoint() runs the function in backward.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "dtensor/bit_identical.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/float8.h"
#include "internal/context_parallel_scope.h"
#include "support/data.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

DeviceMesh mesh_of(const at::Tensor& t) { return DTensor(t).mesh(); }

struct RestoredScope {
  std::string name;
  std::function<std::shared_ptr<void>(const at::Tensor& x)> open;
  std::function<std::string(const at::Tensor& x)> read;  // what a function on `x` sees of the scope
};

std::string error_or_none(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error&) {
    return "error";
  }
  return "none";
}

RestoredScope attention_strategy() {
  return {"AttentionStrategyScope",
          [](const at::Tensor&) { return std::make_shared<AttentionStrategyScope>(AttentionStrategy::ring); },
          [](const at::Tensor&) { return std::string(to_string(AttentionStrategyScope::current())); }};
}

RestoredScope microbatch() {
  return {"MicrobatchRandomScope",
          [](const at::Tensor&) {
            return std::make_shared<MicrobatchRandomScope>(MicrobatchRandomScope::Range{1, 2, 6});
          },
          [](const at::Tensor&) { return std::to_string(MicrobatchRandomScope::current().total); }};
}

RestoredScope factories() {
  return {"MeshScope", [](const at::Tensor& x) { return std::make_shared<MeshScope>(mesh_of(x)); },
          [](const at::Tensor&) { return c10::str(is_dtensor(at::ones({2}))); }};
}

RestoredScope plan() {
  return {"ParallelModel::Scope",
          [](const at::Tensor& x) {
            at::Tensor w = at::ones({4, 4});
            return std::make_shared<ParallelModel::Scope>(
                parallelize(NamedTensors{{"h.q.weight", &w}}, mesh_of(x), {{"h", PrepareModuleInput{Shard(0)}}}));
          },
          [](const at::Tensor& x) {
            static const std::string name = "h";
            const ModuleScope module(name);
            return to_string(DTensor(constrain("in", x)).placements());
          }};
}

RestoredScope strict() {
  return {"Strict", [](const at::Tensor&) { return std::make_shared<Strict>(); },
          [](const at::Tensor& x) { return error_or_none([&] {
                                      at::add(x.detach(), at::ones({4, 4}));
                                    }); }};
}

RestoredScope implicit_redistribution() {
  return {"ImplicitRedistributionScope",
          [](const at::Tensor&) { return std::make_shared<ImplicitRedistributionScope>(); },
          [](const at::Tensor& x) {
            const DTensor rows = DTensor(x.detach()).redistribute({Shard(0)});
            const DTensor columns = DTensor(x.detach()).redistribute({Shard(1)});
            return error_or_none([&] { at::add(rows, columns); });
          }};
}

RestoredScope context_parallel() {
  return {"ContextParallelScope",
          [](const at::Tensor& x) {
            return std::make_shared<ContextParallelScope>(mesh_of(x), std::vector<std::int64_t>{4});
          },
          [](const at::Tensor&) { return c10::str(ContextParallelScope::current()); }};
}

RestoredScope float8() {
  return {"Float8Scope", [](const at::Tensor&) { return std::make_shared<nn::Float8Scope>(); },
          [](const at::Tensor&) { return c10::str(nn::Float8Scope::current()); }};
}

RestoredScope bit_identical() {
  return {"BitIdentical", [](const at::Tensor&) { return std::make_shared<BitIdentical>(); },
          [](const at::Tensor&) { return c10::str(BitIdentical::current()); }};
}

// Slots and unit of a ComputeScope, which computes in bfloat16.
struct ComputeInBfloat16 {
  explicit ComputeInBfloat16(at::Tensor& weight)
      : unit(fully_shard(NamedTensors{{"w", &weight}}, mesh_of(weight), {.precision = {.param_dtype = at::kBFloat16}})),
        scope(std::in_place, NamedTensors{{"w", &weight}}) {}
  FsdpUnit unit;
  std::optional<ComputeScope> scope;
};

RestoredScope compute(at::Tensor& weight) {
  return {"ComputeScope", [&weight](const at::Tensor&) { return std::make_shared<ComputeInBfloat16>(weight); },
          [&weight](const at::Tensor&) { return c10::str(weight.scalar_type()); }};
}

std::vector<RestoredScope> restored_scopes(at::Tensor& weight) {
  return {attention_strategy(),      microbatch(),       factories(), plan(),          strict(),
          implicit_redistribution(), context_parallel(), float8(),    bit_identical(), compute(weight)};
}

// What `scope` shows to the first and the second run of a recomputed function.
std::pair<std::string, std::string> recompute(const RestoredScope& scope, const at::Tensor& x, bool open_in_forward) {
  std::vector<std::string> seen;
  const auto segment = [&](const at::Tensor& t) {
    seen.push_back(scope.read(t));
    return t * 2;
  };
  at::Tensor y;
  {
    const auto open = open_in_forward ? scope.open(x) : nullptr;
    y = checkpoint(segment, x).sum();
  }
  const auto open = open_in_forward ? nullptr : scope.open(x);
  y.backward();
  return {seen.at(0), seen.at(1)};
}

TEST(ScopeSnapshotTest, RecomputationSeesTheScopesOfTheForwardPass) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor weight = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_();
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_();
    for (const RestoredScope& scope : restored_scopes(weight)) {
      const std::string outside = scope.read(x);
      const auto opened = recompute(scope, x, /*open_in_forward=*/true);
      EXPECT_NE(opened.first, outside) << scope.name << ": the test does not see the scope";
      EXPECT_EQ(opened.second, opened.first) << scope.name << " around forward";
      const auto closed = recompute(scope, x, /*open_in_forward=*/false);
      EXPECT_EQ(closed.first, outside) << scope.name;
      EXPECT_EQ(closed.second, outside) << scope.name << " around backward";
      EXPECT_EQ(scope.read(x), outside) << scope.name << " has ended";
    }
  });
}

// The caller's list may end before backward: the graph keeps its owner until the recomputation has run.
TEST(ScopeSnapshotTest, KeepsTheOwnerOfCastEntries) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    auto w = std::make_shared<at::Tensor>(at::ones({4, 4}).requires_grad_());
    fully_shard(NamedTensors{{"w", w.get()}}, mesh, {.precision = {.param_dtype = at::kBFloat16}});
    const std::weak_ptr<at::Tensor> alive = w;
    const at::Tensor parameter = *w, x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)}).requires_grad_();
    at::Tensor loss;
    {
      const ComputeScope compute({{"w", w.get()}}, w);
      loss = checkpoint([cast = *w](const at::Tensor& t) { return at::mm(t.to(at::kBFloat16), cast); }, x).sum();
    }
    w.reset();
    EXPECT_FALSE(alive.expired());
    loss.backward();
    loss.reset();
    EXPECT_TRUE(alive.expired());
    EXPECT_TRUE(parameter.grad().defined());
  });
}

// Counts the scopes that the library registers as restored, so that a new one must be added to the test above.
TEST(ScopeSnapshotTest, EveryRestoredScopeIsTested) {
  const auto sources = std::filesystem::path(test::source_path("src"));
  int registered = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(sources)) {
    if (file.path().extension() != ".cpp" || file.path().filename() == "scope_frames.cpp") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) registered += line.find("Recompute::restored") != std::string::npos;
  }
  at::Tensor none;
  const int calls_of_units =
      2;  // CallSemantics and LocalDataCall: FsdpLocalData.RecomputationHasTheSemanticsOfItsForward
  EXPECT_EQ(registered, static_cast<int>(restored_scopes(none).size()) + calls_of_units);
}

}  // namespace
