// The model reads features of neighbors, owned or ghosts, and writes owned atoms only.
#include "model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace potential {
namespace {

// Smooth functions of the distance that end at the cutoff: [edges, kRadial].
at::Tensor radial_basis(const at::Tensor& distance) {
  const at::Tensor centers = at::linspace(0.5, kCutoff, kRadial, at::kDouble);
  const at::Tensor window = 0.5 * (at::cos(distance * (M_PI / kCutoff)) + 1);
  return at::exp(-4 * (distance.unsqueeze(1) - centers).square()) * window.unsqueeze(1);
}

}  // namespace

Model random_model(std::uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](at::IntArrayRef sizes) {
    return (at::randn(sizes, generator, at::kDouble) * 0.5).requires_grad_();
  };
  Model model{draw({kSpecies, kFeatures})};
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    model.push_back(draw({kRadial, kFeatures}));
    model.push_back(draw({kFeatures, kFeatures}));
  }
  model.push_back(draw({kFeatures}));
  return model;
}

at::Tensor energy(const Model& model, const at::Tensor& positions, const at::Tensor& species, const Edges& edges,
                  const Extend& extend) {
  const at::Tensor displacement =
      extend(positions).index_select(0, edges.neighbor) + edges.shift - positions.index_select(0, edges.center);
  const at::Tensor basis = radial_basis(displacement.square().sum(1).sqrt());
  at::Tensor h = model[0].index_select(0, species);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const at::Tensor filter = basis.matmul(model[1 + 2 * layer]);
    const at::Tensor neighbors = extend(h.matmul(model[2 + 2 * layer])).index_select(0, edges.neighbor);
    h = h + at::tanh(at::zeros_like(h).index_add(0, edges.center, filter * neighbors));
  }
  return h.matmul(model.back()).sum();
}

at::Tensor forces(const at::Tensor& energy, const at::Tensor& positions) {
  return -torch::autograd::grad({energy}, {positions}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

}  // namespace potential
