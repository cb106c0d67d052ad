// Training steps of a model in units equal those of one device: losses, gradients and parameters, on every mesh and
// with all options of the schedule. The number of collectives is minimal.
#include "internal/gradient_hooks.h"
#include "parallel_fsdp/delayed.h"
#include "parallel_fsdp/model.h"

#include <rapidcheck/gtest.h>

namespace dtensor::test {
namespace {

struct Setup {
  Axes3 axes;
  std::uint64_t seed = 0;
  std::int64_t rows = 5;
  FsdpOptions options = {};
  bool tp = false;
  int accumulate = 1;
  bool background = false;  // Runs collectives in the background.
};

std::string describe(const Setup& s) {
  const auto* group = std::get_if<std::int64_t>(&s.options.reshard_after_forward);
  return c10::str("mesh ", s.axes.replicate, 'x', s.axes.shard, 'x', s.axes.tp, ", seed ", s.seed, ", rows ", s.rows,
                  ", accumulate ", s.accumulate, ", prefetch ", s.options.prefetch_bytes.value_or(-1), ", reshard ",
                  group                                             ? *group
                  : std::get<bool>(s.options.reshard_after_forward) ? -1
                                                                    : 0,
                  s.background ? ", in the background" : "", s.options.shard_dim ? ", last dimension" : "",
                  s.tp ? ", tp" : "");
}

std::vector<FsdpUnit> shard(Net& net, const DeviceMesh& mesh, const Setup& setup) {
  if (setup.tp) place_on_tp(net, mesh);
  return {fully_shard(net.list("a."), mesh, setup.options), fully_shard(net.list("b."), mesh, setup.options),
          fully_shard(net.list(), mesh, setup.options)};
}

at::Tensor place(const at::Tensor& t, const DeviceMesh& mesh) { return distribute_tensor(t, mesh, kBatch); }

// Compares three steps with one device.
void expect_same_steps(const Setup& setup) {
  run_local(setup.axes.ranks(), [&](Communicator world) {
    SCOPED_TRACE(describe(setup));
    const auto mesh = make_mesh(setup.background ? delayed(world) : world, setup.axes);
    Net regular(setup.seed), net(setup.seed);
    const auto units = shard(net, mesh, setup);
    for (int i = 0; i < 3; ++i) {
      for (int micro = 0; micro < setup.accumulate; ++micro) {
        const auto d = data(regular, setup.seed * 31 + i * 7 + micro, setup.rows);
        std::optional<NoGradientSync> off;
        if (micro + 1 < setup.accumulate && setup.seed % 2 == 0) off.emplace();
        std::optional<NoReplicaSync> replicas_off;
        if (micro + 1 < setup.accumulate && setup.seed % 2 == 1) replicas_off.emplace();
        const auto expected = regular.loss(d.x, d.ids);
        const auto loss = net.loss(place(d.x, mesh), place(d.ids, mesh));
        expected.backward();
        loss.backward();
        EXPECT_EQ(units[0].stats().gathered_bytes, 0);
        EXPECT_EQ(units[0].stats().unreduced_bytes, 0);
        expect_close(loss.detach(), expected.detach(), "loss " + std::to_string(i));
      }
      for (const auto& name : net.names) {
        ASSERT_EQ(net.p[name].grad().defined(), regular.p[name].grad().defined()) << name;
        if (!regular.p[name].grad().defined()) continue;
        EXPECT_EQ(DTensor(net.p[name].grad()).placements(), gradient_placements(DTensor(net.p[name]))) << name;
        expect_close(net.p[name].grad(), regular.p[name].grad(), "gradient of " + name);
      }
      step(regular);
      step(net);
    }
    for (const auto& name : net.names) expect_close(net.p[name].detach(), regular.p[name].detach(), name);
  });
}

const std::vector<Axes3> kMeshes = {{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {2, 2, 1}, {2, 1, 1}, {3, 2, 1}};
const std::vector<Axes3> kTpMeshes = {{1, 1, 2}, {1, 2, 2}, {2, 2, 2}, {1, 3, 2}, {1, 2, 3}};

RC_GTEST_PROP(Fsdp, StepsMatchSingleDevice, ()) {
  Setup setup;
  setup.axes = *rc::gen::elementOf(kMeshes);
  setup.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  setup.rows = *rc::gen::inRange<std::int64_t>(1, 7);
  setup.accumulate = *rc::gen::inRange(1, 4);
  setup.background = *rc::gen::arbitrary<bool>();
  const auto reshard = *rc::gen::inRange(0, 3);
  setup.options.reshard_after_forward = reshard == 0;
  if (reshard == 2 && setup.axes.shard == 4) setup.options.reshard_after_forward = std::int64_t{2};
  setup.options.prefetch_bytes =
      *rc::gen::elementOf(std::vector<std::optional<std::int64_t>>{std::nullopt, 0, 400, 100000});
  if (*rc::gen::arbitrary<bool>())
    setup.options.shard_dim = [](const auto&, const at::Tensor& t) { return t.dim() - 1; };
  expect_same_steps(setup);
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(Fsdp, StepsOnTensorParallelPlacementsMatchSingleDevice, ()) {
  Setup setup;
  setup.axes = *rc::gen::elementOf(kTpMeshes);
  setup.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  setup.rows = *rc::gen::inRange<std::int64_t>(1, 7);
  setup.accumulate = *rc::gen::inRange(1, 3);
  setup.tp = true;
  setup.options.reshard_after_forward = *rc::gen::arbitrary<bool>();
  expect_same_steps(setup);
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace dtensor::test
