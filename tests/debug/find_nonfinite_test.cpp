// find_nonfinite() names the operator and module that first produced a non-finite value, equal on every rank. Operators
// that only propagate it or fill with it are not named.
#include "dtensor/debug.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Two linear layers with a square root between them, which is NaN for negative numbers.
struct Net {
  at::Tensor first, second;

  at::Tensor operator()(const at::Tensor& x) const {
    static const std::string outer = "net", a = "first", root = "root", b = "second";
    const ModuleScope net(outer);
    at::Tensor y;
    {
      const ModuleScope scope(a);
      y = at::mm(x, first);
    }
    {
      const ModuleScope scope(root);
      y = at::sqrt(y);
    }
    const ModuleScope scope(b);
    return at::mm(y, second);
  }
};

Net net_on(const DeviceMesh& mesh) {
  return {distribute_tensor(at::ones({4, 4}), mesh, {Replicate(), Shard(1)}).requires_grad_(),
          distribute_tensor(at::ones({4, 2}), mesh, {Replicate(), Shard(0)}).requires_grad_()};
}

// Eight rows on a 2x2 mesh; one row can make the square root NaN.
at::Tensor rows_with(double value, std::int64_t row, const DeviceMesh& mesh) {
  at::Tensor x = at::ones({8, 4});
  x[row].fill_(value);
  return distribute_tensor(x, mesh, {Shard(0), Replicate()});
}

TEST(FindNonfinite, AllRanksNameTheModuleOfNanOnOneRank) {
  std::mutex mutex;
  std::set<std::string> reported;
  run_local(4, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const Net net = net_on(mesh);
    const at::Tensor x = rows_with(-1, 5, mesh);  // the row is on ranks 2 and 3
    const auto report = find_nonfinite([&] { net(x).sum().backward(); }, world);
    ASSERT_TRUE(report.nan);
    EXPECT_EQ(report.nan->module, "net.root");
    EXPECT_EQ(report.nan->op, "aten::sqrt");
    EXPECT_EQ(report.nan->phase, Phase::forward);
    EXPECT_EQ(report.nan->rank, 2);
    EXPECT_FALSE(report.nan->from_operand);
    EXPECT_FALSE(report.infinite);
    const std::lock_guard lock(mutex);
    reported.insert(report.str());
  });
  EXPECT_EQ(reported, std::set<std::string>({"NaN first in net.root, forward, by aten::sqrt on rank 2"}));
}

TEST(FindNonfinite, BackwardIsAttributedToTheModuleOfItsForward) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const Net net = net_on(mesh);
    const at::Tensor x = rows_with(0, 1, mesh);  // sqrt(0) is 0, its derivative is infinite
    at::Tensor loss;
    const auto report = find_nonfinite([&] { (loss = net(x).sum()).backward(); }, world);
    EXPECT_TRUE(std::isfinite(DTensor(loss.detach()).full_tensor().item<double>()));
    ASSERT_TRUE(report.infinite);
    EXPECT_EQ(report.infinite->module, "net.root");
    EXPECT_EQ(report.infinite->phase, Phase::backward);
    EXPECT_EQ(report.infinite->rank, 0);
  });
}

TEST(FindNonfinite, FillValuesAndOperandsAreNotAttributed) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    const at::Tensor x = rand({4, 4}, mesh, {Shard(0)});
    const at::Tensor mask = distribute_tensor(at::ones({4, 4}, at::kBool).tril(), mesh, {Shard(0)});
    const auto finite = find_nonfinite(
        [&] {
          const at::Tensor memory = at::empty_like(x).fill_(1), wide = x.new_empty({4, 8});
          at::softmax(x.masked_fill(mask.logical_not(), -kInfinity), -1).sum();
        },
        world);
    EXPECT_FALSE(finite.nan) << finite.str();
    EXPECT_FALSE(finite.infinite) << finite.str();
    EXPECT_EQ(finite.str(), "a second pass over the same batch had finite values only");

    const at::Tensor bad = distribute_tensor(at::full({4, 4}, std::nan("")), mesh, {Shard(0)});
    const auto given = find_nonfinite([&] { at::add(bad, x).sum(); }, world);
    ASSERT_TRUE(given.nan);
    EXPECT_TRUE(given.nan->from_operand);
    EXPECT_EQ(given.str(), "NaN was there already, first read outside any module, forward, by aten::add on rank 0");

    const auto made = find_nonfinite([&] { at::add(bad, x), at::log(at::mul(x, -1)); }, world);
    ASSERT_TRUE(made.nan);
    EXPECT_EQ(made.nan->op, "aten::log") << made.str();  // producers take precedence over consumers
  });
}

TEST(FindNonfinite, OverflowIsReportedWithTheResultingNan) {
  const at::Tensor x = at::full({3}, 1000.0f);  // regular tensors, no ranks
  const auto report = find_nonfinite([&] {
    const at::Tensor e = at::exp(x);
    at::div(e, e.sum());
  });
  ASSERT_TRUE(report.nan && report.infinite);
  EXPECT_EQ(report.str(),
            "NaN first outside any module, forward, by aten::div on rank 0; infinite values first outside any module, "
            "forward, by aten::exp on rank 0");
}

// One rank's shard of a parameter has NaN or infinity; the product gathers it on all ranks.
TEST(FindNonfinite, ValuesOfAnotherRankAreNotAttributedToThisRank) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    const auto weight = [&](double value) {
      at::Tensor w = at::ones({4, 4});
      w[0][0] = value;
      return distribute_tensor(w, mesh, {Shard(0).as_storage()});
    };
    const at::Tensor nan = weight(std::nan("")), infinite = weight(kInfinity);
    EXPECT_EQ(find_nonfinite([&] { at::mm(x, nan); }, world).str(),
              "NaN was there already, first read outside any module, forward, by aten::mm on rank 0");
    EXPECT_FALSE(find_nonfinite([&] { at::mm(x, infinite); }, world).infinite);
    const auto later = find_nonfinite([&] { at::mm(x, nan), at::log(x - 2); }, world);
    ASSERT_TRUE(later.nan);
    EXPECT_EQ(later.nan->op, "aten::log") << later.str();
  });
}

// Rank 2 has none of two rows: its partial maximum is minus infinity.
TEST(FindNonfinite, PartialsOfEmptyShardsAreIgnored) {
  run_local(3, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3}, {"dp"});
    const at::Tensor x = distribute_tensor(at::ones({2, 4}), mesh, {Shard(0)});
    const auto report = find_nonfinite(
        [&] {
          x.amax(0).sum(), x.amin(0).sum(), x.max().mul(2), x.mean(0).sum(), x.var(0).sum();
          x.logsumexp(0).sum(), at::softmax(x, 0).sum();
        },
        world);
    EXPECT_FALSE(report.nan || report.infinite) << report.str();
  });
}

TEST(FindNonfinite, ListOperatorsWithoutResultsAreChecked) {
  const std::vector<at::Tensor> list{at::ones({2}), at::ones({3})};
  const auto report = find_nonfinite([&] { at::_foreach_div_(list, 0); });
  ASSERT_TRUE(report.infinite);
  EXPECT_EQ(report.infinite->op, "aten::_foreach_div_");
}

TEST(FindNonfinite, WorksInAMeshScope) {
  run_local(2, [](Communicator world) {
    const MeshScope scope(init_device_mesh(world, at::kCPU, {2}, {"dp"}), {Shard(0)});
    const auto report = find_nonfinite([] { at::log(at::full({4}, -1.0)); }, world);
    ASSERT_TRUE(report.nan);
    EXPECT_EQ(report.nan->op, "aten::log");
  });
}

TEST(CheckStepFinite, RunsThePassOnlyForNonFiniteNumbers) {
  const auto never = [] { FAIL() << "the pass must not run"; };
  check_step_finite({.step = 1, .loss = 2, .gradient_norm = 3}, never);
  const auto text = [](NonFiniteError::Step numbers) -> std::string {
    try {
      check_step_finite(numbers, [] { at::log(at::full({2}, -1.0)); });
    } catch (const NonFiniteError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text({.step = 7, .loss = std::nan("")}),
            "step 7: the loss is NaN: NaN first outside any module, forward, by aten::log on rank 0. No parameter was "
            "changed.");
  EXPECT_NE(text({.step = 7, .gradient_norm = kInfinity}).find("step 7: the norm of the gradients is inf: "),
            std::string::npos);
}

// A training loop: at step 2 the batch has bad values on the rows of one rank.
TEST(CheckStepFinite, StopsEveryRankBeforeTheParametersChange) {
  std::mutex mutex;
  std::set<std::string> reported;
  run_local(4, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const Net net = net_on(mesh);
    SGD optimizer({net.first, net.second}, {.lr = 1e-3});
    at::Tensor before;
    std::int64_t step = 0;
    try {
      for (; step < 5; ++step) {
        before = DTensor(net.first.detach()).full_tensor().clone();
        const at::Tensor x = rows_with(step == 2 ? -1 : 1, 7, mesh);
        at::Tensor loss;
        const auto pass = [&] { (loss = net(x).square().mean()).backward(); };
        pass();
        const double norm = clip_grad_norm_({net.first, net.second}, 1.0).item<double>();
        check_step_finite({step, DTensor(loss.detach()).full_tensor().item<double>(), norm}, pass, world);
        optimizer.step();
        optimizer.zero_grad();
      }
    } catch (const NonFiniteError& error) {
      const std::lock_guard lock(mutex);
      reported.insert(error.what());
    }
    EXPECT_EQ(step, 2);
    EXPECT_TRUE(at::equal(DTensor(net.first.detach()).full_tensor(), before));
    EXPECT_FALSE(at::equal(before, at::ones({4, 4})));  // previous steps changed them
  });
  EXPECT_EQ(reported,
            std::set<std::string>({"step 2: the loss is NaN: NaN first in net.root, forward, by aten::sqrt on "
                                   "rank 2. No parameter was changed."}));
}

}  // namespace
