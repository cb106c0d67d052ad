// A stranger's program: knows <dtensor/dtensor.h> and nothing else. The ten-line program of the README, whose numbers,
// forward and backward, must be those of plain ATen on one device.
#include <dtensor/dtensor.h>

#include <cstdio>
#include <string>

using namespace dtensor;

namespace {

struct Problem {
  at::Tensor w, x;
};

// The same on every rank: the values come from indices.
Problem make_problem() {
  at::Tensor w = at::arange(32 * 48).reshape({32, 48}).mul(0.37).sin().div(6);
  at::Tensor x = at::arange(10 * 32).reshape({10, 32}).mul(0.11).cos();
  return {w, x};
}

at::Tensor loss_of(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y = at::gelu(at::matmul(x, w));
  TORCH_CHECK(y.sizes() == at::IntArrayRef({10, 48}), "y has the sizes ", y.sizes());
  return y.square().mean();
}

void check_close(const at::Tensor& ours, const at::Tensor& reference, const char* what) {
  const double worst = (ours - reference).abs().max().item<double>();
  const double scale = reference.abs().max().item<double>();
  TORCH_CHECK(worst <= 1e-5 * scale, what, " differs by ", worst, " of ", scale);
}

void compare(const Communicator& world) {
  const std::int64_t n = world.size();
  const std::int64_t tp = n % 2 == 0 ? 2 : 1;
  DeviceMesh mesh = init_device_mesh(world, at::kCPU, {n / tp, tp}, {"dp", "tp"});
  Problem problem = make_problem();
  at::Tensor w0 = problem.w.clone().requires_grad_();
  at::Tensor reference = loss_of(problem.x, w0);
  reference.backward();

  at::Tensor w = distribute_tensor(problem.w, mesh, {Replicate(), Shard(1)}).requires_grad_();
  at::Tensor x = distribute_tensor(problem.x, mesh, {Shard(0), Replicate()});
  at::Tensor loss = loss_of(x, w);
  loss.backward();
  TORCH_CHECK(is_dtensor(w.grad()), "the gradient is a plain tensor");
  DTensor g(w.grad());
  TORCH_CHECK(g.mesh() == mesh, "the gradient lives on ", g.mesh().str());
  check_close(DTensor(loss).full_tensor().detach(), reference.detach(), "the loss");
  check_close(g.full_tensor(), w0.grad(), "the gradient");
  check_close(g.redistribute({Replicate(), Shard(1)}).full_tensor(), w0.grad(), "the gradient, redistributed");
  if (world.rank() == 0) std::printf("%lld ranks: the numbers of one device\n", static_cast<long long>(n));
}

}  // namespace

int main(int argc, char** argv) {
  return launch(argc, argv, [](Communicator world) { compare(world); });
}
