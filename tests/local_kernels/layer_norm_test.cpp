// Layer norm and topk over split dimensions against the ATen operators.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

struct Norm {
  std::vector<std::int64_t> mesh = any_mesh();
  std::vector<std::int64_t> sizes = any_sizes(1, 3, 1);
  std::int64_t ndim = static_cast<std::int64_t>(sizes.size());
  std::int64_t first = pick(0, ndim - 1);  // first normalized dimension
  std::vector<std::int64_t> normalized{sizes.begin() + first, sizes.end()};
  Placements placements = any_shards(mesh, all_dims(ndim));
  at::ScalarType type = any_float();
  at::Tensor input = (at::randn(sizes) * 3 + (flip() ? 3 : 0)).to(type);
  bool affine = flip(), split_affine = flip();
  c10::IValue weight = affine ? c10::IValue(at::randn(normalized).to(type)) : c10::IValue();
  c10::IValue bias = affine ? c10::IValue(at::randn(normalized).to(type)) : c10::IValue();

  // Placements of weight and bias: split like the row if `split`, otherwise Replicate.
  Placements parameter(bool split) const {
    Placements p = placements;
    for (auto& x : p) {
      const bool inner = x.is_shard() && x.dim() >= first;
      x = inner && split ? x.with_dim(x.dim() - first) : Replicate();
    }
    return p;
  }
  Placements parameter_input() const { return affine ? parameter(split_affine) : Placements(); }
  Placements stats() const {
    Placements p = placements;
    for (auto& x : p) {
      if (x.is_shard() && x.dim() >= first) x = Replicate();
    }
    return p;
  }
  // Gradient of weight and bias: split like the row, and Partial if rows are split.
  Placements gradient() const {
    Placements p = parameter(true);
    for (std::size_t a = 0; a < p.size(); ++a) {
      if (placements[a].is_shard() && placements[a].dim() < first) p[a] = Partial();
    }
    return p;
  }
};

RC_GTEST_PROP(LayerNorm, ForwardEqualsAten, ()) {
  const Norm n;
  check_case({"native_layer_norm",
              "",
              "layer_norm_sharded",
              {n.input, n.normalized, n.weight, n.bias, 1e-5},
              {n.placements, n.parameter_input(), n.parameter_input()},
              {n.placements, n.stats(), n.stats()},
              n.mesh});
}

RC_GTEST_PROP(LayerNorm, BackwardEqualsAten, ()) {
  const Norm n;
  const auto input = n.input.to(at::kDouble);  // ATen's rounding error in float would hide errors
  const auto cast = [&](const c10::IValue& v) { return v.isNone() ? v : c10::IValue(v.toTensor().to(input.dtype())); };
  const auto weight = cast(n.weight), bias = cast(n.bias);
  const auto optional = [](const c10::IValue& v) { return v.toOptional<at::Tensor>(); };
  const auto [y, mean, rstd] = at::native_layer_norm(input, n.normalized, optional(weight), optional(bias), 1e-5);
  const std::array<bool, 3> mask{true, n.affine, n.affine};
  std::vector<Placements> outputs{n.placements};
  if (n.affine) outputs.insert(outputs.end(), 2, n.gradient());
  check_case({"native_layer_norm_backward",
              "",
              "layer_norm_backward_sharded",
              {at::randn_like(input), input, n.normalized, mean, rstd, weight, bias,
               c10::List<bool>({mask[0], mask[1], mask[2]})},
              {n.placements, n.placements, n.stats(), n.stats(), n.parameter_input(), n.parameter_input()},
              outputs,
              n.mesh});
}

RC_GTEST_PROP(TopK, ValuesAndIndicesEqualAten, ()) {
  const auto mesh = any_mesh();
  const auto sizes = any_sizes(1, 3, 1);
  const auto ndim = static_cast<std::int64_t>(sizes.size());
  const std::int64_t dim = pick(0, ndim - 1);
  std::int64_t count = 1;
  for (const auto n : sizes) count *= n;
  // Distinct values: ties have no defined order.
  const auto x = at::randperm(count).view(sizes).to(flip() ? at::kLong : at::kFloat);
  const auto placements = any_shards(mesh, all_dims(ndim));
  check_case({"topk",
              "",
              "topk_sharded",
              {x, pick(0, sizes[dim]), flip() ? dim : dim - ndim, flip(), true},
              {placements},
              {replace_dim(placements, dim, Replicate()), replace_dim(placements, dim, Replicate())},
              mesh});
}

}  // namespace
}  // namespace dtensor::testing
