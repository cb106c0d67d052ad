// All families of rules against the oracle, which runs the regular operator on slices, rank by rank. Each offered
// strategy, and each decision for random placements, gives the results of one device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "sharding_prop/call_builder.h"
#include "verify/oracle.h"

namespace dtensor::testing {
namespace {

using Args = std::vector<c10::IValue>;
using Ints = std::vector<std::int64_t>;

at::Tensor real(at::IntArrayRef sizes) {
  static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(11);
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble));
}

at::Tensor index(at::IntArrayRef sizes, std::int64_t end) {
  static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(12);
  return at::randint(end, sizes, generator, at::TensorOptions(at::kLong));
}

struct Case {
  const char* op;
  Args args;
};

// Absent trailing arguments take their defaults.
Sample sample_of(const Case& c) {
  Sample sample{find_op(c.op), c.args};
  const auto& arguments = sample.op.schema().arguments();
  while (sample.args.size() < arguments.size()) sample.args.push_back(*arguments[sample.args.size()].default_value());
  return sample;
}

const std::vector<std::int64_t>& mesh_of(int i) {
  static const std::vector<std::vector<std::int64_t>> meshes{{2}, {3}, {2, 2}, {2, 3}};
  return meshes[static_cast<std::size_t>(i) % meshes.size()];
}

Placement draw(const at::Tensor& tensor, std::mt19937& random) {
  const auto pick = static_cast<std::int64_t>(random() % static_cast<unsigned>(tensor.dim() + 2));
  if (pick < tensor.dim()) return Shard(pick);
  if (pick == tensor.dim() || !tensor.is_floating_point()) return Replicate();
  return Partial(random() % 4 == 0 ? ReduceOp::avg : ReduceOp::sum);
}

std::vector<Placements> draw_all(const Sample& sample, at::IntArrayRef mesh, std::mt19937& random) {
  std::vector<Placements> placements;
  for (const at::Tensor& tensor : sample_operands(sample)) {
    placements.emplace_back();
    for (std::size_t a = 0; tensor.defined() && a < mesh.size(); ++a) placements.back().push_back(draw(tensor, random));
  }
  return placements;
}

void expect_sound(const Case& c) {
  const Sample sample = sample_of(c);
  for (const std::int64_t ranks : {2, 3}) {
    for (const Verdict& v : verify_all_strategies(sample, ranks)) {
      EXPECT_NE(v.kind, Verdict::Kind::unsound) << c.op << " on " << ranks << ": " << v.text;
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 12; ++i) {
    const auto placements = draw_all(sample, mesh_of(i), random);
    const Verdict v = verify_decision(sample, mesh_of(i), placements);
    EXPECT_NE(v.kind, Verdict::Kind::unsound) << c.op << " on " << at::IntArrayRef(mesh_of(i)) << ": " << v.text;
  }
}

void expect_all_sound(const std::vector<Case>& cases) {
  for (const Case& c : cases) expect_sound(c);
}

TEST(Oracle, PointwiseRulesAreSound) {
  const at::Tensor x = real({5, 4}), y = real({5, 4}), row = real({4}), column = real({5, 1}), one = real({1, 1});
  expect_all_sound({{"aten::add.Tensor", {x, y, 2.0}},
                    {"aten::add.Tensor", {x, row}},
                    {"aten::sub.Tensor", {column, row}},
                    {"aten::mul.Tensor", {x, column}},
                    {"aten::mul.Tensor", {x, one}},
                    {"aten::div.Tensor", {x, y}},
                    {"aten::gelu", {x}},
                    {"aten::gelu_backward", {x, y}},
                    {"aten::where.self", {x.gt(0), x, row}},
                    {"aten::addcmul", {x, y, row}},
                    {"aten::lerp.Scalar", {x, y, 0.3}},
                    {"aten::clamp", {x, -0.5, 0.5}},
                    {"aten::maximum", {x, y}},
                    {"aten::logical_and", {x.gt(0), y.gt(0)}},
                    {"aten::_to_copy", {x, static_cast<std::int64_t>(at::kFloat)}},
                    {"aten::_to_copy", {x, static_cast<std::int64_t>(at::kLong)}},
                    {"aten::masked_fill.Scalar", {x, y.gt(0), 1.5}},
                    {"aten::add_.Tensor", {x, row}},
                    {"aten::mul_.Tensor", {x, column}},
                    {"aten::copy_", {x, row}},
                    {"aten::clone", {x.t()}}});
}

TEST(Oracle, ProductRulesAreSound) {
  const at::Tensor a = real({5, 4}), b = real({4, 6}), ba = real({3, 5, 4}), bb = real({3, 4, 2});
  expect_all_sound({{"aten::mm", {a, b}},
                    {"aten::addmm", {real({6}), a, b, 2.0, 3.0}},
                    {"aten::addmm", {real({5, 1}), a, b}},
                    {"aten::bmm", {ba, bb}},
                    {"aten::baddbmm", {real({5, 2}), ba, bb}},
                    {"aten::addbmm", {real({5, 2}), ba, bb}},
                    {"aten::mv", {a, real({4})}},
                    {"aten::addmv", {real({5}), a, real({4})}},
                    {"aten::addmv", {real({1}), a, real({4})}},
                    {"aten::dot", {real({7}), real({7})}},
                    {"aten::addr", {real({5, 4}), real({5}), real({4})}},
                    {"aten::mm", {real({5, 0}), real({0, 4})}},
                    {"aten::addmm", {real({4}), real({3, 0}), real({0, 4})}}});
}

TEST(Oracle, ReductionRulesAreSound) {
  const at::Tensor x = real({5, 4, 3});
  expect_all_sound({{"aten::sum.dim_IntList", {x, Ints{0, 2}, true}},
                    {"aten::sum", {x}},
                    {"aten::mean.dim", {x, Ints{1}}},
                    {"aten::prod.dim_int", {x, 1}},
                    {"aten::amax", {x, Ints{0}}},
                    {"aten::any.dim", {x.gt(1), 2}},
                    {"aten::all", {x.gt(-3)}},
                    {"aten::max.dim", {x, 1}},
                    {"aten::argmax", {x, 0}},
                    {"aten::var.correction", {x, Ints{1}}},
                    {"aten::linalg_vector_norm", {x, 2.0, Ints{1}}},
                    {"aten::cumsum", {x, 1}},
                    {"aten::sort", {x, 2}},
                    {"aten::topk", {x, 2, 1}},
                    {"aten::logsumexp", {x, Ints{1}}},
                    {"aten::sum.dim_IntList", {real({0, 4}), Ints{0}}},
                    {"aten::sum", {real({})}}});
}

TEST(Oracle, ViewRulesAreSound) {
  const at::Tensor x = real({4, 6, 2});
  expect_all_sound({{"aten::view", {x, Ints{24, 2}}},
                    {"aten::view", {x, Ints{4, 12}}},
                    {"aten::view", {x, Ints{2, 2, 3, 4}}},
                    {"aten::view", {x, Ints{8, 6}}},
                    {"aten::_unsafe_view", {x, Ints{-1}}},
                    {"aten::permute", {x, Ints{2, 0, 1}}},
                    {"aten::transpose.int", {x, 0, -1}},
                    {"aten::t", {real({5, 3})}},
                    {"aten::expand", {real({5, 1, 3}), Ints{2, 5, 4, 3}}},
                    {"aten::squeeze", {real({1, 4, 1, 2})}},
                    {"aten::squeeze.dims", {real({1, 4, 1, 2}), Ints{0, 1}}},
                    {"aten::unsqueeze", {x, -1}},
                    {"aten::select.int", {x, 1, -1}},
                    {"aten::slice.Tensor", {x, 1, 1, 6, 2}},
                    {"aten::slice.Tensor", {x, 1}},
                    {"aten::split.Tensor", {x, 4, 1}},
                    {"aten::split_with_sizes", {x, Ints{2, 4}, 1}},
                    {"aten::unbind.int", {x, 2}},
                    {"aten::diagonal", {x, 1, 0, 1}},
                    {"aten::unfold", {x, 1, 3, 2}},
                    {"aten::alias", {x}},
                    {"aten::detach", {x}},
                    {"aten::view_as_real", {at::view_as_complex(real({5, 3, 2}))}}});
}

TEST(Oracle, AssemblyAndIndexingRulesAreSound) {
  const at::Tensor x = real({5, 4}), i = index({3, 4}, 5), along = index({3}, 5);
  const c10::List<std::optional<at::Tensor>> rows({along});
  expect_all_sound({{"aten::cat", {std::vector<at::Tensor>{x, real({2, 4})}, 0}},
                    {"aten::cat", {std::vector<at::Tensor>{x, real({0}), x}, 1}},
                    {"aten::stack", {std::vector<at::Tensor>{x, x}, 1}},
                    {"aten::slice_backward", {real({2, 4}), Ints{5, 4}, 0, 1, 3, 1}},
                    {"aten::select_backward", {real({4}), Ints{5, 4}, 0, 2}},
                    {"aten::tril", {x}},
                    {"aten::flip", {x, Ints{1}}},
                    {"aten::roll", {x, Ints{1}, Ints{0}}},
                    {"aten::repeat", {x, Ints{2, 1, 3}}},
                    {"aten::constant_pad_nd", {x, Ints{1, 2}}},
                    {"aten::gather", {x, 0, i}},
                    {"aten::scatter.src", {x, 0, at::arange(4).expand({1, 4}).contiguous(), real({1, 4})}},
                    {"aten::scatter_add", {x, 0, i, real({3, 4})}},
                    {"aten::index_select", {x, 0, along}},
                    {"aten::index_add", {x, 0, along, real({3, 4})}},
                    {"aten::index.Tensor", {x, rows}},
                    {"aten::index_put", {x, rows, real({3, 4}), true}},
                    {"aten::index_put", {x, rows, real({1, 4}), false}},
                    {"aten::embedding", {x, index({2, 3}, 5)}},
                    {"aten::embedding_dense_backward", {real({2, 3, 4}), index({2, 3}, 5), 5, -1, false}}});
}

// Kernels without a meta kernel in LibTorch, in the dtypes in which they differ.
TEST(Oracle, MatrixAndRoundingRulesAreSound) {
  const at::Tensor matrices = real({3, 4, 4}), square = real({4, 4}), full = index({2, 3, 4, 4}, 9).sub(4);
  const at::Tensor positive = at::bmm(matrices, matrices.mT()) + 4 * at::eye(4, at::kDouble), bytes = full.abs();
  const at::Tensor rows = real({12, 32}).to(at::kFloat8_e4m3fn), columns = real({8, 32}).to(at::kFloat8_e4m3fn).t();
  const at::Tensor row_scales = real({12, 1}).abs().to(at::kFloat), scales = real({1, 8}).abs().to(at::kFloat);
  const c10::IValue none, bf16 = static_cast<std::int64_t>(at::kBFloat16);
  expect_all_sound(
      {{"aten::_linalg_eigvals", {matrices}},
       {"aten::_cholesky_solve_helper", {real({3, 4, 2}), at::linalg_cholesky(positive), false}},
       {"aten::_compute_linear_combination", {real({4, 3, 2}), square}},
       {"aten::_compute_linear_combination", {real({4, 3, 2}), real({5, 4})}},
       {"aten::_int_mm", {index({8, 16}, 9).to(at::kChar), index({16, 24}, 9).to(at::kChar)}},
       {"aten::_scaled_mm", {rows, columns, row_scales, scales, none, none, bf16}},
       {"aten::fake_quantize_per_tensor_affine_cachemask", {real({5, 4}).to(at::kFloat).t(), 0.1, 0, -8, 7}},
       {"aten::avg_pool2d", {full, Ints{2, 2}}},
       {"aten::avg_pool2d_backward", {full, full, Ints{1, 1}, Ints{1, 1}, Ints{0, 0}, false, true, 2}},
       {"aten::avg_pool3d", {full, Ints{2, 2, 2}}},
       {"aten::upsample_bilinear2d", {(bytes * 25).to(at::kByte), Ints{3, 3}, false}},
       {"aten::upsample_nearest2d", {(bytes * 25).to(at::kByte), Ints{3, 3}}}});
}

TEST(Oracle, LossNormAndAttentionRulesAreSound) {
  const at::Tensor x = real({5, 4, 6}), w = real({6}), q = real({2, 4, 6, 8}), k = real({2, 4, 5, 8});
  const auto norm = at::native_layer_norm(x, {6}, w, w, 1e-5);
  const auto flash = at::_scaled_dot_product_flash_attention_for_cpu(q, k, k);
  const at::Tensor total = at::scalar_tensor(5.0, at::kDouble);
  expect_all_sound(
      {{"aten::_softmax", {x, 1, false}},
       {"aten::_log_softmax", {x, 2, false}},
       {"aten::_log_softmax_backward_data", {x, x.softmax(2).log(), 2, static_cast<std::int64_t>(at::kDouble)}},
       {"aten::mse_loss", {x, real({5, 4, 6}), 2}},
       {"aten::mse_loss", {x, real({5, 4, 6}), 0}},
       {"aten::mse_loss_backward", {real({5, 4, 6}), x, real({5, 4, 6}), 0}},
       {"aten::nll_loss_forward", {real({5, 6}), index({5}, 6), c10::IValue(), 1, -100}},
       {"aten::nll_loss_backward", {real({}), real({5, 6}), index({5}, 6), c10::IValue(), 1, -100, total}},
       {"aten::native_layer_norm", {x, Ints{6}, w, w, 1e-5}},
       {"aten::native_layer_norm_backward",
        {real({5, 4, 6}), x, Ints{6}, std::get<1>(norm), std::get<2>(norm), w, w, c10::List<bool>({true, true, true})}},
       {"aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, k}},
       {"aten::_scaled_dot_product_flash_attention_for_cpu", {q, q, q, 0.0, true}},
       {"aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, k, 0.0, false, real({6, 5})}},
       {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        {real({2, 4, 6, 8}), q, k, k, std::get<0>(flash), std::get<1>(flash), 0.0, false}}});
}

TEST(Oracle, ListAndOptimizerRulesAreSound) {
  const std::vector<at::Tensor> p{real({5, 4}), real({3})}, g{real({5, 4}), real({3})}, m{real({5, 4}), real({3})};
  const std::vector<at::Tensor> v{real({5, 4}).abs(), real({3}).abs()}, none;
  const std::vector<at::Tensor> steps{at::scalar_tensor(3.0), at::scalar_tensor(3.0)};
  expect_all_sound({{"aten::_foreach_add.List", {p, g, 2.0}},
                    {"aten::_foreach_add_.List", {p, g, 2.0}},
                    {"aten::_foreach_mul_.Scalar", {p, 0.5}},
                    {"aten::_foreach_mul.Tensor", {p, at::scalar_tensor(2.0, at::kDouble)}},
                    {"aten::_foreach_addcdiv_.Scalar", {p, g, v, 0.1}},
                    {"aten::_foreach_lerp_.Scalar", {p, g, 0.1}},
                    {"aten::_foreach_sqrt", {v}},
                    {"aten::_foreach_norm.Scalar", {p}},
                    {"aten::_foreach_zero_", {p}},
                    {"aten::_foreach_copy_", {p, g}},
                    {"aten::_fused_adamw_", {p, g, m, v, none, steps, 0.1, 0.9, 0.99, 0.1, 1e-8, false, false}},
                    {"aten::_fused_sgd_", {p, g, m, 0.1, 0.9, 0.1, 0.0, false, false, false}}});
}

TEST(Oracle, FindsAWrongRule) {
  RuleBook::get().rule("aten::special_bessel_j1", "ab -> ~");  // Wrongly says that each rank has the full result.
  bool found = false;
  for (const Verdict& v : verify_all_strategies(sample_of({"aten::special_bessel_j1", {real({4, 4})}}), 2)) {
    found |= v.kind == Verdict::Kind::unsound;
  }
  EXPECT_TRUE(found);
}

// Over random sizes: a view is right or redistributes, but never has wrong placements.
TEST(Oracle, RandomViewsHaveNoWrongPlacements) {
  std::mt19937 random(3);
  const std::vector<Ints> shapes{{12, 8}, {16, 6}, {96},       {2, 48},    {4, 24},   {3, 32},      {8, 12}, {6, 16},
                                 {1, 96}, {96, 1}, {4, 2, 12}, {2, 2, 24}, {3, 4, 8}, {2, 3, 4, 4}, {5, 6},  {30}};
  const auto numel = [](const Ints& s) { return c10::multiply_integers(s); };
  for (const Ints& from : shapes) {
    for (const Ints& to : shapes) {
      if (numel(from) != numel(to)) continue;
      const Sample sample = sample_of({"aten::view", {real(from), to}});
      for (int i = 0; i < 6; ++i) {
        const auto placements = draw_all(sample, mesh_of(i), random);
        const Verdict v = verify_decision(sample, mesh_of(i), placements);
        EXPECT_NE(v.kind, Verdict::Kind::unsound) << at::IntArrayRef(from) << " to " << at::IntArrayRef(to) << " "
                                                  << to_string(placements[0]) << ": " << v.text;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::testing
