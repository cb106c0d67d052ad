// mm, mv, dot, bmm, addmm, baddbmm, linear and linear_backward in a BitIdentical scope.
#include "internal/microbatch_sums.h"
#include "ops/local_kernels/bit_identical/tiles.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

using bit_identical::check_values;
using bit_identical::Contracted;
using bit_identical::contracted_of;
using bit_identical::multiply;

// a times b, for matrices or stacks of them, or a vector b.
at::Tensor multiply_stacks(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  if (b.dim() == 1) return multiply(at::atleast_2d(a), b.unsqueeze(1), k).view(a.sizes().slice(0, a.dim() - 1));
  if (a.dim() == 3 && a.size(0) == 0) return at::zeros({0, a.size(1), b.size(2)}, a.options());
  return multiply(a, b, k);
}

// One tensor of a call by its names in the schemas of the operators.
const char* name_of(const LocalArgs& args, std::initializer_list<const char*> names) {
  return *std::find_if(names.begin(), names.end(), [&](const char* name) { return args.has(name); });
}

// beta self + alpha a b, each operation rounded in the dtype of sums.
at::Tensor biased(const LocalArgs& args, at::Tensor product) {
  const auto number = [&](const char* name) { return args.value(name).toScalar(); };
  if (!number("alpha").equal(1)) product = at::mul(product, number("alpha"));
  if (number("beta").equal(0)) return product;
  const auto self = args.tensor("self").to(product.scalar_type());
  return at::add(product, number("beta").equal(1) ? self : at::mul(self, number("beta")));
}

void product(LocalCall& call) {
  const LocalArgs args(call);
  const bool adds = args.has("beta");
  const char* left = adds ? name_of(args, {"mat1", "batch1"}) : "self";
  const auto a = args.tensor(left), b = args.tensor(name_of(args, {"mat2", "batch2", "vec", "tensor"}));
  check_values(call, a);
  const auto k = contracted_of(call.mesh, args.spec(left), args.global_sizes(left), {a.dim() - 1});
  // May be the gradient of a matrix.
  if (a.dim() == 2) note_batch_sum(k.leaves.count, args.global_sizes(left).back(), k.block);
  const auto result = multiply_stacks(a, b, k);
  set_results(call, {(adds ? biased(args, result) : result).to(call.outputs[0]->dtype)});
}

at::Tensor as_rows(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }

at::Tensor as_rows_of(const at::Tensor& t, std::int64_t columns) {
  return t.numel() == 0 ? t.reshape({c10::multiply_integers(t.sizes().slice(0, t.dim() - 1)), columns}) : as_rows(t);
}

std::vector<std::int64_t> with_last(at::IntArrayRef sizes, std::int64_t last) {
  auto all = sizes.vec();
  all.back() = last;
  return all;
}

void linear(LocalCall& call) {
  const LocalArgs args(call);
  const auto x = args.tensor("input"), weight = args.tensor("weight"), bias = args.tensor("bias");
  check_values(call, x);
  const auto k = contracted_of(call.mesh, args.spec("input"), args.global_sizes("input"), {x.dim() - 1});
  auto out = multiply(as_rows_of(x, x.size(-1)), weight.t(), k);
  if (bias.defined()) out = at::add(out, bias.to(out.scalar_type()));
  set_results(call, {out.to(call.outputs[0]->dtype).view(with_last(x.sizes(), weight.size(0)))});
}

at::Tensor gradient_of_input(const LocalCall& call, const LocalArgs& args) {
  const auto grad = args.tensor("grad_output"), weight = args.tensor("weight");
  const auto k = contracted_of(call.mesh, args.spec("grad_output"), args.global_sizes("grad_output"), {grad.dim() - 1});
  const auto rows = multiply(as_rows_of(grad, grad.size(-1)), weight, k);
  return rows.view(with_last(grad.sizes(), weight.size(1)));
}

at::Tensor gradient_of_weight(const LocalCall& call, const LocalArgs& args) {
  const auto grad = args.tensor("grad_output"), x = args.tensor("self");
  const auto k = contracted_of(call.mesh, args.spec("grad_output"), args.global_sizes("grad_output"),
                               bit_identical::first_dims(grad.dim() - 1));
  // Blocks end with each row of several dimensions, so also with a part of the first one.
  const auto last = grad.dim() == 2 ? args.global_sizes("grad_output")[0] : k.block;
  note_batch_sum(k.leaves.count, last, k.block);
  return multiply(as_rows_of(grad, grad.size(-1)).t(), as_rows_of(x, x.size(-1)), k);
}

at::Tensor gradient_of_bias(const LocalCall& call, const LocalArgs& args) {
  const auto grad = args.tensor("grad_output");
  const auto leaves = bit_identical::leaves_of(call.mesh, args.spec("grad_output"), args.global_sizes("grad_output"),
                                               bit_identical::first_dims(grad.dim() - 1), 1);
  note_batch_sum(leaves.count);
  return bit_identical::sum_rows(as_rows_of(grad, grad.size(-1)), leaves);
}

void linear_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto mask = args.value("output_mask").toBoolList();
  check_values(call, args.tensor("grad_output"));
  const auto type = args.tensor("grad_output").scalar_type();
  std::vector<at::Tensor> results(3);
  if (mask[0]) results[0] = gradient_of_input(call, args).to(type);
  if (mask[1]) results[1] = gradient_of_weight(call, args).to(type);
  if (mask[2]) results[2] = gradient_of_bias(call, args).to(type);
  set_results(call, std::move(results));
}

}  // namespace

void add_tiled_product_kernels(LocalKernels& kernels) {
  kernels.emplace("tiled_product", product);
  kernels.emplace("tiled_linear", linear);
  kernels.emplace("tiled_linear_backward", linear_backward);
}

}  // namespace dtensor
