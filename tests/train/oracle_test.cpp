// The example's model and optimizer on regular tensors reproduce the reference run.
#include <gtest/gtest.h>

#include "oracle.h"
#include "train/model/model.h"
#include "train/model/optimizer.h"

namespace {

constexpr double kRelative = 1e-5;

void expect_close(double got, double expected, const char* what, std::size_t step) {
  EXPECT_NEAR(got, expected, kRelative * std::abs(expected)) << what << " of step " << step;
}

TEST(Oracle, FillAndBatchesMatchTheReference) {
  const auto first = oracle::data()["fill_seed1_first4"].get<std::vector<float>>();
  const at::Tensor filled = oracle::fill({4}, 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(filled[i].item<float>(), first[i]);
  const auto row = oracle::data()["batch9_ids_row7"].get<std::vector<std::int64_t>>();
  EXPECT_TRUE(at::equal(oracle::batch(9).ids[7], at::tensor(row)));
}

TEST(Oracle, ParametersHaveTheNamesAndShapesOfTheReference) {
  train::Gpt model(train::tiny());
  const auto parameters = model.named_parameters();
  const nlohmann::json& expected = oracle::data()["params"];
  ASSERT_EQ(parameters.size(), expected.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].first, oracle::name_of(expected[i]["name"]));
    EXPECT_EQ(parameters[i].second->sizes(), expected[i]["shape"].get<std::vector<std::int64_t>>());
  }
}

TEST(Oracle, The153MModelHas153MParameters) { EXPECT_EQ(train::parameter_count(train::gpt_153m()) / 1'000'000, 153); }

TEST(Oracle, SingleDeviceMatchesTheCurves) {
  const auto model = oracle::model();
  train::Optimizer optimizer(model->named_parameters(), {});
  const std::vector<double> losses = oracle::curve("loss"), norms = oracle::curve("grad_norm");
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const oracle::Batch batch = oracle::batch(static_cast<std::int64_t>(step));
    const at::Tensor loss = train::token_loss((*model)(batch.ids).logits.front(), batch.targets);
    loss.backward();
    expect_close(optimizer.step().item<double>(), norms[step], "gradient norm", step);
    expect_close(loss.item<double>(), losses[step], "loss", step);
  }
}

}  // namespace
