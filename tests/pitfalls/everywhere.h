// A function of plain tensors, run on DTensors of many placements: values and gradients must be those of one device.
#pragma once

#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor::test {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Floating inputs require grad. `partial`: whether inputs may be Partial.
inline void equal_everywhere(const char* name, const std::vector<at::Tensor>& inputs, const Function& fn,
                             bool partial = true, int tries = 4, double tolerance = 1e-8) {
  const auto with_grad = [](std::vector<at::Tensor> tensors) {
    for (auto& t : tensors) {
      if (t.is_floating_point()) t.requires_grad_();
    }
    return tensors;
  };
  std::vector<at::Tensor> reference;
  for (const auto& t : inputs) reference.push_back(t.clone());
  reference = with_grad(reference);
  const auto expected = fn(reference);
  const auto weight = Draw(3).normal(expected.sizes().vec());
  if (expected.requires_grad()) (expected * weight).sum().backward();
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (int i = 0; i < tries; ++i) {
        Draw draw(static_cast<std::uint64_t>(17 * i + mesh.size()));
        std::string what = name;
        std::vector<at::Tensor> sharded;
        for (const auto& t : inputs) {
          const bool may = partial && t.is_floating_point();
          // The first tries shard every input along one dimension.
          const auto along = [&] { return t.dim() > i ? Placement(Shard(i)) : Placement(Replicate()); };
          auto placements =
              i < 2 ? Placements(static_cast<std::size_t>(mesh.ndim()), along()) : draw.placements(mesh, t.dim(), may);
          sharded.push_back(distribute_tensor(t.clone(), mesh, placements));
          what += " " + DTensor(sharded.back()).spec_str();
        }
        sharded = with_grad(sharded);
        const auto actual = fn(sharded);
        expect_close(actual.detach(), expected.detach(), what, tolerance);
        if (!expected.requires_grad()) continue;
        (actual * distribute_tensor(weight, mesh, Placements(static_cast<std::size_t>(mesh.ndim())))).sum().backward();
        for (std::size_t k = 0; k < sharded.size(); ++k) {
          if (reference[k].grad().defined())
            expect_close(sharded[k].grad(), reference[k].grad(), what + " grad", tolerance);
        }
      }
    });
  }
}

}  // namespace dtensor::test
