// Sizes and dtypes of results from rules, for operators without a meta kernel in LibTorch.
#include <gtest/gtest.h>

#include "sharding_prop/call_builder.h"

namespace dtensor::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

const MeshRef& mesh() {
  static const MeshRef two = make_mesh({2});
  return two;
}

// Sizes of the results; {-1} for undefined results.
std::vector<Sizes> sizes_of(CallBuilder& call) {
  infer_outputs(call.call());
  std::vector<Sizes> sizes;
  for (const OutputMeta& meta : call.call().outputs) {
    sizes.push_back(meta.defined ? at::IntArrayRef(meta.sizes).vec() : Sizes{-1});
  }
  return sizes;
}

std::string text_of(const Decision& d) {
  std::string text;
  for (const OutputDecision& output : d.outputs) text += output.mesh ? to_string(output.placements) : "-";
  return text;
}

// Number of rows and size of the states. An LSTM cell has four gates; a GRU cell has three and saves 5 * kState values
// per row.
constexpr std::int64_t kRows = 6, kState = 5;

TEST(Results, LstmCellHasSizesOfStatesAndGates) {
  CallBuilder cell("aten::_thnn_fused_lstm_cell", mesh());
  cell.tensor({kRows, 4 * kState}, "[S(0)]").tensor({kRows, 4 * kState}, "[S(0)]").tensor({kRows, kState}, "[S(0)]");
  cell.tensor({4 * kState}, "[R]").tensor({4 * kState}, "[R]");
  EXPECT_EQ(sizes_of(cell), (std::vector<Sizes>{{kRows, kState}, {kRows, kState}, {kRows, 4 * kState}}));
  EXPECT_EQ(text_of(propagate(cell.call())), "[S(0)][S(0)][S(0)]");
  for (const bool has_bias : {true, false}) {
    CallBuilder backward("aten::_thnn_fused_lstm_cell_backward_impl", mesh());
    for (int i = 0; i < 4; ++i) backward.tensor({kRows, kState}, "[S(0)]");
    backward.tensor({kRows, 4 * kState}, "[S(0)]").value(has_bias);
    EXPECT_EQ(sizes_of(backward),
              (std::vector<Sizes>{{kRows, 4 * kState}, {kRows, kState}, {has_bias ? 4 * kState : -1}}));
    EXPECT_EQ(text_of(propagate(backward.call())), has_bias ? "[S(0)][S(0)][P(sum)]" : "[S(0)][S(0)]-");
  }
}

TEST(Results, GruCellHasSizesOfStatesAndGates) {
  CallBuilder cell("aten::_thnn_fused_gru_cell", mesh());
  cell.tensor({kRows, 3 * kState}, "[S(0)]").tensor({kRows, 3 * kState}, "[S(0)]").tensor({kRows, kState}, "[S(0)]");
  cell.none_tensor().none_tensor();
  EXPECT_EQ(sizes_of(cell), (std::vector<Sizes>{{kRows, kState}, {kRows, 5 * kState}}));
  EXPECT_EQ(text_of(propagate(cell.call())), "[S(0)][S(0)]");
  for (const bool has_bias : {true, false}) {
    CallBuilder backward("aten::_thnn_fused_gru_cell_backward", mesh());
    backward.tensor({kRows, kState}, "[S(0)]").tensor({kRows, 5 * kState}, "[S(0)]").value(has_bias);
    const Sizes gates{kRows, 3 * kState}, bias{has_bias ? 3 * kState : -1};
    EXPECT_EQ(sizes_of(backward), (std::vector<Sizes>{gates, gates, {kRows, kState}, bias, bias}));
    EXPECT_EQ(text_of(propagate(backward.call())),
              has_bias ? "[S(0)][S(0)][S(0)][P(sum)][P(sum)]" : "[S(0)][S(0)][S(0)]--");
  }
}

TEST(Results, MatrixKernelsHaveSizesAndDtypesOfOneDevice) {
  CallBuilder real("aten::_linalg_eigvals", mesh()), complex("aten::_linalg_eigvals", mesh());
  real.tensor({3, 4, 4}, "[S(0)]", at::kDouble);
  complex.tensor({3, 4, 4}, "[S(0)]", at::kComplexFloat);
  EXPECT_EQ(sizes_of(real), (std::vector<Sizes>{{3, 4}}));
  EXPECT_EQ(sizes_of(complex), (std::vector<Sizes>{{3, 4}}));
  EXPECT_EQ(real.call().outputs[0].dtype, at::kComplexDouble);
  EXPECT_EQ(complex.call().outputs[0].dtype, at::kComplexFloat);
  CallBuilder solve("aten::_cholesky_solve_helper", mesh());
  solve.tensor({3, 4, 2}, "[S(0)]").tensor({3, 4, 4}, "[S(0)]").value(false);
  EXPECT_EQ(sizes_of(solve), (std::vector<Sizes>{{3, 4, 2}}));
  CallBuilder combine("aten::_compute_linear_combination", mesh());
  combine.tensor({5, 3, 2}, "[S(1)]").tensor({7, 5}, "[R]");
  EXPECT_EQ(sizes_of(combine), (std::vector<Sizes>{{7, 3, 2}}));
  EXPECT_EQ(text_of(propagate(combine.call())), "[S(1)]");
}

TEST(Results, ProductsHaveTheRequestedDtype) {
  CallBuilder product("aten::_int_mm", mesh());
  product.tensor({8, 16}, "[S(0)]", at::kChar).tensor({16, 24}, "[R]", at::kChar);
  sizes_of(product);
  EXPECT_EQ(product.call().outputs[0].dtype, at::kInt);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    CallBuilder scaled("aten::_scaled_mm", mesh());
    scaled.tensor({16, 32}, "[S(0)]", at::kFloat8_e4m3fn).tensor({32, 8}, "[R]", at::kFloat8_e4m3fn);
    scaled.tensor(Sizes{}, "[R]").tensor(Sizes{}, "[R]").none_tensor().none_tensor();
    scaled.value(static_cast<std::int64_t>(dtype));
    EXPECT_EQ(sizes_of(scaled), (std::vector<Sizes>{{16, 8}}));
    EXPECT_EQ(scaled.call().outputs[0].dtype, dtype);
  }
}

}  // namespace
}  // namespace dtensor::testing
