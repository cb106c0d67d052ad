// Mixture of experts on a device other than the CPU: results, and the number of host reads.
#include <gtest/gtest.h>

#include <span>

#include "internal/kernels/gpu_kernels.h"
#include "moe/dispatch/permute.h"
#include "moe/row_kernels.h"
#include "moe/small_layer.h"
#include "other_device/step.h"
#include "support/swiglu_kernels.h"

namespace dtensor::test {
namespace {

struct Passes {
  int host_reads = 0;  // Of a forward and backward pass, all ranks together.
  at::Tensor y, grad;  // Of rank 0.
};

Passes run(const MoeOptions& options, DispatchKind kind) {
  Passes result;
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    MixtureOfExperts layer(options);
    fill(layer, 3);
    apply_expert_parallel(layer, mesh);
    nn::distribute({{"gate.weight", &layer.gate.weight}}, mesh,
                   [](const auto&, const auto&) { return Placements{Replicate()}; });
    layer.set_dispatch(kind);
    const auto x = distribute_tensor(Draw(7).normal({8, 8}), mesh, {Shard(0)}).requires_grad_();
    at::Tensor y;
    for (int pass = 0; pass < 2; ++pass) {  // The first pass creates the mappings.
      x.mutable_grad().reset();
      mesh.world().barrier();
      fake::host_reads = 0;
      mesh.world().barrier();
      y = layer.forward(x);
      y.square().sum().backward();
      mesh.world().barrier();
      if (mesh.world().rank() == 0) result.host_reads = fake::host_reads;
      mesh.world().barrier();
    }
    const auto full = host_value(y), grad = host_value(x.grad());
    if (mesh.world().rank() == 0) result.y = full, result.grad = grad;
  });
  return result;
}

MoeOptions options_with(RouterChoice choice, bool scales) {
  auto options = small_options();
  options.router.choice = choice;
  options.scale_expert_gradients = scales;
  return options;
}

void expect_one_device(const Passes& got, const MoeOptions& options) {
  MixtureOfExperts regular(options);
  fill(regular, 3);
  const auto x = Draw(7).normal({8, 8}).requires_grad_();
  const auto y = regular.forward(x);
  y.square().sum().backward();
  expect_close(got.y, y.detach(), "y");
  expect_close(got.grad, x.grad(), "gradient of x");
}

// Experts are gathered on the device, and their gradients return to the host.
TEST(OtherDevice, OffloadedExpertsEqualOneDevice) {
  const auto options = options_with(RouterChoice::tokens, false);
  MixtureOfExperts regular(options);
  fill(regular, 3);
  const auto full = Draw(7).normal({8, 8});
  regular.forward(full).square().sum().backward();
  for (const bool parallel : {false, true}) {
    for (const bool reshard : {true, false}) {
      on_device_mesh({2, 2}, [&](const DeviceMesh& mesh) {
        MixtureOfExperts layer(options);
        fill(layer, 3);
        const FsdpOptions how{.reshard_after_forward = reshard, .cpu_offload = true};
        const auto sparse = mesh.view({2, 2}, {"edp", "ep"});
        if (parallel) apply_expert_parallel(layer, sparse);
        auto how_experts = how;
        how_experts.shard_axes = {"edp"};
        if (parallel) fully_shard(expert_parameters(layer), sparse, how_experts);
        fully_shard(layer, mesh, how);
        const auto x = distribute_tensor(full, mesh, {Shard(0), Shard(0)});
        for (int pass = 0; pass < 2; ++pass) {
          for (const auto& [name, p] : layer.named_parameters()) p->mutable_grad().reset();
          layer(x).square().sum().backward();
          for (std::size_t i = 0; i < layer.parameters().size(); ++i) {
            const auto p = layer.parameters()[i];
            EXPECT_TRUE(DTensor(p.grad()).to_local().is_cpu());
            expect_close(host_value(p.grad()), regular.parameters()[i].grad(), "gradient");
          }
        }
      });
    }
  }
}

TEST(OtherDevice, EqualTokenExchangeDoesNotReadDeviceMemory) {
  const auto options = options_with(RouterChoice::round_robin, false);
  const auto passes = run(options, DispatchKind::equal);
  EXPECT_EQ(passes.host_reads, 0);
  expect_one_device(passes, options);
}

TEST(OtherDevice, TokenDispatchReadsItsCountsOnce) {
  for (const bool scales : {false, true}) {
    const auto options = options_with(RouterChoice::tokens, scales);
    const auto passes = run(options, DispatchKind::all_to_all);
    EXPECT_EQ(passes.host_reads, 2);  // One for each rank.
    expect_one_device(passes, options);
  }
}

// Groups are padded on the device. The host reads nothing on one rank, and on two ranks only what the exchange needs.
TEST(OtherDevice, PaddedGroupsReadNoCounts) {
  for (const int ranks : {1, 2}) {
    std::atomic<int> reads = -1;
    auto options = small_options(at::kFloat);
    options.experts.backend = ExpertBackend::grouped;
    options.experts.block = 16;
    at::Tensor got;
    on_device_mesh({ranks}, [&](const DeviceMesh& mesh) {
      MixtureOfExperts layer(options);
      fill(layer, 3);
      apply_expert_parallel(layer, mesh);
      nn::distribute(layer.named_parameters(), mesh, [](const auto&, const at::Tensor& t) {
        return is_dtensor(t) ? DTensor(t).placements() : Placements{Replicate()};
      });
      const auto x = distribute_tensor(Draw(7).normal({8, 8}, at::kFloat), mesh, {Shard(0)}).requires_grad_();
      layer.forward(x);  // Creates the mappings.
      mesh.world().barrier();
      fake::host_reads = 0;
      mesh.world().barrier();
      const auto y = layer.forward(x);
      y.square().sum().backward();
      mesh.world().barrier();
      if (mesh.world().rank() == 0) reads = fake::host_reads.load();
      mesh.world().barrier();
      const auto full = host_value(y);
      if (mesh.world().rank() == 0) got = full;
    });
    EXPECT_EQ(reads, ranks == 1 ? 0 : ranks);
    MixtureOfExperts regular(small_options(at::kFloat));
    fill(regular, 3);
    expect_close(got, regular.forward(Draw(7).normal({8, 8}, at::kFloat)).detach(), "y", 1e-5);
  }
}

enum class Grouped { yes, disabled, no_kernel };

// Automatic: no read on one rank, with and without a loss of the router; one read of the counts without the kernel.
TEST(OtherDevice, AutomaticBackendReadsNoCountsOnOneRank) {
  const SwigluKernels swiglu(c10::DispatchKey::PrivateUse1);
  for (const auto grouped : {Grouped::yes, Grouped::disabled, Grouped::no_kernel}) {
    for (const bool scales : {false, true}) {
      disable_gpu_kernels(grouped == Grouped::disabled ? "grouped_experts,swiglu" : "");
      torch::Library kernels(torch::Library::IMPL, "dtensor", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
      if (grouped == Grouped::no_kernel) kernels.impl("has_grouped_mm", [](const at::Tensor&) { return false; });
      auto options = small_options(at::kBFloat16);
      options.shared_ffn = 8;
      options.router.aux_loss = 0.01;
      options.scale_expert_gradients = scales;
      int reads = -1;
      at::Tensor got, grad;
      MoeCounters counters;
      on_device_mesh({1}, [&](const DeviceMesh& mesh) {
        MixtureOfExperts layer(options);
        fill(layer, 3);
        nn::distribute(layer.named_parameters(), mesh,
                       [](const auto&, const auto&) { return Placements{Replicate()}; });
        const auto x = distribute_tensor(Draw(7).normal({8, 8}, at::kBFloat16), mesh, {Shard(0)}).requires_grad_();
        layer.run(x);  // Creates the mappings.
        const MoeCountersScope counted(counters);
        fake::host_reads = 0, swiglu_passes = 0;
        const auto [y, loss] = layer.run(x);
        (y.square().sum() + loss).backward();
        reads = fake::host_reads;
        got = host_value(y), grad = host_value(x.grad());
      });
      EXPECT_EQ(reads, grouped == Grouped::yes ? 0 : 1) << scales;
      EXPECT_EQ(counters.aligned_rows, grouped == Grouped::yes ? 16 : 0);  // 8 tokens with 2 experts, not padded
      EXPECT_EQ(swiglu_passes, grouped == Grouped::disabled ? 0 : 2);
      MixtureOfExperts regular(options);
      fill(regular, 3);
      const auto x = Draw(7).normal({8, 8}, at::kBFloat16).requires_grad_();
      const auto [y, loss] = regular.run(x);
      (y.square().sum() + loss).backward();
      expect_close(got, y.detach(), "y", 3e-2);
      const auto scale = x.grad().abs().max();
      expect_close(grad / scale, x.grad() / scale, "gradient of x", 3e-2);
      set_takes_gpu_kernels(fake::kDevice, true);
    }
  }
}

// Of a layer in a unit with mixed precision, as in the program moe.
TEST(OtherDevice, TrainingStepWithExpertsReadsNothingOnOneRank) {
  auto options = small_options(at::kFloat);
  options.router.aux_loss = 0.01;
  int reads = -1;
  MoeCounters counters;
  on_device_mesh({1}, [&](const DeviceMesh& mesh) {
    MixtureOfExperts layer(options);
    fill(layer, 3);
    fully_shard(layer, mesh, {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(layer.parameters());
    const auto x = distribute_tensor(Draw(7).normal({8, 8}, at::kBFloat16), mesh, {Shard(0)});
    for (int step = 0; step < 3; ++step) {
      counters = {};
      const MoeCountersScope counted(counters);
      fake::host_reads = 0;
      const auto [y, loss] = [&] {
        const ComputeScope narrow(layer.named_parameters());
        return layer.run(x);
      }();
      (y.square().sum() + loss).backward();
      clip_grad_norm_(layer.parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    reads = fake::host_reads;
  });
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(counters.aligned_rows, 16);
}

TEST(OtherDevice, EntriesAreSortedByBinAsOnTheCpu) {
  fake::start();
  Draw draw(8);
  for (const std::int64_t bins : {1, 3, 255, 256, 300, 40000}) {
    auto ids = at::empty({500}, at::kLong);
    for (auto& id : std::span(ids.mutable_data_ptr<std::int64_t>(), 500)) id = draw.integer(0, bins);
    const auto expected = sort_by_bin(ids, bins), got = sort_by_bin(ids.to(fake::kDevice), bins);
    EXPECT_TRUE(at::equal(got.order.cpu(), expected.order)) << bins;
    EXPECT_TRUE(at::equal(got.position.cpu(), expected.position)) << bins;
    EXPECT_TRUE(at::equal(got.counts.cpu(), expected.counts)) << bins;
  }
}

}  // namespace
}  // namespace dtensor::test
