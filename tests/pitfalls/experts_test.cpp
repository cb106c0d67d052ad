// Expert parallelism where some ranks have no tokens: gradients and steps equal those of one device.
#include "dtensor/moe.h"
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

MoeOptions layer_options(Draw& draw) {
  MoeOptions o;
  o.hidden = 4;
  o.ffn = 6;
  o.router.experts = 4;
  o.router.top_k = draw.integer(1, 2);
  o.router.aux_loss = draw.coin() ? 0.1 : 0;
  o.tensor = at::kDouble;
  return o;
}

void fill(MixtureOfExperts& layer, std::uint64_t seed) {
  Draw draw(seed);
  for (const auto& [name, p] : layer.named_parameters()) *p = draw.normal(p->sizes().vec()).requires_grad_();
}

// Forward, backward and two steps of AdamW over a batch of `rows` tokens. Returns the names of undefined gradients.
std::string train(MixtureOfExperts& layer, const at::Tensor& x) {
  std::string missing;
  AdamW optimizer(layer.parameters(), {.lr = 0.01, .fused = false});
  for (int step = 0; step < 2; ++step) {
    const auto out = layer.run(x);
    auto loss = out.y.square().sum();
    if (out.loss.defined()) loss = loss + out.loss;
    loss.backward();
    for (const auto& [name, p] : layer.named_parameters()) {
      if (!p->grad().defined()) missing += name + " ";
    }
    optimizer.step();
    TORCH_CHECK(optimizer.state(layer.parameters()[1]).size() == 2, "no state");
    if (step == 0) optimizer.zero_grad();
  }
  return missing;
}

// A batch of `rows` that is split over all ranks: with fewer rows than ranks, some ranks have none.
void check_experts(std::uint64_t seed) {
  Draw draw(seed);
  const auto options = layer_options(draw);
  const auto rows = draw.integer(0, 5);
  const auto x = draw.normal({rows, options.hidden});
  const auto kind = static_cast<DispatchKind>(draw.integer(0, 2));
  const int ranks = draw.coin() ? 2 : 4;
  const std::int64_t ep = ranks == 4 && draw.coin() ? 2 : ranks;
  MixtureOfExperts one(options);
  fill(one, seed);
  one.set_dispatch(kind);
  (void)train(one, x);
  run_local(ranks, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {ranks / ep, ep}, {"edp", "ep"});
    MixtureOfExperts layer(options);
    fill(layer, seed);
    layer.gate.weight =
        distribute_tensor(layer.gate.weight.detach(), mesh, all_axes(mesh, Replicate())).requires_grad_();
    apply_expert_parallel(layer, mesh);
    layer.set_dispatch(kind);
    const auto missing = train(layer, distribute_tensor(x, mesh, all_axes(mesh, Shard(0))));
    const auto what = c10::str(rows, " rows on ", ranks, " ranks, ep ", ep, " dispatch ", static_cast<int>(kind));
    TORCH_CHECK(missing.empty(), what, ": expected all gradients to be defined, missing ", missing);
    const auto mine = layer.parameters(), theirs = one.parameters();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      auto wanted = theirs[i].grad();
      if (!wanted.defined()) wanted = at::zeros_like(theirs[i]);
      require_close(mine[i].grad(), wanted, c10::str(what, " gradient ", i));
      require_close(mine[i].detach(), theirs[i].detach(), c10::str(what, " parameter ", i));
    }
  });
}

TEST(Experts, GradientsAndStepsMatchSingleDeviceWithoutTokens) {
  EXPECT_TRUE(rc::check("a layer of experts", [] { check_experts(*rc::gen::inRange<std::uint64_t>(0, 1u << 20)); }));
}

}  // namespace
}  // namespace dtensor::test
