// Communication of each kernel whose dimension is split over two ranks: the dimension itself is never
// gathered.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

using Names = std::vector<std::string>;
const Names kTwoReduces{"all_reduce", "all_reduce"}, kOneReduce{"all_reduce"}, kTwoGathers{"all_gather", "all_gather"},
    kOneGather{"all_gather"}, kNothing{};

const Placements kSplit{Shard(1)}, kFull{Replicate()}, kPartial{Partial()};

TEST(Communication, SoftmaxReducesRowStatisticsOnly) {
  const auto x = at::rand({3, 5});
  EXPECT_EQ(collectives_of({"_softmax", "", "softmax_sharded", {x, 1, false}, {kSplit}, {kSplit}, {2}}), kTwoReduces);
  EXPECT_EQ(collectives_of({"_log_softmax_backward_data",
                            "",
                            "log_softmax_backward_sharded",
                            {x, x, 1, at::kFloat},
                            {kSplit, kSplit},
                            {kSplit},
                            {2}}),
            kOneReduce);
}

TEST(Communication, LossesAndEmbeddingsReduceEntriesOnly) {
  const auto x = at::rand({3, 5});
  const auto target = at::zeros({3}, at::kLong);
  for (const auto& [of_self, of_target] : {std::pair{kSplit, kFull}, {Placements{Shard(0)}, Placements{Shard(0)}}}) {
    EXPECT_EQ(collectives_of({"nll_loss_forward",
                              "",
                              "nll_loss_forward",
                              {x, target, c10::IValue(), 1, -100},
                              {of_self, of_target, {}},
                              {kFull, kFull},
                              {2}}),
              kOneReduce)
        << "the loss and its total weight are reduced together";
  }
  EXPECT_EQ(collectives_of({"nll_loss_backward",
                            "",
                            "nll_loss_backward",
                            {at::ones({}), x, target, c10::IValue(), 1, -100, at::full({}, 3.f)},
                            {kFull, kSplit, kFull, {}, kFull},
                            {kSplit},
                            {2}}),
            kNothing);
  EXPECT_EQ(
      collectives_of(
          {"embedding", "", "embedding_vocab", {x, target, -1, false, false}, {{Shard(0)}, kFull}, {kPartial}, {2}}),
      kNothing);
  EXPECT_EQ(collectives_of({"mse_loss", "", "loss_mean_global", {x, x, 1}, {kSplit, kSplit}, {kPartial}, {2}}),
            kNothing);
}

TEST(Communication, ReductionsReduceResultsOnly) {
  const auto x = at::rand({3, 5});
  const auto one = std::vector<std::int64_t>{1};
  EXPECT_EQ(
      collectives_of({"mean", "dim", "mean_global_count", {x, one, false, c10::IValue()}, {kSplit}, {kPartial}, {2}}),
      kNothing);
  EXPECT_EQ(
      collectives_of({"amax", "", "max_with_identity", {x, one, false}, {kSplit}, {{Partial(ReduceOp::max)}}, {2}}),
      kNothing);
  EXPECT_EQ(collectives_of({"argmax", "", "argmax_sharded", {x, 1, false}, {kSplit}, {kFull}, {2}}), kTwoGathers);
  EXPECT_EQ(collectives_of({"cumsum", "", "cumsum_sharded", {x, 1, c10::IValue()}, {kSplit}, {kSplit}, {2}}),
            kOneGather);
  EXPECT_EQ(collectives_of({"linalg_vector_norm",
                            "",
                            "vector_norm_sharded",
                            {x, at::Scalar(2), c10::IValue(), false, c10::IValue()},
                            {kSplit},
                            {kFull},
                            {2}}),
            kOneReduce);
}

}  // namespace
}  // namespace dtensor::testing
