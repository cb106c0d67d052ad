// An external program that uses only the installed headers. It is the ten-line program of the README; its results,
// forward and backward, must equal plain ATen on one device.
#include <dtensor/dtensor.h>
#include <dtensor/rule.h>
#include <torch/library.h>

#include <cstdio>
#include <string>

using namespace dtensor;

namespace {

struct Problem {
  at::Tensor w, x;
};

// Values depend on indices only, so they are equal on every rank.
Problem make_problem() {
  at::Tensor w = at::arange(32 * 48).reshape({32, 48}).mul(0.37).sin().div(6);
  at::Tensor x = at::arange(10 * 32).reshape({10, 32}).mul(0.11).cos();
  return {w, x};
}

at::Tensor loss_of(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y = at::gelu(at::matmul(x, w));
  TORCH_CHECK(y.sizes() == at::IntArrayRef({10, 48}), "expected y of sizes [10, 48], got ", y.sizes());
  return y.square().mean();
}

void check_close(const at::Tensor& ours, const at::Tensor& reference, const char* what) {
  const double worst = (ours - reference).abs().max().item<double>();
  const double scale = reference.abs().max().item<double>();
  TORCH_CHECK(worst <= 1e-5 * scale, what, " differs from the reference by ", worst, "; the largest value is ", scale);
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
  TORCH_CHECK(is_dtensor(w.grad()), "expected a DTensor as gradient, got a regular tensor");
  DTensor g(w.grad());
  TORCH_CHECK(g.mesh() == mesh, "expected the gradient on the mesh of the parameter, got ", g.mesh().str());
  check_close(DTensor(loss).full_tensor().detach(), reference.detach(), "the loss");
  check_close(g.full_tensor(), w0.grad(), "the gradient");
  check_close(g.redistribute({Replicate(), Shard(1)}).full_tensor(), w0.grad(), "the gradient, redistributed");
  if (world.rank() == 0) std::printf("%lld ranks: equal to one device\n", static_cast<long long>(n));
}

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& by) { return x * by.unsqueeze(1); }

// A correct rule offers all valid placements; a wrong rule is detected.
void prove_own_rule() {
  const std::string op = "consumer::scale_rows";
  const std::vector<c10::IValue> call = {at::randn({8, 6}), at::randn({8})};
  RuleBook::get().rule(op, Rule("mn, m -> mn").linear({0}, {1}).no_meta());
  const RuleReport right = verify_rule(op, call, 2, true);
  TORCH_CHECK(right.offered > 0 && right.unsound.empty() && right.missing.empty(), right.unsound, right.missing);
  TORCH_CHECK(verify_rule_on_mesh(op, call, {2, 2}).empty(), "the rule is wrong on a mesh of two dimensions");
  RuleBook::get().rule(op,
                       Rule("mn, k -> mn").no_meta());  // wrong: ignores that rows are scaled by `by`
  TORCH_CHECK(!verify_rule(op, call, 2).unsound.empty(), "the wrong rule was not detected");
}

}  // namespace

TORCH_LIBRARY(consumer, m) { m.def("scale_rows(Tensor x, Tensor by) -> Tensor"); }
TORCH_LIBRARY_IMPL(consumer, CPU, m) { m.impl("scale_rows", scale_rows); }

int main(int argc, char** argv) {
  prove_own_rule();
  return launch(argc, argv, [](Communicator world) { compare(world); });
}
