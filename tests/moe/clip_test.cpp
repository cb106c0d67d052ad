// Gradient clipping of a mixture of experts uses the norm of one device, for all placements of its parameters.
#include "moe/small_layer.h"

#include "dtensor/optim.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

const Shape kBatch = {8, 3, 8};

at::Tensor batch() { return Draw(5).normal(kBatch, at::kDouble); }

double norm_of(MixtureOfExperts& layer, const at::Tensor& x) {
  layer.forward(x).square().sum().backward();
  return get_total_norm([&] {
           std::vector<at::Tensor> gradients;
           for (const auto& p : layer.parameters()) gradients.push_back(p.grad());
           return gradients;
         }())
      .item<double>();
}

double one_device() {
  MixtureOfExperts layer(small_options());
  fill(layer, 3);
  return norm_of(layer, batch());
}

struct Form {
  const char* name;
  std::vector<std::string> axes;  // of the router's mesh slice; empty: all ranks in one dimension
  Placements placements;
};

const std::vector<Form> kForms = {
    {"replicated", {"edp", "ep"}, {Replicate(), Replicate()}},
    {"storage shards", {"edp", "ep"}, {Shard(0).as_storage(), Replicate()}},
    {"sharded on the slices of ep", {"ep"}, {Shard(0).as_storage()}},
    {"replicated on the slices of edp", {"edp"}, {Replicate()}},
    {"sharded on the slices of edp", {"edp"}, {Shard(0).as_storage()}},
    {"sharded on one axis over all ranks", {}, {Shard(0).as_storage()}},
};

// If `regular`, each rank gives its tokens as a regular tensor.
void expect_norm(const DeviceMesh& mesh, const Form& form, bool regular, double wanted) {
  MixtureOfExperts layer(small_options());
  fill(layer, 3);
  apply_expert_parallel(layer, mesh);
  const auto on = form.axes.empty() ? mesh.flatten("all") : mesh[form.axes];
  nn::distribute({{"gate.weight", &layer.gate.weight}}, on, [&](const auto&, const auto&) { return form.placements; });
  const auto x = batch();
  const auto mine = regular ? x.chunk(mesh.size())[mesh.world().rank()].clone()
                            : at::Tensor(distribute_tensor(x, mesh, {Shard(0), Shard(0)}));
  EXPECT_NEAR(norm_of(layer, mine), wanted, 1e-10 * wanted)
      << form.name << (regular ? ", regular tokens, " : ", ") << mesh.str();
  EXPECT_NEAR(clip_grad_norm_(layer.parameters(), 1).item<double>(), wanted, 1e-10 * wanted) << form.name;
  EXPECT_NEAR(clip_grad_norm_(layer.parameters(), 1).item<double>(), 1, 1e-6) << form.name;
}

TEST(ClipOfExperts, NormEqualsOneDevice) {
  const double wanted = one_device();
  for (const auto& shape : {Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{1, 4}}) {
    run_local(count(shape), [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, shape, {"edp", "ep"});
      for (const auto& form : kForms) {
        for (const bool regular : {false, true}) expect_norm(mesh, form, regular, wanted);
      }
    });
  }
}

// Experts are also split over tp, whose ranks have the same tokens.
TEST(ClipOfExperts, NormOverTpEqualsOneDevice) {
  const double wanted = one_device();
  run_local(4, [&](Communicator world) {
    const auto sparse = init_device_mesh(world, at::kCPU, {2, 2}, {"ep", "etp"});
    const auto dense = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    for (const auto& axes : {std::vector<std::string>{"shard"}, {"tp"}, {"shard", "tp"}}) {
      MixtureOfExperts layer(small_options());
      fill(layer, 3);
      apply_expert_parallel(layer, sparse);
      nn::distribute({{"gate.weight", &layer.gate.weight}}, dense[axes],
                     [&](const auto&, const auto&) { return Placements(axes.size()); });
      const auto x = distribute_tensor(batch(), dense, {Shard(0), Replicate()});
      EXPECT_NEAR(norm_of(layer, x), wanted, 1e-10 * wanted) << axes;
    }
  });
}

// A regular router with regular tokens has a local gradient that is not reduced: ranks would clip by different norms.
TEST(ClipOfExperts, RegularGradientsThatDifferAreAnError) {
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    MixtureOfExperts layer(small_options());
    fill(layer, 3);
    apply_expert_parallel(layer, mesh);
    const auto mine = batch().chunk(2)[world.rank()].clone();
    layer.forward(mine).square().sum().backward();
    EXPECT_NE(
        error_of([&] { clip_grad_norm_(layer.parameters(), 1); }).find("expected equal regular tensors on all ranks"),
        std::string::npos);
    auto gradient = layer.gate.weight.grad();
    world.all_reduce(gradient, ReduceOp::sum).wait();
    EXPECT_NEAR(clip_grad_norm_(layer.parameters(), 1).item<double>(), one_device(), 1e-8);
  });
}

}  // namespace
}  // namespace dtensor::test
