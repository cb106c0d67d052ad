// In a BitIdentical scope, log-probabilities of a token depend neither on the mesh, nor on the pieces of its prompt,
// nor on the other sequences of a batch.
#include "bit_identical/bits.h"
#include "llm/commands/generate.h"
#include "llm/commands/train.h"
#include "llm/program.h"
#include "recorded.h"
#include "support/captured.h"
#include "support/folder.h"

namespace {

using dtensor::Communicator;
using dtensor::run_local;
using dtensor::nn::KVCache;
using dtensor::test::Draw;
using dtensor::test::same_bits;

using MakeModel = std::function<llm::Model(const llm::MeshSizes&, const Communicator&)>;

struct Case {
  std::string name;
  MakeModel make;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Case recorded_case(const std::string& family, at::ScalarType dtype = at::kFloat) {
  return {family + (dtype == at::kFloat ? "" : " in bfloat16"), [=](const auto& sizes, const auto& world) {
            return recorded::model(family, sizes, world, {.dtype = dtype, .bit_identical = true});
          }};
}

// Latent attention without experts, with values of this size and keys of 24.
Case latent_case(std::int64_t value_size) {
  return {"latent attention, values of " + std::to_string(value_size), [=](const auto& sizes, const auto& world) {
            llm::Family family;
            family.config.vocabulary = 70, family.config.hidden = 64, family.config.layers = 2, family.config.ffn = 96;
            family.config.heads = 3, family.config.ropes = {{.size = 8}};
            family.config.latent = dtensor::nn::LatentAttention{
                .q_rank = 20, .kv_rank = 24, .rope_size = 8, .nope_size = 16, .value_size = value_size};
            auto model = llm::make_model(family, sizes, world, {.bit_identical = true});
            dtensor::manual_seed(model.mesh, 3);
            model.decoder->reset();
            return model;
          }};
}

std::vector<Case> cases() {
  std::vector<Case> all{latent_case(16), latent_case(32), recorded_case("llama3", at::kBFloat16)};
  for (const auto& family : recorded::families()) all.push_back(recorded_case(family));
  return all;
}

// [sequences, tokens, vocabulary] of the tokens after the given ones.
at::Tensor log_probabilities(const llm::Model& model, const at::Tensor& ids, KVCache* cache = nullptr,
                             bool split_batch = false) {
  const at::NoGradGuard no_grad;
  const auto scope = model.bit_identical_scope();
  const at::Tensor logits = model.decoder->forward(model.place(ids, split_batch), cache);
  return dtensor::DTensor(at::log_softmax(logits, -1)).full_tensor();
}

struct Sequences {
  at::Tensor ids;                    // [sequences, tokens]
  std::vector<at::Tensor> expected;  // of each sequence alone, on one device in one pass
  bool experts = false;              // of the model

  void check(const at::Tensor& found, const at::Tensor& rows, std::int64_t first, const std::string& what) const {
    for (std::int64_t i = 0; i < rows.numel(); ++i) {
      const auto& all = expected[static_cast<std::size_t>(rows[i].item<std::int64_t>())];
      TORCH_CHECK(same_bits(found[i], all.narrow(0, first, found.size(1))), what, ": ", found.size(1), " tokens from ",
                  first, " of ", rows.numel(), " sequences differ by up to ",
                  (found[i] - all.narrow(0, first, found.size(1))).abs().max().item<double>());
    }
  }
};

Sequences on_one_device(const MakeModel& make) {
  Sequences s;
  run_local(1, [&](const Communicator& world) {
    const auto model = make({}, world);
    const auto& config = model.decoder->config();
    s.experts = config.experts.has_value();
    s.ids = Draw(5).integers({4, config.learned_positions > 0 ? config.learned_positions : 70}, config.vocabulary);
    for (const at::Tensor& row : s.ids.split(1)) s.expected.push_back(log_probabilities(model, row)[0]);
  });
  return s;
}

// Sequences join the batch and leave it after some tokens; their prompts come in pieces of any lengths.
void check_rollout(const llm::Model& model, const Sequences& s, Draw draw, const std::string& what) {
  for (std::int64_t done = 0, tokens = s.ids.size(1); done < tokens;) {
    const at::Tensor rows = draw.integers({draw.integer(1, 3)}, s.ids.size(0));
    KVCache cache(model.decoder->config().layers, tokens);
    done = draw.integer(done + 1, tokens);
    while (cache.length() < done) {
      const std::int64_t first = cache.length(), count = draw.coin() ? 1 : draw.integer(1, done - first);
      const at::Tensor ids = s.ids.index_select(0, rows).narrow(1, first, count);
      s.check(log_probabilities(model, ids, &cache), rows, first, what);
    }
  }
}

class SameBits : public testing::TestWithParam<Case> {};

TEST_P(SameBits, LogProbabilitiesDependOnTheSequenceOnly) {
  const auto& [name, make] = GetParam();
  const Sequences s = on_one_device(make);
  std::uint64_t seed = 0;
  std::vector<llm::MeshSizes> meshes{{}, {.tp = 2}, {.tp = 3}, {.shard = 4}, {.shard = 2, .tp = 2}};
  if (s.experts) meshes.push_back({.ep = 2});
  for (const auto& mesh : meshes) {
    run_local(static_cast<int>(mesh.ranks()), [&, what = name + " on " + mesh.str(), seed](const Communicator& world) {
      const auto model = make(mesh, world);
      check_rollout(model, s, Draw(seed), what);
      // Without a cache: a split batch, and the tokens before padding.
      const auto shown = s.ids.size(1) - 9;
      s.check(log_probabilities(model, s.ids.narrow(1, 0, shown), nullptr, /*split_batch=*/true), at::arange(4), 0,
              what);
    });
    ++seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SameBits, testing::ValuesIn(cases()));

void expect_refused(const std::function<void()>& run, const std::string& part) {
  try {
    run();
    ADD_FAILURE() << part << " was not refused";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(part + " has no bit-identical form"), std::string::npos) << error.what();
  }
}

TEST(SameBitsRefusals, SplitCachesAreRefused) {
  run_local(2, [](const Communicator& world) {
    const auto model = recorded::model("llama3", {.dp = 2}, world, {.bit_identical = true});
    KVCache cache(2, 8, "dp");
    expect_refused(
        [&] {
          log_probabilities(model, at::ones({1, 3}, at::kLong), &cache);
        },
        "KVCache with a sequence axis");
  });
}

// Frequencies of cached tokens would be those of a shorter sequence.
TEST(SameBitsRefusals, CachedFrequenciesOfAnotherLengthAreRefused) {
  const dtensor::nn::Rope rope(
      {.size = 8, .max_positions = 16, .scaling = dtensor::nn::RopeScaling::dynamic, .factor = 2});
  EXPECT_NO_THROW(rope.angles(20, 2, at::kFloat));
  const dtensor::BitIdentical scope;
  EXPECT_NO_THROW(rope.angles(0, 20, at::kFloat));
  EXPECT_NO_THROW(rope.angles(10, 6, at::kFloat));
  expect_refused([&] { rope.angles(10, 7, at::kFloat); }, "Rope with frequencies that depend on the length");
}

TEST(SameBitsProgram, WritesTheSameLogitsOnEveryMesh) {
  const dtensor::test::Folder folder;
  std::vector<std::string> files;
  for (const std::string mesh : {"tp=1", "tp=2", "shard=3", "dp=2,tp=2"}) {
    const auto out = folder / mesh;
    const auto ended = dtensor::test::run_captured({"llm", "logits", "--model", recorded::folder("gemma2"), "--tokens",
                                                    "3,1,4,1,5,9,2,6", "--mesh", mesh, "--out", out, "--bit-identical"},
                                                   llm::run_program);
    ASSERT_EQ(ended.status, 0) << ended.error;
    std::ifstream file(out, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    EXPECT_GT(files.back().size(), 8 * 64 * sizeof(float));
    EXPECT_EQ(files.back(), files.front()) << mesh;
  }
}

TEST(SameBitsProgram, RefusesFlagsWithoutSuchAForm) {
  const auto rejected = [](std::vector<std::string> words, const std::string& flag) {
    words.insert(words.begin(), "llm");
    words.insert(words.end(), {"--model", "m", "--bit-identical"});
    dtensor::test::expect_rejected(words, "--bit-identical does not support " + flag, llm::run_program);
  };
  rejected({"generate", "--tokens", "1", "--split-cache", "dp"}, "--split-cache");
  rejected({"train", "--dry-run"}, "--dry-run");
}

// A trainer on four ranks, and a generator on two that draws tokens with a cache.
class Rollouts : public testing::Test {
 protected:
  static constexpr std::int64_t kSequences = 20, kTokens = 512;

  llm::Model model_on(const llm::MeshSizes& mesh, const Communicator& world) const {
    auto model = recorded::model("llama3", mesh, world, {.bit_identical = true});
    if (trained_) load_state(folder_.str(), world, llm::stored_state(model));
    return model;
  }

  void train() {
    run_local(4, [&](const Communicator& world) {
      const auto model = model_on({.shard = 4}, world);
      model.decoder->train();
      llm::TrainOptions options;
      options.lr = 1e-2;
      llm::Trainer trainer(model, options);
      Draw draw(1);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor ids = draw.integers({8, 65}, model.decoder->config().vocabulary);
        trainer.step({ids.narrow(1, 0, 64).contiguous(), ids.narrow(1, 1, 64).contiguous()});
      }
      save_state(folder_.str(), world, llm::stored_state(model));
    });
    trained_ = true;
  }

  // Draws the tokens after a first one. Returns all, and the log-probabilities of those drawn.
  std::pair<at::Tensor, at::Tensor> generate(const llm::MeshSizes& mesh) const {
    const at::Tensor ids = at::ones({kSequences, kTokens}, at::kLong), found = at::empty({kSequences, kTokens - 1});
    run_local(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
      const auto model = model_on(mesh, world);
      KVCache cache(model.decoder->config().layers, kTokens);
      at::Tensor last = at::ones({kSequences, 1}, at::kLong);
      for (std::int64_t t = 0; t + 1 < kTokens; ++t) {
        const at::Tensor all = log_probabilities(model, last, &cache).select(1, 0);
        last = last.clone();
        for (std::int64_t i = 0; i < kSequences; ++i) {
          last[i] = llm::pick(all[i], {.temperature = 1, .seed = static_cast<std::uint64_t>(i)}, t);
        }
        if (world.rank() != 0) continue;
        ids.narrow(1, t + 1, 1).copy_(last);
        found.narrow(1, t, 1).copy_(all.gather(1, last));
      }
    });
    return {ids, found};
  }

  // Of the trainer, in one pass over a batch that is split over the ranks.
  at::Tensor by_trainer(const at::Tensor& ids) const {
    at::Tensor found;
    run_local(4, [&](const Communicator& world) {
      const auto model = model_on({.shard = 4}, world);
      model.decoder->train();
      const at::Tensor all = log_probabilities(model, ids.narrow(1, 0, kTokens - 1), nullptr, /*split_batch=*/true);
      if (world.rank() == 0) found = all.gather(2, ids.narrow(1, 1, kTokens - 1).unsqueeze(2)).squeeze(2);
    });
    return found;
  }

 private:
  const dtensor::test::Folder folder_;
  bool trained_ = false;
};

TEST_F(Rollouts, TrainerHasTheLogProbabilitiesOfTheGenerator) {
  train();
  const auto [ids, generated] = generate({.tp = 2});
  EXPECT_GT(generated.numel(), 10000);
  EXPECT_GT(std::get<0>(at::_unique(ids)).numel(), 30);
  EXPECT_TRUE(same_bits(by_trainer(ids), generated));
}

}  // namespace
