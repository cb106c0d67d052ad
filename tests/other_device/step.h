// Training steps on a mesh of the fake device, compared with one device.
#pragma once

#include "dtensor/comm_backend.h"
#include "dtensor/optim.h"
#include "other_device/fake_device.h"
#include "parallel_fsdp/model.h"

namespace dtensor::test {

// Axes "replicate" and "shard".
inline void on_device_mesh(const Shape& shape, const std::function<void(const DeviceMesh&)>& body) {
  fake::start();
  run_local(count(shape), [&](Communicator world) {
    std::vector<std::string> names = {"replicate", "shard"};
    if (shape.size() == 1) names = {"shard"};
    body(init_device_mesh(world, fake::kDevice, shape, names));
  });
}

inline at::Tensor host_value(const at::Tensor& t) { return DTensor(t.detach()).full_tensor().cpu(); }

enum class Stored { by_placements, in_units };

inline std::vector<FsdpUnit> store(Net& net, const DeviceMesh& mesh, Stored how, const FsdpOptions& options) {
  if (how == Stored::in_units) {
    return {fully_shard(net.list("a."), mesh, options), fully_shard(net.list("b."), mesh, options),
            fully_shard(net.list(), mesh, options)};
  }
  for (auto& [name, t] : net.p) {
    Placements placements(static_cast<std::size_t>(mesh.ndim()));
    if (t.dim() > 0) placements.back() = Shard(0).as_storage();
    t = distribute_tensor(t.detach(), mesh, placements).requires_grad_();
  }
  return {};
}

inline std::vector<at::Tensor> tensors_of(const Net& net) {
  std::vector<at::Tensor> list;
  for (const auto& name : net.names) list.push_back(net.p.at(name));
  return list;
}

struct Training {
  FsdpOptions options = {};
  Stored stored = Stored::in_units;
  int accumulate = 1, steps = 3;
  bool replicas_only = false;  // What gradient accumulation skips: NoReplicaSync, or else NoGradientSync.
  std::uint64_t seed = 5;
};

// Compares losses, norms and parameters; `check` inspects the model after each backward pass.
inline void expect_trains(const DeviceMesh& mesh, const Training& how,
                          const std::function<void(const Net&)>& check = {}) {
  Net regular(how.seed), net(how.seed);
  const auto units = store(net, mesh, how.stored, how.options);
  AdamW expected_optimizer(tensors_of(regular)), optimizer(tensors_of(net));
  const Placements batch(static_cast<std::size_t>(mesh.ndim()), Shard(0));
  for (int i = 0; i < how.steps * how.accumulate; ++i) {
    const auto d = data(regular, how.seed * 31 + static_cast<std::uint64_t>(i), 5);
    const bool last = (i + 1) % how.accumulate == 0;
    std::optional<NoGradientSync> off;
    std::optional<NoReplicaSync> replicas_off;
    if (!last) how.replicas_only ? static_cast<void>(replicas_off.emplace()) : static_cast<void>(off.emplace());
    const auto expected = regular.loss(d.x, d.ids);
    const auto loss = net.loss(distribute_tensor(d.x, mesh, batch), distribute_tensor(d.ids, mesh, batch));
    expected.backward();
    loss.backward();
    expect_close(host_value(loss), expected.detach(), "loss " + std::to_string(i));
    if (check) check(net);
    if (!last) continue;
    const auto want = clip_grad_norm_(tensors_of(regular), 0.5), norm = clip_grad_norm_(tensors_of(net), 0.5);
    expect_close(norm.cpu(), want, "norm");
    for (const auto& name : net.names) {
      ASSERT_EQ(net.p[name].grad().defined(), regular.p[name].grad().defined()) << name;
      if (regular.p[name].grad().defined()) expect_close(host_value(net.p[name].grad()), regular.p[name].grad(), name);
    }
    expected_optimizer.step();
    optimizer.step();
    expected_optimizer.zero_grad();
    optimizer.zero_grad();
  }
  for (const auto& name : net.names) expect_close(host_value(net.p[name]), regular.p[name].detach(), name);
}

}  // namespace dtensor::test
