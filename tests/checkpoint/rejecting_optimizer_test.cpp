// A user-defined optimizer that refuses its state after everything has been read.
#include <gtest/gtest.h>

#include "checkpoint/folder.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/random.h"

namespace dtensor::test {
namespace {

// Its state is a learning rate, which it accepts or refuses.
class Refusing final : public Optimizer {
 public:
  void step() override {}
  std::vector<at::Tensor> parameters() const override { return {}; }
  std::size_t group_count() const override { return 1; }
  double lr(std::size_t /*group*/) const override { return rate_; }
  using Optimizer::set_lr;
  void set_lr(std::size_t /*group*/, double lr) override { rate_ = lr; }
  StateTensors state(const at::Tensor& /*parameter*/) const override { return {}; }
  OptimizerState state_dict() const override { return {{}, {{"group0.lr", rate_}}}; }
  StateTargets state_targets(const OptimizerState::Scalars& scalars, const Saved& /*saved*/) override {
    return {{}, [this, rate = scalars.at(0).second] {
              TORCH_CHECK(!refuses, "learning rate refused");
              rate_ = rate;
            }};
  }
  bool refuses = false;

 private:
  double rate_ = 1;
};

// A failed load must not change values: otherwise a program that catches the error continues from a mixed state.
TEST(Checkpoint, RefusedLoadKeepsValuesAndRandomState) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Refusing optimizer;
    std::int64_t step = 7;
    manual_seed(mesh, 3);
    Checkpoint state;
    state.add("step", step).add_random("random", mesh).add("optimizer", optimizer);
    state.save(folder / "saved", mesh.world(), kQuick);
    step = 1;
    manual_seed(mesh, 4);
    optimizer.set_lr(2);
    optimizer.refuses = true;
    EXPECT_THROW(state.load(folder / "saved", mesh.world()), c10::Error);
    EXPECT_EQ(step, 1);
    EXPECT_EQ(get_rng_state(mesh).seed, 4U);
    optimizer.refuses = false;
    state.load(folder / "saved", mesh.world());
    EXPECT_EQ(step, 7);
    EXPECT_EQ(get_rng_state(mesh).seed, 3U);
    EXPECT_EQ(optimizer.lr(0), 1);
  });
}

}  // namespace
}  // namespace dtensor::test
