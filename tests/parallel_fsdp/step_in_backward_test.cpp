// An optimizer steps within backward: each parameter as soon as its gradient is reduced. The gradient is freed then.
#include "dtensor/optim.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

constexpr int kLayers = 5, kSteps = 3;

std::int64_t live_gradients(const Tower& tower) {
  return std::count_if(tower.w.begin(), tower.w.end(), [](const at::Tensor& w) { return w.grad().defined(); });
}

TEST(FsdpSchedule, StepWithinBackwardMatchesStepAfterItWithGradientsOfOneUnit) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(kLayers), tower(kLayers);
    tower.shard(mesh);
    std::vector<std::unique_ptr<AdamW>> each;
    std::int64_t most = 0;
    for (const at::Tensor& w : tower.w) {
      each.push_back(std::make_unique<AdamW>(std::vector{w}));
      set_gradient_ready_hook(DTensor(w), [&, own = each.back().get()](const DTensor& parameter) {
        most = std::max(most, live_gradients(tower));
        own->step();
        parameter.mutable_grad() = at::Tensor();
      });
    }
    AdamW after(regular.w);
    for (int i = 0; i < kSteps; ++i) {
      regular.loss(input()).backward();
      after.step();
      after.zero_grad();
      tower.loss(sharded(input(), mesh)).backward();
    }
    for (int i = 0; i < kLayers; ++i) {
      const auto k = static_cast<std::size_t>(i);
      expect_close(tower.w[k].detach(), regular.w[k].detach(), "layer " + std::to_string(i));
    }
    EXPECT_EQ(most, 1);
    EXPECT_EQ(live_gradients(tower), 0);
  });
}

}  // namespace
}  // namespace dtensor::test
