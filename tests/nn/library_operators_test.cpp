// All operators of the library "dtensor": each has a sound rule, and the sizes of a dry run are those of a real run.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "dtensor/dry_run.h"
#include "dtensor/rule.h"
#include "internal/gated_product.h"
#include "moe/row_kernels.h"
#include "parallel/loss/row_kernels.h"
#include "row_norm/kernels.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Args = std::vector<c10::IValue>;
constexpr auto kHalf = at::kBFloat16;
constexpr std::int64_t kIgnored = -100;

at::Tensor floats(const Shape& sizes) { return Draw(3).normal(sizes, at::kFloat); }

// Each entry of 6 tokens with 2 choices has a row of its own, but one has none.
at::Tensor positions() {
  const at::Tensor position = at::arange(12, at::kLong).flip(0).view({6, 2}).contiguous();
  position[0][0] = -1;
  return position;
}

std::map<std::string, Args> row_samples() {
  const at::Tensor x = floats({6, 4}), rows = floats({11, 4}), weight = floats({6, 2}), position = positions();
  return {{"dtensor::permute_rows", {x, position, 11}},
          {"dtensor::unpermute_rows", {rows, position, weight}},
          {"dtensor::add_unpermuted_rows_", {x, rows, position, weight}},
          {"dtensor::unpermute_rows_backward", {x, rows, position, weight}},
          {"dtensor::count_bins", {at::arange(12, at::kLong).remainder(5), 5}},
          {"dtensor::has_grouped_mm", {x}}};
}

std::map<std::string, Args> samples() {
  // The calls make the linker keep the kernels in a static program.
  EXPECT_TRUE(moe::multiplies_groups(floats({1})) && row_norm::has_kernels(floats({1})));
  EXPECT_FALSE(loss_rows::checks_targets_on_device(floats({1})));
  const at::Tensor x = floats({6, 8}), y = floats({6, 8}), half = x.to(kHalf), row = floats({8}), stats = floats({6});
  const at::Tensor targets = at::arange(6, at::kLong);
  std::map<std::string, Args> all = row_samples();
  all.insert(
      {{"dtensor::gated_product", {x, y, "silu"}},
       {"dtensor::gated_product_backward", {x, y, x, "silu"}},
       {"dtensor::norm_rows", {half, row, row, 1e-3, true}},
       {"dtensor::norm_rows_input_gradient", {half, half, stats, stats, row}},
       {"dtensor::norm_rows_parameter_gradients", {half, half, stats, stats}},
       {"dtensor::multiply_leaves", {floats({2, 3, 8}), floats({2, 8, 4}), Shape{4, 1, 3}, Shape{0, 1, 0}}},
       {"dtensor::cross_entropy_largest", {x, 8}},
       {"dtensor::cross_entropy_sums", {x, targets, row, stats, 0, 8, 8, kIgnored, true}},
       {"dtensor::cross_entropy_gradient", {x, targets, row, floats({4, 6}), 0, 8, 8, kIgnored, at::zeros_like(x)}}});
  return all;
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace().value_or("") == "dtensor") names.push_back(name.name);
  }
  return names;
}

TEST(LibraryOperators, EachHasASoundRule) {
  const auto known = samples();
  EXPECT_EQ(operators().size(), known.size());
  for (const std::string& name : operators()) {
    ASSERT_TRUE(known.contains(name)) << name << " has no sample in this test";
    if (name == "dtensor::has_grouped_mm") continue;  // It returns no tensor.
    for (const std::int64_t ranks : {2, 3}) {
      const RuleReport report = verify_rule(name, known.at(name), ranks);
      EXPECT_GT(report.sound, 1) << name << ": only replicated";
      for (const std::string& text : report.unsound) ADD_FAILURE() << name << " on " << ranks << ": " << text;
    }
  }
}

std::string sizes_of(const torch::jit::Stack& values) {
  std::string text;
  for (const c10::IValue& value : values) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor t = value.toTensor();
    text += c10::str(t.sizes(), t.strides(), t.scalar_type(), " ");
  }
  return text;
}

std::string results_of(const std::string& name, const Args& args) {
  torch::jit::Stack stack(args.begin(), args.end());
  c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").callBoxed(stack);
  return sizes_of(stack);
}

// The same operands, of which the floating-point ones have no values in a dry run.
Args enlarged(const Args& args) {
  Args result;
  for (const c10::IValue& value : args) {
    result.push_back(value);
    if (!value.isTensor() || !value.toTensor().is_floating_point()) continue;
    const at::Tensor t = value.toTensor();
    result.back() = at::empty({4096}, t.options()).narrow(0, 0, t.numel()).view(t.sizes()).zero_();
  }
  return result;
}

TEST(LibraryOperators, DryRunsGiveTheSizesOfRealRuns) {
  for (const auto& [name, args] : samples()) {
    const std::string real = results_of(name, enlarged(args));
    dry_run({.ranks = 1}, [&, name = name, args = args](const Communicator&) {
      EXPECT_EQ(results_of(name, enlarged(args)), real) << name;
    });
  }
}

// Compositions have the values of the kernels.
TEST(LibraryOperators, CompositionsOnRowsEqualTheLoops) {
  for (auto& [name, args] : row_samples()) {
    if (name == "dtensor::has_grouped_mm") continue;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    torch::jit::Stack loops(args.begin(), args.end()), composed(args.begin(), args.end());
    if (loops[0].toTensor().is_floating_point()) {
      loops[0] = loops[0].toTensor().clone(), composed[0] = composed[0].toTensor().clone();
    }
    op.callBoxed(loops);
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, composed);
    ASSERT_EQ(loops.size(), composed.size());
    for (std::size_t i = 0; i < loops.size(); ++i) {
      EXPECT_TRUE(at::allclose(composed[i].toTensor(), loops[i].toTensor(), 1e-5, 1e-5)) << name << " " << i;
    }
  }
}

}  // namespace
}  // namespace dtensor::test
