// Modules, optimizers and gradients at the local/global boundary equal one device.
#include <torch/csrc/autograd/autograd.h>

#include <atomic>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

const std::vector<Shape>& fsdp_meshes() {
  static const std::vector<Shape> shapes = {{1}, {2}, {3}, {2, 2}};
  return shapes;
}

void on_fsdp_mesh(const Shape& shape, const std::function<void(const DeviceMesh&)>& body) {
  run_local(count(shape), [&](Communicator world) {
    auto names = shape.size() == 1 ? std::vector<std::string>{"shard"} : std::vector<std::string>{"replicate", "shard"};
    body(init_device_mesh(world, at::kCPU, shape, std::move(names)));
  });
}

// One step of Adafactor (Shazeer and Stern 2018, algorithm 4 without the relative step) in ATen calls.
struct Adafactor {
  at::Tensor row, col;
  void step(at::Tensor& weight, const at::Tensor& gradient) {
    const at::NoGradGuard guard;
    const auto squared = gradient.square().add_(1e-30);
    row.lerp_(squared.mean(1), 0.2);
    col.lerp_(squared.mean(0), 0.2);
    const auto variance = at::outer(row, col).div_(row.mean());
    auto update = gradient * variance.rsqrt_();
    update.div_(update.norm().div_(std::sqrt(static_cast<double>(update.numel()))).clamp_(1.0));
    weight.sub_(update * 0.01);
  }
};

TEST(Modules, AdafactorMatchesSingleDevice) {
  Draw draw(4);
  const auto start = draw.normal({5, 7}), x = draw.normal({7, 6});
  auto regular = start.clone().requires_grad_();
  Adafactor reference{at::zeros({5}, at::kDouble), at::zeros({7}, at::kDouble)};
  for (int i = 0; i < 3; ++i) {
    auto gradient = torch::autograd::grad({at::mm(regular, x).square().mean()}, {regular})[0];
    reference.step(regular, gradient);
  }
  for (const Shape& shape : mesh_shapes()) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw mine(9);
      at::Tensor weight = distribute_tensor(start, mesh, mine.placements(mesh, 2, false)).requires_grad_();
      const Placements full_tensor(static_cast<std::size_t>(mesh.ndim()));
      Adafactor ours{distribute_tensor(at::zeros({5}, at::kDouble), mesh, full_tensor),
                     distribute_tensor(at::zeros({7}, at::kDouble), mesh, full_tensor)};
      for (int i = 0; i < 3; ++i) {
        const auto loss = at::mm(weight, distribute_tensor(x, mesh, full_tensor)).square().mean();
        ours.step(weight, torch::autograd::grad({loss}, {weight})[0]);
      }
      expect_close(weight.detach(), regular.detach(), DTensor(weight).spec_str(), 1e-10);
    });
  }
}

// Embedding(5, 4) tied to the head; the last rank has one row or none.
at::Tensor tied_loss(const at::Tensor& table, const at::Tensor& scale, const at::Tensor& ids) {
  return at::cross_entropy_loss(at::linear(at::embedding(table, ids) * scale, table), ids);
}

TEST(Modules, TiedUnevenAndScalarParametersTrain) {
  Draw draw(1);
  const auto start = draw.normal({5, 4});
  const auto ids = draw.integers({12}, 5);
  const auto train = [&](at::Tensor& table, at::Tensor& scale, const at::Tensor& tokens) {
    SGD optimizer({table, scale}, {.lr = 0.5});
    for (int i = 0; i < 2; ++i) {
      tied_loss(table, scale, tokens).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  auto table = start.clone().requires_grad_(), scale = at::ones({}, at::kDouble).requires_grad_();
  train(table, scale, ids);
  for (const Shape& shape : fsdp_meshes()) {
    on_fsdp_mesh(shape, [&](const DeviceMesh& mesh) {
      at::Tensor ours = start.clone().requires_grad_(), ours_scale = at::ones({}, at::kDouble).requires_grad_();
      at::Tensor head = ours;
      fully_shard(NamedTensors{{"table", &ours}, {"head", &head}, {"scale", &ours_scale}}, mesh);
      EXPECT_TRUE(head.is_same(ours));
      const Placements batch(static_cast<std::size_t>(mesh.ndim()), Shard(0));
      train(ours, ours_scale, distribute_tensor(ids, mesh, batch));
      expect_close(ours.detach(), table.detach(), "table " + mesh.str(), 1e-12);
      expect_close(ours_scale.detach(), scale.detach(), "scale " + mesh.str(), 1e-12);
    });
  }
}

TEST(Modules, FullTensorsLoadIntoShards) {
  const auto saved = Draw(2).normal({5, 3});
  for (const Shape& shape : fsdp_meshes()) {
    on_fsdp_mesh(shape, [&](const DeviceMesh& mesh) {
      at::Tensor weight = at::zeros({5, 3}, at::kDouble).requires_grad_();
      fully_shard(NamedTensors{{"weight", &weight}}, mesh);
      {
        const at::NoGradGuard guard;
        weight.copy_(saved);
      }
      expect_close(weight.detach(), saved, mesh.str(), 0);
    });
  }
}

TEST(Modules, ReplicatedWeightAmongShardsGetsTheFullGradient) {
  Draw draw(6);
  const auto w = draw.normal({3, 4}), x = draw.normal({6, 3});
  auto regular = w.clone().requires_grad_();
  at::mm(x, regular).square().sum().backward();
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    auto weight = distribute_tensor(w, mesh, {Replicate()}).requires_grad_();
    const auto rows = distribute_tensor(x, mesh, {Shard(0)}).to_local();
    // With the placements of the gradient, to_local() reduces the gradients of the ranks.
    at::mm(rows, DTensor(weight).to_local({Partial()})).square().sum().backward();
    expect_close(weight.grad(), regular.grad(), "Partial gradient", 1e-12);
    // Without them it throws; PyTorch keeps one rank's gradient.
    auto unspecified = distribute_tensor(w, mesh, {Replicate()}).requires_grad_();
    EXPECT_THROW(at::mm(rows, DTensor(unspecified).to_local()).square().sum().backward(), c10::Error);
  });
}

TEST(Modules, DifferentOneElementOperandsAreAnError) {
  std::atomic<int> errors{0};
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    const auto d = distribute_tensor(at::ones({4}), mesh, {Replicate()});
    try {
      d.mul(at::full({1}, static_cast<double>(mesh.world().rank())));
    } catch (const c10::Error&) {
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
}

}  // namespace
}  // namespace dtensor::test
