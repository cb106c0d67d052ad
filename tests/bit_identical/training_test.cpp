// Training in a BitIdentical scope: parameters and optimizer states have the bits of one device on every mesh, with any
// number of threads, and in two microbatches.
#include "bit_identical/bits.h"
#include "dtensor/attention.h"
#include "train/model/loss.h"
#include "train/model/plan.h"

namespace dtensor::test {
namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kBlock = 16, kRows = 4, kTokens = 32, kVocabulary = 96;

struct Layout {
  train::MeshShape shape = {};
  bool units = false;  // fully_shard for each block
  bool sequence_parallel = false, recompute = false;
  const char* attention = "auto";  // strategy over cp
  bool zigzag = false;
  std::int64_t microbatches = 1;
  at::ScalarType dtype = at::kFloat;
  bool bf16 = false;  // parameters are gathered as bfloat16
};

std::string text_of(const Layout& layout) {
  return layout.shape.str() + (layout.units ? " units" : "") + (layout.sequence_parallel ? " sequence" : "") +
         " attention " + layout.attention + (layout.zigzag ? " zigzag" : "") + " microbatches " +
         std::to_string(layout.microbatches);
}

train::GptConfig config_of(const Layout& layout) {
  train::GptConfig config;
  config.vocabulary = kVocabulary, config.hidden = 96, config.heads = 6, config.layers = 2, config.ffn = 192;
  if (layout.recompute) config.run.recompute = Recomputation::full;
  config.tensor = at::TensorOptions(layout.dtype).device(at::kMeta);
  return config;
}

train::Options options_of(const Layout& layout) {
  train::Options options;
  options.parallel = layout.units ? "fsdp" : "plain";
  options.sequence_parallel = layout.sequence_parallel;
  options.bf16 = layout.bf16;
  options.zigzag_sequence = layout.zigzag;
  return options;
}

// Forward and backward of rows [first, first + count) of the batch.
void run_rows(train::Gpt& model, const DeviceMesh& mesh, const train::Options& options, const at::Tensor& ids,
              std::int64_t first, std::int64_t count) {
  const auto place = [&](const at::Tensor& t) {
    return distribute_tensor(t.narrow(0, first, count).contiguous(), mesh, train::batch_placements(options));
  };
  const auto out = model(place(ids));
  const auto loss = train::token_losses(out.logits, place(at::roll(ids, -1, 1)));
  (loss * (static_cast<double>(count) / static_cast<double>(kRows))).backward();
}

Tensors train_gpt(const Communicator& world, const Layout& layout) {
  const auto mesh = train::make_mesh(world, layout.shape, at::kCPU);
  const auto options = options_of(layout);
  train::Gpt model(config_of(layout));
  const auto units = train::distribute(model, mesh, options);
  manual_seed(mesh, 3);
  model.reset();
  Draw draw(5);
  AdamW optimizer(model.parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  const AttentionStrategyScope strategy(parse_attention_strategy(layout.attention));
  const BitIdentical scope(kBlock);
  for (int step = 0; step < kSteps; ++step) {
    const auto ids = draw.integers({kRows, kTokens}, kVocabulary);
    const auto count = kRows / layout.microbatches;
    for (std::int64_t i = 0; i < layout.microbatches; ++i) {
      std::optional<NoGradientSync> later;
      if (i + 1 < layout.microbatches) later.emplace();
      run_rows(model, mesh, options, ids, i * count, count);
    }
    clip_grad_norm_(model.parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  Tensors results;
  for (const at::Tensor& p : model.parameters()) {
    results.push_back(full_of(p.detach()).clone());
    for (const auto& [name, state] : optimizer.state(p)) results.push_back(full_of(state).clone());
  }
  return results;
}

Tensors run_layout(const Layout& layout, int threads = 1) {
  return on_rank_0(static_cast<int>(layout.shape.size()), threads,
                   [&](const Communicator& world) { return train_gpt(world, layout); });
}

void expect_bits(const Layout& layout, const Tensors& expected, int threads = 1) {
  EXPECT_NO_THROW(require_same_bits(run_layout(layout, threads), expected, text_of(layout)));
}

TEST(BitIdenticalTraining, EveryMeshHasTheBitsOfOneDevice) {
  const Tensors expected = run_layout({});
  for (const at::Tensor& t : expected) EXPECT_TRUE(t.isfinite().all().item<bool>());
  expect_bits({}, expected, 2);
  expect_bits({.microbatches = 2}, expected);
  expect_bits({.recompute = true}, expected);
  for (const std::int64_t n : {2, 3, 4}) expect_bits({.shape = {.tp = n}}, expected);
  for (const std::int64_t n : {2, 3}) expect_bits({.shape = {.shard = n}, .units = true}, expected);
  expect_bits({.shape = {.shard = 2}}, expected);
  expect_bits({.shape = {.shard = 2}, .units = true, .microbatches = 2}, expected);
  expect_bits({.shape = {.shard = 2, .tp = 2}, .units = true}, expected);
  expect_bits({.shape = {.replicate = 2, .shard = 2}, .units = true}, expected);
  expect_bits({.shape = {.tp = 2}, .sequence_parallel = true}, expected);
  for (const char* attention : {"ring", "gather", "ulysses"}) {
    expect_bits({.shape = {.cp = 2}, .units = true, .attention = attention}, expected);
  }
  expect_bits({.shape = {.cp = 2}, .units = true, .zigzag = true}, expected);
  expect_bits({.shape = {.shard = 2, .cp = 2}, .units = true, .recompute = true, .zigzag = true}, expected);
}

TEST(BitIdenticalTraining, MixedPrecisionHasTheBitsOfOneDevice) {
  const Layout one{.units = true, .bf16 = true};
  const Tensors expected = run_layout(one);
  auto layout = one;
  for (const train::MeshShape& shape : {train::MeshShape{.shard = 2}, {.shard = 2, .tp = 2}, {.tp = 3}}) {
    layout.shape = shape;
    expect_bits(layout, expected);
  }
}

}  // namespace
}  // namespace dtensor::test
