// One float8 product per expert for rows sorted by expert. Collectives do not depend on the rows of a rank: each
// product and its backward reduce the largest magnitude of all rows, also where this rank has none.
#include "moe/experts/float8_experts.h"

#include <ATen/ATen.h>

#include "internal/float8.h"
#include "moe/local_function.h"

namespace dtensor::moe {
namespace {

using nn::float8_product;
using nn::float8_scale;
using nn::kFloat8Gradient;
using nn::kFloat8Operand;
using Rows = std::vector<std::int64_t>;

struct Scaled {
  at::Tensor values, scale;
};

// One scale for the tensor, whose largest magnitude over ranks `over` completes.
Scaled scaled_rows(const at::Tensor& t, at::ScalarType format, const MaxOverRanks& over) {
  const auto most = t.numel() > 0 ? t.abs().amax().to(at::kFloat) : at::zeros({}, t.options().dtype(at::kFloat));
  over(most);
  const auto scale = float8_scale(most, format);
  return {nn::to_float8(t, scale, format), scale};
}

// One scale for each expert of a weight [E, N, K].
Scaled scaled_experts(const at::Tensor& weight, const MaxOverRanks& over) {
  const auto most = weight.abs().amax({1, 2}).to(at::kFloat);
  over(most);
  const auto scale = float8_scale(most, kFloat8Operand);
  return {nn::to_float8(weight, scale.view({-1, 1, 1}), kFloat8Operand), scale};
}

// Kernels of GPUs take multiples of 16 rows: appends zero rows, which contribute nothing to any product.
at::Tensor padded(const at::Tensor& rows) {
  const auto missing = (nn::kFloat8Unit - rows.size(0) % nn::kFloat8Unit) % nn::kFloat8Unit;
  return missing == 0 ? rows : at::cat({rows, at::zeros({missing, rows.size(1)}, rows.options())});
}

at::Tensor transposed(const at::Tensor& t) { return t.t().contiguous(); }

// Calls fn(expert, first row, rows) for each expert with rows.
template <class Fn>
void each_used_expert(at::IntArrayRef rows, const Fn& fn) {
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e] > 0) fn(static_cast<std::int64_t>(e), first, rows[e]);
    first += rows[e];
  }
}

// x[rows of e] * weight[e]^T, or * weight[e].
at::Tensor multiply(const Scaled& x, const Scaled& weight, at::IntArrayRef rows, bool by_transpose,
                    at::ScalarType type) {
  const auto width = weight.values.size(by_transpose ? 1 : 2);
  const auto result = at::zeros({x.values.size(0), width}, x.scale.options().dtype(type));
  each_used_expert(rows, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    const auto of = weight.values.select(0, e);
    const auto y = float8_product(padded(x.values.narrow(0, first, count)), x.scale, by_transpose ? of : transposed(of),
                                  weight.scale.select(0, e), type);
    result.narrow(0, first, count).copy_(y.narrow(0, 0, count));
  });
  return result;
}

// grad[rows of e]^T * x[rows of e]: [E, N, K].
at::Tensor weight_gradient(const Scaled& grad, const Scaled& x, at::IntArrayRef rows, at::ScalarType type) {
  const auto result = at::zeros({static_cast<std::int64_t>(rows.size()), grad.values.size(1), x.values.size(1)},
                                x.scale.options().dtype(type));
  each_used_expert(rows, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    const auto part = [&](const at::Tensor& t) { return transposed(padded(t.narrow(0, first, count))); };
    result.select(0, e).copy_(float8_product(part(grad.values), grad.scale, part(x.values), x.scale, type));
  });
  return result;
}

struct Float8ExpertsBackward final : Node {
  Float8ExpertsBackward(const Scaled& x_, const at::Tensor& w, Rows r, RegatherWeight a, MaxOverRanks o, MaxOverRanks p)
      : x(x_),
        weight(a ? at::Tensor() : w, false),
        type(w.scalar_type()),
        rows(std::move(r)),
        again(std::move(a)),
        over_rows(std::move(o)),
        over_parts(std::move(p)) {}
  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "experts in float8 have no second derivative; close Float8Scope for it");
    const LocalBelowAutogradGuard guard;
    const auto grad = (grads[0].defined() ? grads[0] : input_metadata(0).zeros_like()).contiguous();
    const auto rounded = scaled_rows(grad, kFloat8Gradient, over_rows);
    at::Tensor dx, dw;
    if (task_should_compute_output(0)) {
      const auto matrix = scaled_experts(again ? again() : weight.unpack(), over_parts);
      dx = multiply(rounded, matrix, rows, /*by_transpose=*/false, grad.scalar_type());
    }
    if (task_should_compute_output(1)) dw = weight_gradient(rounded, x, rows, grad.scalar_type()).to(type);
    return {dx, dw};
  }
  void release_variables() override {
    x = {};
    weight.reset_data();
  }
  std::string name() const override { return "Float8ExpertsBackward"; }
  Scaled x;
  SavedVariable weight;
  at::ScalarType type;
  Rows rows;
  RegatherWeight again;
  MaxOverRanks over_rows, over_parts;
};

// Products of one call with several weights share the rounded rows.
struct Products {
  at::IntArrayRef rows;
  const MaxOverRanks &over_rows, &over_parts;

  Scaled round(const at::Tensor& x) const {
    const LocalBelowAutogradGuard guard;
    return scaled_rows(x.detach(), kFloat8Operand, over_rows);
  }
  at::Tensor operator()(const at::Tensor& x, const Scaled& rounded, const at::Tensor& weight,
                        const RegatherWeight& again) const {
    at::Tensor result;
    {
      const LocalBelowAutogradGuard guard;
      result = multiply(rounded, scaled_experts(weight, over_parts), rows, /*by_transpose=*/true, x.scalar_type());
    }
    if (!needs_graph(x, weight)) return result;
    const auto node = make_node<Float8ExpertsBackward>(rounded, weight, rows.vec(), again, over_rows, over_parts);
    return with_node(result, node, x, weight);
  }
};

}  // namespace

MaxOverRanks max_over(std::vector<Communicator> groups) {
  return [groups = std::move(groups)](const at::Tensor& numbers) {
    for (const auto& ranks : groups) {
      if (ranks && ranks.size() > 1) ranks.all_reduce(numbers, ReduceOp::max).wait();
    }
  };
}

bool fits_float8(const at::Tensor& x, const ExpertWeights& w) {
  return w.w1.size(-2) % nn::kFloat8Unit == 0 && w.w1.size(-1) % nn::kFloat8Unit == 0 &&
         x.scalar_type() != at::kDouble && w.w1.scalar_type() != at::kDouble;
}

at::Tensor run_float8_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& w,
                              ExpertActivation activation, const MaxOverRanks& over_rows,
                              const MaxOverRanks& over_parts) {
  TORCH_CHECK(w.w3.defined() == is_gated(activation), "experts: expected w3 for gated activations only, but w3 is ",
              w.w3.defined() ? "given" : "missing");
  const NoMeshScopeGuard regular;
  const Products product{rows, over_rows, over_parts};
  const auto input = product.round(x);
  const auto gate = product(x, input, w.w1, w.regather1);
  const auto up = w.w3.defined() ? product(x, input, w.w3, w.regather3) : at::Tensor();
  const auto h = activate_expert(gate, up, activation);
  return product(h, product.round(h), w.w2, w.regather2);
}

at::Tensor run_float8_expert(const at::Tensor& x, const ExpertWeights& w, ExpertActivation activation,
                             const MaxOverRanks& over_rows) {
  const auto packed = [](const at::Tensor& weight) { return weight.defined() ? weight.unsqueeze(0) : weight; };
  const auto rows = x.reshape({-1, x.size(-1)});
  const ExpertWeights one{packed(w.w1), packed(w.w2), packed(w.w3)};
  return run_float8_experts(rows, {rows.size(0)}, one, activation, over_rows, max_over({})).view(x.sizes());
}

}  // namespace dtensor::moe
