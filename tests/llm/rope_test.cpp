// Frequencies and attention factors of each scaling equal those of transformers.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "llm/hf/rope_config.h"
#include "recorded.h"

namespace {

TEST(Rope, FrequenciesEqualTransformers) {
  const auto table = recorded::read(recorded::folder("rope.json"));
  ASSERT_EQ(table.size(), 16u);
  for (const auto& row : table) {
    nlohmann::json config = {{"rope_parameters", row.at("parameters")},
                             {"max_position_embeddings", row.at("max_position_embeddings")}};
    const dtensor::nn::Rope rope(llm::rope_of(config, row.at("head_dim")));
    const auto what = row.at("name").get<std::string>() + " at " + row.at("length").dump();
    const auto expected = at::tensor(row.at("frequencies").get<std::vector<double>>(), at::kDouble);
    const auto got = rope.frequencies(row.at("length"));
    EXPECT_TRUE(at::allclose(got, expected, 1e-6, 0)) << what << "\n" << got << "\n" << expected;
    EXPECT_NEAR(rope.attention_factor(), row.at("attention_factor"), 1e-9) << what;
  }
}

// Configurations of transformers before release 5.
TEST(Rope, ReadsOlderConfigurations) {
  const auto options = llm::rope_of(
      {{"rope_theta", 5e5}, {"max_position_embeddings", 99}, {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}},
      8);
  EXPECT_EQ(options.base, 5e5);
  EXPECT_EQ(options.scaling, dtensor::nn::RopeScaling::linear);
  EXPECT_EQ(options.factor, 4.0);
  const nlohmann::json gemma = {{"rope_theta", 1e6}, {"rope_local_base_freq", 1e4}, {"rope_scaling", nullptr}};
  EXPECT_EQ(llm::rope_of(gemma, 8, "full_attention").base, 1e6);
  EXPECT_EQ(llm::rope_of(gemma, 8, "sliding_attention").base, 1e4);
}

// Rotates each pair of elements, as a complex number, by position * frequency.
TEST(Rope, RotatesPairs) {
  for (const bool interleaved : {false, true}) {
    const dtensor::nn::Rope rope({.size = 6, .base = 100, .interleaved = interleaved});
    const auto x = at::randn({2, 3, 4, 8}, at::kDouble);  // the last two elements are not rotated
    const auto y = rope.rotate(x, rope.angles(5, 4, x.options()));
    for (std::int64_t position = 0; position < 4; ++position) {
      for (std::int64_t i = 0; i < 3; ++i) {
        const auto first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + 3;
        const double angle = static_cast<double>(5 + position) * std::pow(100.0, -2.0 * static_cast<double>(i) / 6);
        const auto a = x.select(2, position).select(2, first), b = x.select(2, position).select(2, second);
        EXPECT_TRUE(at::allclose(y.select(2, position).select(2, i), a * std::cos(angle) - b * std::sin(angle)));
        EXPECT_TRUE(at::allclose(y.select(2, position).select(2, i + 3), b * std::cos(angle) + a * std::sin(angle)));
      }
    }
    EXPECT_TRUE(at::equal(y.narrow(3, 6, 2), x.narrow(3, 6, 2)));
  }
}

// Angles cached in inference mode are valid in training.
TEST(Rope, CachedAnglesAreValidInEveryMode) {
  const dtensor::nn::Rope rope({.size = 4});
  {
    const c10::InferenceMode inference;
    rope.angles(0, 3, at::kFloat);
  }
  EXPECT_FALSE(rope.angles(0, 3, at::kFloat).cos.is_inference());
}

TEST(Rope, RefusesInconsistentOptions) {
  using dtensor::nn::Rope;
  using dtensor::nn::RopeScaling;
  EXPECT_THROW(Rope({.size = 5}), c10::Error);
  EXPECT_THROW(Rope({.size = 4, .scaling = RopeScaling::yarn}), c10::Error);
  EXPECT_THROW(Rope({.size = 4, .scaling = RopeScaling::longrope, .original_positions = 8, .short_factors = {1}}),
               c10::Error);
}

}  // namespace
