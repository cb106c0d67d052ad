// Recorded models of each family on every mesh: logits and greedy tokens equal those of transformers.
#include <gtest/gtest.h>

#include "llm/commands/generate.h"
#include "recorded.h"

namespace {

struct Case {
  std::string family;
  llm::MeshSizes mesh;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.family << " on " << c.mesh.str(); }

std::vector<Case> cases() {
  const std::vector<llm::MeshSizes> meshes = {{}, {.tp = 2}, {.tp = 3}, {.shard = 2}, {.shard = 2, .tp = 2}, {.dp = 2}};
  std::vector<Case> all;
  for (const auto& family : recorded::families()) {
    for (const auto& mesh : meshes) all.push_back({family, mesh});
    if (!recorded::has_experts(family)) continue;
    all.push_back({family, {.ep = 2}});
    all.push_back({family, {.shard = 2, .ep = 2}});
    all.push_back({family, {.ep = 2, .tp = 2}});
  }
  return all;
}

class Families : public testing::TestWithParam<Case> {};

TEST_P(Families, LogitsAndGreedyTokensEqualTransformers) {
  const auto& [family, mesh] = GetParam();
  const auto expected = recorded::expected(family);
  dtensor::run_local(static_cast<int>(mesh.ranks()), [&](dtensor::Communicator world) {
    const auto model = recorded::model(family, mesh, world);
    const auto logits = llm::logits_of(model, expected.tokens);
    EXPECT_LE((logits.to(at::kDouble) - expected.logits).abs().max().item<double>(), 1e-5);
    llm::SampleOptions greedy;
    greedy.max_new_tokens = static_cast<std::int64_t>(expected.greedy.size());
    std::vector<std::int64_t> streamed;
    const auto made = llm::generate(model, world, expected.tokens, greedy, {},
                                    [&](std::int64_t token) { streamed.push_back(token); });
    EXPECT_EQ(made, expected.greedy);
    EXPECT_EQ(streamed, made);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(cases()));

// The cache gives the logits of one pass over all tokens for any split of the tokens into calls, with heads split and
// along the sequence.
void expect_same_in_pieces(const std::string& family, const llm::MeshSizes& mesh, const std::string& sequence_axis) {
  const auto expected = recorded::expected(family);
  dtensor::run_local(static_cast<int>(mesh.ranks()), [&](dtensor::Communicator world) {
    const at::NoGradGuard no_grad;
    const auto model = recorded::model(family, mesh, world);
    const auto ids = at::tensor(expected.tokens, at::kLong).unsqueeze(0);
    dtensor::nn::KVCache cache(model.decoder->config().layers, ids.size(1), sequence_axis);
    std::vector<at::Tensor> pieces;
    for (const auto& [first, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 7}, {8, 4}, {12, 1}}) {
      const auto piece = model.decoder->forward(model.place(ids.narrow(1, first, count)), &cache);
      pieces.push_back(dtensor::DTensor(piece).full_tensor());
    }
    const auto logits = at::cat(pieces, 1).squeeze(0).to(at::kDouble);
    EXPECT_LE((logits - expected.logits).abs().max().item<double>(), 1e-5) << family;
    // Removing and appending one token gives the same logits.
    cache.truncate(ids.size(1) - 1);
    const auto again = model.decoder->forward(model.place(ids.narrow(1, ids.size(1) - 1, 1)), &cache);
    EXPECT_TRUE(at::equal(dtensor::DTensor(again).full_tensor(), pieces.back())) << family;
  });
}

TEST(Decoder, GivesTheSameLogitsInPieces) {
  for (const std::string family : {"gemma2", "mistral", "deepseek_v3", "gpt2"}) {
    expect_same_in_pieces(family, {.tp = 2}, "");
  }
}

// Two of three ranks have no key of the first token; heads and tokens are split at once.
TEST(Decoder, GivesTheSameLogitsWithASplitCache) {
  for (const std::string family : {"llama3", "gemma2", "mistral", "deepseek_v3", "gpt2"}) {
    expect_same_in_pieces(family, {.dp = 3}, "dp");
    expect_same_in_pieces(family, {.shard = 2, .tp = 2}, "shard");
  }
}

TEST(Generate, SplitsItsCache) {
  const auto expected = recorded::expected("gemma3");
  for (const std::string axis : {"dp", "tp"}) {
    dtensor::run_local(4, [&](dtensor::Communicator world) {
      const auto model = recorded::model("gemma3", {.dp = 2, .tp = 2}, world);
      llm::SampleOptions greedy;
      greedy.max_new_tokens = static_cast<std::int64_t>(expected.greedy.size());
      greedy.split_cache = axis;
      if (axis == "dp") {
        EXPECT_EQ(llm::generate(model, world, expected.tokens, greedy, {}), expected.greedy);
      } else {
        EXPECT_THROW(llm::generate(model, world, expected.tokens, greedy, {}), c10::Error);
      }
    });
  }
}

// A draw depends only on the seed and the position; other seeds and temperatures give other tokens.
TEST(Generate, DrawsTheSameTextOnEveryMesh) {
  const auto expected = recorded::expected("llama3");
  const auto drawn = [&](const llm::MeshSizes& mesh, llm::SampleOptions options) {
    std::vector<std::int64_t> tokens;
    options.max_new_tokens = 16;
    dtensor::run_local(static_cast<int>(mesh.ranks()), [&](dtensor::Communicator world) {
      const auto made = llm::generate(recorded::model("llama3", mesh, world), world, expected.tokens, options, {});
      if (world.rank() == 0) tokens = made;
    });
    return tokens;
  };
  const llm::SampleOptions options{.temperature = 1.5, .top_p = 0.95, .seed = 7};
  const auto one = drawn({}, options);
  for (const auto& mesh : std::vector<llm::MeshSizes>{{.tp = 2}, {.tp = 3}, {.shard = 2}, {.shard = 2, .tp = 2}}) {
    EXPECT_EQ(drawn(mesh, options), one) << mesh.str();
  }
  auto other = options;
  other.seed = 8;
  EXPECT_NE(drawn({}, other), one);
  other = options, other.temperature = 0;
  EXPECT_NE(drawn({}, other), one);
  other.temperature = 1.5, other.top_p = 0;  // only the most likely token
  const auto likeliest = drawn({}, other);
  EXPECT_TRUE(std::equal(expected.greedy.begin(), expected.greedy.end(), likeliest.begin()));
}

TEST(Pick, DrawsByProbability) {
  const auto logits = at::log(at::tensor({0.5, 0.3, 0.15, 0.05}, at::kDouble));
  const auto share = [&](const llm::SampleOptions& options) {
    std::vector<double> counts(4, 0);
    for (std::int64_t position = 0; position < 20000; ++position)
      counts[llm::pick(logits, options, position)] += 1 / 20000.0;
    return counts;
  };
  const auto all = share({.temperature = 1});
  const double probabilities[] = {0.5, 0.3, 0.15, 0.05};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(all[i], probabilities[i], 0.02);
  const auto top = share({.temperature = 1, .top_p = 0.75});
  EXPECT_NEAR(top[0], 0.625, 0.02);
  EXPECT_NEAR(top[1], 0.375, 0.02);
  EXPECT_EQ(top[2] + top[3], 0);
  const auto cold = share({.temperature = 0.5});  // normalized squares of the probabilities
  EXPECT_NEAR(cold[0], 0.25 / 0.365, 0.02);
}

TEST(Generate, StopsAtEndTokenOrMaxNewTokens) {
  const auto expected = recorded::expected("qwen3");
  dtensor::run_local(2, [&](dtensor::Communicator world) {
    const auto model = recorded::model("qwen3", {.tp = 2}, world);
    llm::SampleOptions options;
    options.max_new_tokens = 5;
    const auto end = expected.greedy[1];
    const auto made = llm::generate(model, world, expected.tokens, options, {end});
    const auto until = std::find(expected.greedy.begin(), expected.greedy.end(), end);
    EXPECT_EQ(made, std::vector<std::int64_t>(expected.greedy.begin(), until + 1));
    options.ignore_end = true;
    EXPECT_EQ(llm::generate(model, world, expected.tokens, options, {end}).size(), 5u);
  });
}

}  // namespace
