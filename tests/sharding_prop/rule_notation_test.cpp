// Rule strings: parsing, printing and errors.
#include <gtest/gtest.h>

#include "dtensor/rule.h"
#include "sharding_prop/call_builder.h"
#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor::testing {
namespace {

TEST(RuleText, PrintsWhatItParses) {
  for (const char* text : {"mk, kn -> mn", "+mn, mk, kn -> mn", "...k, nk! -> ...n", "(ij)k -> ijk", "m_, ~ -> m",
                           "k, k -> ", "...* -> ..., ...", " -> ", "N D!, D -> N D=_; D = shape",
                           "X[dim!, k=i] -> X[dim?]_, i?*", "ab -> ba | a -> a", "ab, a -> b@01, a@1"}) {
    const Rule rule(text);
    const Rule again(rule.str());
    EXPECT_EQ(again.str(), rule.str()) << text;
  }
  EXPECT_EQ(Rule("mk,kn->mn").str(), "mk, kn -> mn");
  EXPECT_EQ(Rule("m1 -> m").str(), "m_ -> m");
}

TEST(RuleText, UnshardedIsAPropertyOfTheFactor) {
  const Rule rule("ab!, b -> a");
  EXPECT_FALSE(rule.data().factors[0].unsharded);
  EXPECT_TRUE(rule.data().factors[1].unsharded);
}

TEST(RuleText, CopiesAreIndependent) {
  const Rule rule("mk, kn -> mn");
  Rule copy = rule;
  copy.unsharded("k").linear({0});
  EXPECT_FALSE(rule.data().factors[1].unsharded);
  EXPECT_TRUE(rule.data().groups.empty());
  EXPECT_TRUE(copy.data().factors[1].unsharded);
}

TEST(RuleText, RefusesInvalidStrings) {
  for (const char* text : {"mk, kn", "m(k -> m", "mk -> mk)", "...m... -> m", "m?? -> m", "X[] -> X", "X[dim -> X",
                           "X[dim=?] -> X", "...X -> X", "(X) -> x", "x -> x; D", "x -> x |", "x -> x@"}) {
    EXPECT_THROW(Rule{text}, c10::Error) << text;
  }
  EXPECT_THROW(Rule("m -> m").unsharded("x"), c10::Error);
}

TEST(RuleText, PermissionsArePrinted) {
  EXPECT_EQ(Rule("mk, kn -> mn").linear({0}, {1}).nonempty("k").str(),
            "mk, kn -> mn  [linear {0}; linear {1}; k >= 1]");
  EXPECT_EQ(
      Rule("X[dim] -> X[dim?]").reduce(ReduceOp::max).sharded_by_kernel("dim", "f").kernel_gives(ReduceOp::max).str(),
      "X[dim] -> X[dim?]  [leaves P(max); dim by kernel; kernel f; gives P(max)]");
  EXPECT_EQ(Rule("... -> ...").sharded_by_kernel("...", "f").unsharded("...").notation(), "... -> ...");
}

// Packs and dimensions are expanded by the arguments and ranks of calls; the operators supply their schemas.
TEST(RuleText, PacksAreExpanded) {
  const auto text = [](const char* rule, CallBuilder& call, bool infer = true) {
    if (infer) infer_outputs(call.call());
    return expand_packs(Rule(rule), call.call()).notation();
  };
  const auto sum = [&](const char* rule, std::vector<std::int64_t> dims, bool keepdim) {
    CallBuilder call("aten::sum.dim_IntList", make_mesh({2}));
    call.tensor({4, 5, 6}, "[R]").value(dims).value(keepdim);
    return text(rule, call);
  };
  const char* reduced = "X[dim!] -> X[dim?]";
  EXPECT_EQ(sum(reduced, {1}, false), "X0dim0!X1 -> X0X1");
  EXPECT_EQ(sum(reduced, {1}, true), "X0dim0!X1 -> X0_X1");
  EXPECT_EQ(sum(reduced, {-1, 0}, false), "dim0!X0dim1! -> X0");
  EXPECT_EQ(sum(reduced, {}, false), "dim0!dim1!dim2! -> ");
  EXPECT_EQ(sum("ab -> a | ab -> ", {1}, false), " -> ");  // No alternative has these ranks.
  EXPECT_EQ(sum("ab -> a | abc -> ac", {1}, false), "abc -> ac");
  CallBuilder gather("aten::gather", make_mesh({2}));
  gather.tensor({4, 5}, "[R]").value(-1).tensor(at::zeros({4, 3}, at::kLong), "[R]");
  EXPECT_EQ(text("X[dim!], X[dim=i] -> X[dim=i]", gather), "X0dim0!, X0i -> X0i");
  CallBuilder transpose("aten::transpose.int", make_mesh({2}));
  transpose.tensor({4, 5, 6}, "[R]").value(0).value(2);
  EXPECT_EQ(text("X[dim0=a,dim1=b] -> X[dim1=a,dim0=b]", transpose), "aX0b -> bX0a");
  CallBuilder unsqueeze("aten::unsqueeze", make_mesh({2}));
  unsqueeze.tensor({4, 5}, "[R]").value(-1);
  EXPECT_EQ(text("X -> X[dim=_]", unsqueeze), "X0X1 -> X0X1_");
  CallBuilder norm("aten::native_layer_norm", make_mesh({2}));
  norm.tensor({4, 5, 6}, "[R]").value(std::vector<std::int64_t>{5, 6}).tensor({5, 6}, "[R]").none_tensor().value(1e-5);
  const char* layer_norm = "N D!, D, D -> N D, N D=_, N D=_; D = normalized_shape";
  EXPECT_EQ(text(layer_norm, norm), "N0D0!D1!, D0!D1!, D0!D1! -> N0D0!D1!, N0__, N0__");
  CallBuilder silent("aten::native_layer_norm", make_mesh({2}));  // Results are not known yet.
  silent.tensor({4, 6}, "[R]").value(std::vector<std::int64_t>{6}).none_tensor().none_tensor().value(1e-5);
  EXPECT_EQ(text(layer_norm, silent, false), "N0D0!, D0!, D0! -> N0D0!, N0_, N0_");
}

TEST(RuleText, FactorsOfViewsAreFound) {
  const auto text = [](std::vector<std::int64_t> in, std::vector<std::int64_t> out) {
    return Rule::view(in, out).str();
  };
  EXPECT_EQ(text({4, 6}, {24}), "d0d1 -> (d0d1)");
  EXPECT_EQ(text({24}, {4, 6}), "(d0d1) -> d0d1");
  EXPECT_EQ(text({1, 4, 1}, {4}), "_d0_ -> d0");
  EXPECT_EQ(text({2, 3, 4}, {6, 4}), "d0d1d2 -> (d0d1)d2");
  EXPECT_EQ(text({12, 8}, {16, 6}), "(d0d1!)d3! -> (d0d2!)d4!");
  EXPECT_EQ(text({0, 3}, {0, 3}), "d0d1 -> d0d1");
}

}  // namespace
}  // namespace dtensor::testing
