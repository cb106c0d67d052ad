// Decisions of the propagation for calls whose best strategy is known.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "sharding_prop/call_builder.h"

namespace dtensor::testing {
namespace {

using Ints = std::vector<std::int64_t>;

const MeshRef& one() {
  static const MeshRef mesh = make_mesh({2});
  return mesh;
}

const MeshRef& two() {
  static const MeshRef mesh = make_mesh({2, 2});
  return mesh;
}

std::string mm(const std::string& a, const std::string& b) {
  return CallBuilder("aten::mm", one()).tensor({64, 128}, a).tensor({128, 32}, b).text();
}

TEST(Propagate, ProductsKeepPlacementsWithoutCommunication) {
  EXPECT_EQ(mm("[R]", "[R]"), "[R], [R] -> [R]");
  EXPECT_EQ(mm("[S(0)]", "[R]"), "[S(0)], [R] -> [S(0)]");
  EXPECT_EQ(mm("[R]", "[S(1)]"), "[R], [S(1)] -> [S(1)]");
  EXPECT_EQ(mm("[S(1)]", "[S(0)]"), "[S(1)], [S(0)] -> [P(sum)]");
  EXPECT_EQ(mm("[R]", "[S(0)]"), "[S(1)], [S(0)] -> [P(sum)]");
  EXPECT_EQ(mm("[P(sum)]", "[R]"), "[P(sum)], [R] -> [P(sum)]");
  EXPECT_EQ(mm("[P(avg)]", "[R]"), "[P(avg)], [R] -> [P(avg)]");
  EXPECT_EQ(mm("[P(max)]", "[R]"), "[R], [R] -> [R]");
  EXPECT_EQ(mm("[P(sum)]", "[P(sum)]"), "[P(sum)], [R] -> [P(sum)]");  // One of them is reduced.
}

TEST(Propagate, StorageShardIsGatheredInsteadOfExchanged) {
  EXPECT_EQ(mm("[S(0)]", "[S(0)*]"), "[S(0)], [R] -> [S(0)]");
  EXPECT_EQ(mm("[R]", "[S(1)*]"), "[R], [R] -> [R]");
}

TEST(Propagate, BiasIsAddedOnce) {
  const auto text = [](const char* bias) {
    return CallBuilder("aten::addmm", one())
        .tensor({32}, bias)
        .tensor({64, 128}, "[S(1)]")
        .tensor({128, 32}, "[S(0)]")
        .text();
  };
  EXPECT_EQ(text("[R]"), "[P(sum)], [S(1)], [S(0)] -> [P(sum)]");
  EXPECT_EQ(text("[P(sum)]"), "[P(sum)], [S(1)], [S(0)] -> [P(sum)]");
}

TEST(Propagate, PartialMeetsReplicate) {
  const auto add = [](const char* a, const char* b) {
    return CallBuilder("aten::add.Tensor", one()).tensor({8, 4}, a).tensor({8, 4}, b).text();
  };
  EXPECT_EQ(add("[P(sum)]", "[P(sum)]"), "[P(sum)], [P(sum)] -> [P(sum)]");
  EXPECT_EQ(add("[P(sum)]", "[R]"), "[R], [R] -> [R]");
  EXPECT_EQ(add("[P(sum)]", "[S(0)]"), "[S(0)], [S(0)] -> [S(0)]");
  EXPECT_EQ(add("[P(sum)]", "[P(max)]"), "[R], [R] -> [R]");
}

TEST(Propagate, InPlaceKeepsThePlacementsOfItsOperand) {
  const auto add_ = [](const char* a, const char* b) {
    return CallBuilder("aten::add_.Tensor", one()).tensor({8, 4}, a).tensor({8, 4}, b).text();
  };
  EXPECT_EQ(add_("[R]", "[S(0)]"), "[R], [R] -> [R]");
  EXPECT_EQ(add_("[S(0)]", "[R]"), "[S(0)], [S(0)] -> [S(0)]");
  EXPECT_EQ(add_("[S(0)*]", "[R]"), "[S(0)*], [S(0)] -> [S(0)*]");
  EXPECT_EQ(add_("[P(sum)]", "[R]"), "[R], [R] -> [R]");
  EXPECT_EQ(CallBuilder("aten::mul_.Tensor", one()).tensor({8, 4}, "[R]").tensor({8, 4}, "[P(sum)]").text(),
            "[R], [R] -> [R]");
}

TEST(Propagate, OutKeepsItsPlacements) {
  const auto out = [](const char* to) {
    return CallBuilder("aten::add.out", one())
        .tensor({8, 4}, "[R]")
        .tensor({8, 4}, "[R]")
        .value(1)
        .tensor({8, 4}, to)
        .text();
  };
  EXPECT_EQ(out("[R]"), "[R], [R], [R] -> [R]");
  EXPECT_EQ(out("[S(0)]"), "[S(0)], [S(0)], [S(0)] -> [S(0)]");
  EXPECT_EQ(out("[P(sum)]"), "[R], [R], [R] -> [R]");
}

TEST(Propagate, ReductionsOfShardsArePartial) {
  const auto sum = [](const char* a) {
    return CallBuilder("aten::sum.dim_IntList", two()).tensor({8, 4}, a).value(std::vector<std::int64_t>{1}).text();
  };
  EXPECT_EQ(sum("[S(0), S(1)]"), "[S(0), S(1)] -> [S(0), P(sum)]");
  EXPECT_EQ(sum("[P(sum), S(1)]"), "[P(sum), S(1)] -> [P(sum), P(sum)]");
  const auto amax = [](std::int64_t n) { return CallBuilder("aten::amax", one()).tensor({n}, "[S(0)]").text(); };
  EXPECT_EQ(amax(4), "[S(0)] -> [P(max)]");
  EXPECT_EQ(amax(1), "[S(0)] -> [P(max)]");  // A rank without elements gives the identity in a local kernel.
}

TEST(Propagate, MeanRunsAKernelOverUnevenShards) {
  const Decision d = CallBuilder("aten::mean", two()).tensor({5, 3}, "[S(0), R]").decide();
  EXPECT_EQ(d.local_kernel, "mean_global_count");
  EXPECT_EQ(d.local_kernel_axes, 1u);
  EXPECT_EQ(to_string(d.outputs[0].placements), "[P(sum), R]");
  EXPECT_EQ(CallBuilder("aten::mean", two()).tensor({5, 3}, "[R, R]").decide().local_kernel, "");
}

std::string view(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to, const std::string& p,
                 const MeshRef& mesh) {
  return CallBuilder("aten::view", mesh).tensor(from, p).value(to).text();
}

TEST(Propagate, ViewsSplitAndMergeShardedDimensions) {
  EXPECT_EQ(view({4, 6, 5}, {24, 5}, "[S(0)]", one()), "[S(0)] -> [S(0)]");
  EXPECT_EQ(view({4, 6, 5}, {24, 5}, "[S(1)]", one()), "[S(1)] -> [SS(0, 4)]");
  EXPECT_EQ(view({24, 5}, {4, 6, 5}, "[SS(0, 4)]", one()), "[SS(0, 4)] -> [S(1)]");
  EXPECT_EQ(view({24, 5}, {4, 6, 5}, "[S(0)]", one()), "[S(0)] -> [S(0)]");
  EXPECT_EQ(view({5, 7}, {35}, "[S(0)]", one()), "[S(1)] -> [SS(0, 5)]");  // Rows 3, 2 are not chunks of 35.
  EXPECT_EQ(view({12, 8}, {16, 6}, "[S(0)]", one()), "[S(0)] -> [S(0)]");
  EXPECT_EQ(view({12, 8}, {16, 6}, "[S(1)]", one()), "[S(0)] -> [S(0)]");
  EXPECT_EQ(view({2, 8, 4}, {16, 4}, "[S(1), S(1)]", two()), "[S(1), S(1)] -> [SS(0, 2), SS(0, 2)]");
  EXPECT_EQ(view({16, 4}, {2, 8, 4}, "[SS(0, 2), SS(0, 2)]", two()), "[SS(0, 2), SS(0, 2)] -> [S(1), S(1)]");
  EXPECT_EQ(view({4, 6, 5}, {24, 5}, "[S(0), S(1)]", two()), "[S(0), S(1)] -> [S(0), SS(0, 2)]");
  EXPECT_EQ(view({4, 6}, {24}, "[P(max)]", one()), "[P(max)] -> [P(max)]");
  EXPECT_EQ(view({4, 6}, {24}, "[S(0)*]", one()), "[S(0)*] -> [S(0)*]");
}

TEST(Propagate, ViewPatchesTheSize) {
  const Decision d =
      CallBuilder("aten::view", one()).tensor({4, 6}, "[S(0)]").value(std::vector<std::int64_t>{-1}).decide();
  ASSERT_EQ(d.patches.size(), 1u);
  EXPECT_EQ(d.patches[0].value.toIntVector(), std::vector<std::int64_t>{12});
  EXPECT_TRUE(d.outputs[0].is_view);
  EXPECT_EQ(d.outputs[0].alias, 0);
}

// A cast to bool or to a narrower dtype is not linear, so a Partial is reduced before.
TEST(Propagate, PartialsAreReducedBeforeCastsToBoolOrFloat8) {
  const auto cast = [](at::ScalarType from, at::ScalarType to) {
    return CallBuilder("aten::_to_copy", one())
        .tensor({3}, "[P(sum)]", from)
        .value(static_cast<std::int64_t>(to))
        .text();
  };
  for (const auto from : {at::kLong, at::kInt, at::kFloat}) EXPECT_EQ(cast(from, at::kBool), "[R] -> [R]") << from;
  for (const auto to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    EXPECT_EQ(cast(at::kFloat, to), "[R] -> [R]") << to;
    EXPECT_EQ(cast(to, at::kFloat), "[P(sum)] -> [P(sum)]") << to;
  }
  EXPECT_EQ(cast(at::kFloat8_e5m2, at::kFloat8_e4m3fn), "[R] -> [R]");
  EXPECT_EQ(cast(at::kLong, at::kFloat), "[P(sum)] -> [P(sum)]");
  EXPECT_EQ(cast(at::kFloat, at::kBFloat16), "[P(sum)] -> [P(sum)]");
  CallBuilder sum("aten::sum", one());
  sum.tensor({3}, "[P(sum)]", at::kLong).value(static_cast<std::int64_t>(at::kBool));
  EXPECT_EQ(sum.text(), "[R] -> [R]");
}

// Averages and interpolations of integers are rounded.
TEST(Propagate, RoundedResultsAreNotLinear) {
  const auto pool = [](at::ScalarType type) {
    return CallBuilder("aten::avg_pool2d", one()).tensor({2, 3, 4, 4}, "[P(sum)]", type).value(Ints{2, 2}).text();
  };
  EXPECT_EQ(pool(at::kLong), "[R] -> [R]");
  EXPECT_EQ(pool(at::kFloat), "[P(sum)] -> [P(sum)]");
  const auto resample = [](const char* op, at::ScalarType type) {
    CallBuilder call(op, one());
    call.tensor({2, 3, 4, 4}, "[P(sum)]", type).value(Ints{3, 3});
    if (std::string(op).find("nearest") == std::string::npos) call.value(false);
    return call.text();
  };
  for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::_upsample_bilinear2d_aa"}) {
    EXPECT_EQ(resample(op, at::kByte), "[R] -> [R]") << op;
    EXPECT_EQ(resample(op, at::kFloat), "[P(sum)] -> [P(sum)]") << op;
  }
  EXPECT_EQ(resample("aten::upsample_nearest2d", at::kByte), "[P(sum)] -> [P(sum)]");
}

TEST(Propagate, ScalesOfRowsAreSplitWithTheRows) {
  const auto product = [](const Ints& scale) {
    return CallBuilder("aten::_scaled_mm", one())
        .tensor({16, 32}, "[S(0)]", at::kFloat8_e4m3fn)
        .tensor({32, 8}, "[R]", at::kFloat8_e4m3fn)
        .tensor(scale, "[R]")
        .tensor({1, 8}, "[R]")
        .none_tensor()
        .none_tensor()
        .text();
  };
  EXPECT_EQ(product({16, 1}), "[S(0)], [R], [S(0)], [R], -, - -> [S(0)]");
  EXPECT_EQ(product({1, 1}), "[S(0)], [R], [R], [R], -, - -> [S(0)]");
  EXPECT_EQ(product({}), "[S(0)], [R], [R], [R], -, - -> [S(0)]");
  EXPECT_EQ(product({64}), "[R], [R], [R], [R], -, - -> [R]");  // In blocks.
}

// Names of operators are cached at the first lookup; a library may be loaded later.
TEST(Propagate, OperatorsOfALaterLibraryAreDerivedByOverloadAndTag) {
  EXPECT_EQ(CallBuilder("aten::relu_", one()).tensor({4, 4}, "[S(0)]").text(), "[S(0)] -> [S(0)]");
  torch::Library library(torch::Library::DEF, "late_library", std::nullopt, __FILE__, __LINE__);
  library.def("tagged(Tensor x) -> Tensor", {at::Tag::pointwise});
  library.def("tagged_(Tensor(a!) x) -> Tensor(a!)");
  library.def("named.rows(Tensor x, int n) -> Tensor");
  library.def("named_.rows(Tensor(a!) x, int n) -> Tensor(a!)");
  RuleBook::get().rule("late_library::named.rows", "ab! -> ab");
  EXPECT_EQ(CallBuilder("late_library::tagged_", one()).tensor({4, 4}, "[S(0)]").text(), "[S(0)] -> [S(0)]");
  EXPECT_EQ(CallBuilder("late_library::named_.rows", one()).tensor({4, 4}, "[S(0)]").value(2).text(),
            "[S(0)] -> [S(0)]");
  library.def("named.columns(Tensor x, bool b) -> Tensor", {at::Tag::pointwise});
  library.def("named_.columns(Tensor(a!) x, bool b) -> Tensor(a!)");
  EXPECT_EQ(CallBuilder("late_library::named_.columns", one()).tensor({4, 4}, "[S(1)]").value(true).text(),
            "[S(1)] -> [S(1)]");
}

TEST(Propagate, OperatorsWithoutARuleRunReplicated) {
  torch::Library library(torch::Library::DEF, "propagate_test", std::nullopt, __FILE__, __LINE__);
  library.def("unknown(Tensor x) -> Tensor");
  const Decision d = CallBuilder("propagate_test::unknown", one()).tensor({4, 4}, "[S(0)]").decide();
  EXPECT_TRUE(d.warn_replicated);
  EXPECT_EQ(to_string(d.inputs[0]), "[R]");
}

TEST(Propagate, RefusalsGiveTheReason) {
  EXPECT_THROW(CallBuilder("aten::dequantize.self", one()).tensor({4, 4}, "[S(0)]").decide(), c10::NotImplementedError);
}

TEST(Propagate, HistogramsArePartialUnlessEdgesDependOnData) {
  const auto histc = [](double high) {
    return CallBuilder("aten::histc", one()).tensor({4, 4}, "[S(0)]").value(10).value(0.0).value(high).text();
  };
  EXPECT_EQ(histc(1), "[S(0)] -> [P(sum)]");
  EXPECT_EQ(histc(0), "[R] -> [R]");
}

TEST(Propagate, ExplainListsCandidates) {
  const std::string text =
      CallBuilder("aten::mm", one()).tensor({64, 128}, "[S(0)]").tensor({128, 32}, "[R]").explain();
  EXPECT_NE(text.find("shard m"), std::string::npos) << text;
  EXPECT_NE(text.find("replicate"), std::string::npos) << text;
}

// The schema of native_batch_norm does not declare its writes to the running statistics. They are small, so they are
// redistributed and written back instead of the input.
TEST(Propagate, HiddenWritesAreWrittenBack) {
  const auto norm = [](const char* input, const char* mean, const char* var) {
    return CallBuilder("aten::native_batch_norm", one())
        .tensor({4, 6, 3}, input)
        .tensor({6}, "[R]")
        .tensor({6}, "[R]")
        .tensor({6}, mean)
        .tensor({6}, var)
        .value(true)
        .value(0.1)
        .value(1e-5)
        .decide();
  };
  const auto text = [](const Decision& d) {
    std::string all;
    for (const auto& p : d.inputs) all += to_string(p);
    for (const auto& o : d.outputs) all += to_string(o.placements);
    return all;
  };
  EXPECT_EQ(text(norm("[R]", "[S(0)]", "[S(0)]")), "[S(1)][S(0)][S(0)][S(0)][S(0)][S(1)][S(0)][S(0)]");
  EXPECT_EQ(text(norm("[S(1)]", "[R]", "[P(sum)]")), "[S(1)][S(0)][S(0)][S(0)][S(0)][S(1)][S(0)][S(0)]");
  EXPECT_EQ(text(norm("[S(0)]", "[R]", "[R]")), "[S(0)][R][R][R][R][S(0)][R][R]");
  EXPECT_EQ(norm("[S(1)]", "[R]", "[R]").mutated, (std::vector<int>{3, 4}));
}

TEST(Propagate, ListsAreDecidedPerPosition) {
  const std::vector<at::Tensor> p{at::empty({6, 4}, at::kMeta), at::empty({3}, at::kMeta)};
  const auto text = CallBuilder("aten::_foreach_add_.List", one()).list(p, "[S(0)]").list(p, "[P(sum)]").text();
  EXPECT_EQ(text, "[S(0)], [S(0)], [S(0)], [S(0)] ->");
}

// A list operator without results cannot return that its first operand became Partial.
TEST(Propagate, ListsWithoutResultsKeepPlacements) {
  const std::vector<at::Tensor> p{at::empty({6, 4}, at::kMeta)};
  for (const char* own : {"[P(max)]", "[R]"}) {
    const auto text = CallBuilder("aten::_foreach_mul_.List", one()).list(p, own).list(p, "[P(sum)]").text();
    EXPECT_EQ(text, "[R], [R] ->") << own;
  }
  EXPECT_EQ(CallBuilder("aten::_foreach_mul_.List", one()).list(p, "[P(sum)]").list(p, "[R]").text(),
            "[P(sum)], [R] ->");
}

TEST(Propagate, NewTensorsGetTheShardWithoutStorageFlag) {
  EXPECT_EQ(CallBuilder("aten::zeros_like", one()).tensor({6, 4}, "[S(0)*]").text(), "[S(0)*] -> [S(0)]");
  EXPECT_EQ(CallBuilder("aten::zeros_like", one()).tensor({6, 4}, "[P(sum)]").text(), "[P(sum)] -> [R]");
  const Ints other{3};
  EXPECT_EQ(CallBuilder("aten::new_zeros", one()).tensor({6, 4}, "[S(1)]").value(other).text(), "[S(1)] -> [R]");
  EXPECT_EQ(CallBuilder("aten::clone", one()).tensor({6, 4}, "[S(0)*]").text(), "[S(0)*] -> [S(0)*]");
}

}  // namespace
}  // namespace dtensor::testing
