#include "training.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "dtensor/events.h"
#include "dtensor/tensor.h"

namespace unet {
namespace {

// A sum of waves, and the same with noise.
std::pair<at::Tensor, at::Tensor> random_volumes(const std::vector<std::int64_t>& sizes) {
  at::Tensor clean = at::zeros({1, 1, sizes[0], sizes[1], sizes[2]}, at::kDouble);
  for (std::int64_t d = 0; d < 3; ++d) {
    std::vector<std::int64_t> along(5, 1);
    along[static_cast<std::size_t>(2 + d)] = -1;
    clean += at::arange(sizes[static_cast<std::size_t>(d)], at::kDouble)
                 .mul(0.7 + 0.2 * static_cast<double>(d))
                 .sin()
                 .view(along);
  }
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return {clean, clean + at::empty_like(clean).normal_(0, 0.5, generator)};
}

at::Tensor full(const at::Tensor& t) { return dtensor::is_dtensor(t) ? dtensor::DTensor(t).full_tensor() : t; }

}  // namespace

Training::Training(const Options& options) : rate_(options.rate), parameters_(random_parameters(options.channels, 1)) {
  std::tie(clean_, noisy_) = random_volumes(options.sizes);
  for (auto& p : parameters_) p.requires_grad_();
}

Training::Training(const Options& options, const dtensor::DeviceMesh& mesh) : Training(options) {
  dtensor::Placements placements;
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) placements.push_back(dtensor::Shard(2 + axis));
  for (auto* volume : {&clean_, &noisy_}) *volume = dtensor::distribute_tensor(*volume, mesh, placements);
  const dtensor::Placements replicated(static_cast<std::size_t>(mesh.ndim()));
  for (auto& p : parameters_) p = at::Tensor(dtensor::distribute_tensor(p.detach(), mesh, replicated)).requires_grad_();
}

double Training::step() {
  forward_bytes_ = backward_bytes_ = 0;
  const dtensor::EventListener listener(
      [&](const dtensor::Event& e) {
        (e.phase == dtensor::Phase::forward ? forward_bytes_ : backward_bytes_) += e.bytes;
      },
      {dtensor::Event::Kind::collective});
  const at::Tensor loss = at::mse_loss(forward(parameters_, noisy_), clean_);
  loss.backward();
  const at::NoGradGuard no_grad;
  for (auto& p : parameters_) {
    p.sub_(p.grad(), rate_);
    p.mutable_grad() = at::Tensor();
  }
  return full(loss.detach()).item<double>();
}

double largest_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (full(a[i].detach()) - full(b[i].detach())).abs().max().item<double>());
  }
  return largest;
}

}  // namespace unet
