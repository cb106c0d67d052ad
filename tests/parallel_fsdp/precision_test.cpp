// Units that compute in one dtype and store another.
#include "parallel_fsdp/tower.h"

#include <ATen/autocast_mode.h>

namespace dtensor::test {
namespace {

// A bf16 model with fp32 norms: activations and gathered parameters are bf16; gradients and their sum are fp32.
TEST(FsdpPrecision, ComputesInOneDtypeAndStoresAnother) {
  for (const auto reduce : {at::kFloat, at::kBFloat16}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Net regular(9, at::kFloat), net(9, at::kFloat);
      FsdpOptions options;
      options.precision = {.param_dtype = at::kBFloat16,
                           .reduce_dtype = reduce,
                           .output_dtype = at::kFloat,
                           .param_dtype_of = {{"*.ln.*", at::kFloat}}};
      const auto a = fully_shard(net.list("a."), mesh, options), b = fully_shard(net.list("b."), mesh, options);
      const auto root = fully_shard(net.list(), mesh, options);
      const auto d = data(net, 4, 6, at::kFloat);
      std::int64_t reduced = 0;
      {
        const ComputeScope scope(net.list());
        EXPECT_EQ(net.p["a.w"].scalar_type(), at::kBFloat16);
        EXPECT_EQ(net.p["b.ln.w"].scalar_type(), at::kFloat);
        const auto h = at::layer_norm(at::linear(sharded(d.x, mesh).to(at::kBFloat16), net.p["a.w"]),
                                      {net.p["a.w"].size(0)}, net.p["b.ln.w"], net.p["b.ln.b"]);
        EXPECT_EQ(h.scalar_type(), at::kBFloat16);  // The norm does not change the dtype of activations.
        const auto loss = scope.output(net.loss(sharded(d.x, mesh).to(at::kBFloat16), sharded(d.ids, mesh)));
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        EXPECT_NEAR(DTensor(loss.detach()).full_tensor().item<float>(), regular.loss(d.x, d.ids).item<float>(),
                    0.05 * regular.loss(d.x, d.ids).item<float>());
        const EventListener listener([&](const Event& e) { reduced += e.name == "reduce_scatter" ? e.bytes : 0; },
                                     {Event::Kind::collective});
        loss.backward();
      }
      EXPECT_EQ(net.p["a.w"].scalar_type(), at::kFloat);
      EXPECT_EQ(root.stats().reduce_scatters, 3);
      regular.loss(d.x, d.ids).backward();
      for (const auto& [name, t] : net.p) {
        if (!t.grad().defined()) continue;
        EXPECT_EQ(t.grad().scalar_type(), at::kFloat);
        const auto expected = regular.p[name].grad();
        const auto error = (DTensor(t.grad()).full_tensor() - expected).norm().item<float>();
        EXPECT_LE(error, 0.1 * expected.norm().item<float>() + 0.05) << name;
      }
    });
  }
}

struct Warnings final : c10::WarningHandler {
  std::vector<std::string> texts;
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

TEST(FsdpPrecision, ParamDtypeWithoutAScopeWarnsOnce) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    Tower tower(1, 6, at::kFloat);
    tower.shard(mesh, {.precision = {.param_dtype = at::kBFloat16}});
    const auto x = sharded(input().to(at::kFloat), mesh);
    {
      const at::NoGradGuard no_grad;
      (void)at::linear(x, tower.w[0]);  // Reads the parameter in its stored dtype.
    }
    EXPECT_TRUE(warnings.texts.empty());
    for (int i = 0; i < 2; ++i) tower.loss(x).backward();
    ASSERT_EQ(warnings.texts.size(), 1U);
    EXPECT_NE(warnings.texts[0].find("run the forward pass in one"), std::string::npos) << warnings.texts[0];
  });
}

TEST(FsdpPrecision, AutocastUsesTheGatheredUnit) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(2, 6, at::kFloat);
    const auto units = tower.shard(mesh, {.precision = {.param_dtype = at::kBFloat16}});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto loss = tower.loss(sharded(input().to(at::kFloat), mesh));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
    EXPECT_EQ(units[0].stats().all_gathers, 2);  // The last layer stays; backward does not need the first.
    EXPECT_EQ(units[0].gathered_bytes(), 128);   // 72 bytes of bf16, aligned.
    EXPECT_EQ(tower.w[0].grad().scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace dtensor::test
