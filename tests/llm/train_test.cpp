// Five training steps, of all parameters and of adapters: losses equal transformers on every mesh. Also: a run resumed
// on another mesh, and exported models.
#include <gtest/gtest.h>
#include <algorithm>

#include "dtensor/debug.h"
#include "llm/commands/export.h"
#include "llm/commands/train.h"
#include "recorded.h"
#include "support/folder.h"
#include "train/state.h"

namespace {

using dtensor::run_local;

struct Case {
  std::string family;
  llm::MeshSizes mesh;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.family << " on " << c.mesh.str(); }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& family : recorded::families()) {
    for (const llm::MeshSizes& mesh :
         std::vector<llm::MeshSizes>{{}, {.tp = 2}, {.tp = 3}, {.shard = 2}, {.shard = 2, .tp = 2}}) {
      all.push_back({family, mesh});
    }
    if (recorded::has_experts(family)) all.push_back({family, {.ep = 2}});
  }
  return all;
}

// The recorded batch: ids and next tokens.
train::Batch batch_of(const nlohmann::json& expected) {
  std::vector<std::int64_t> flat;
  const auto rows = expected.at("batch").get<std::vector<std::vector<std::int64_t>>>();
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  const auto ids = at::tensor(flat, at::kLong).view({static_cast<std::int64_t>(rows.size()), -1});
  return {ids.narrow(1, 0, ids.size(1) - 1).contiguous(), ids.narrow(1, 1, ids.size(1) - 1).contiguous()};
}

llm::TrainOptions options_of(const nlohmann::json& expected) {
  llm::TrainOptions options;
  options.lr = expected.at("lr");
  options.weight_decay = 0.01;
  options.clip = 0;
  return options;
}

void expect_losses(llm::Trainer& trainer, const train::Batch& batch, const nlohmann::json& losses) {
  for (const auto& loss : losses) {
    EXPECT_NEAR(trainer.step(batch).loss, loss.get<double>(), 1e-5 * std::max(1.0, loss.get<double>()))
        << "step " << trainer.optimizer().steps_done();
  }
}

// Initializes adapters as tools/llm/make.py does.
void set_adapters(const llm::Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, slot] : model.decoder->named_parameters()) {
    if (!name.ends_with("lora_a")) continue;
    const auto sizes = slot->sizes();
    const auto value = at::sin(at::arange(1, sizes[0] * sizes[1] + 1, at::kDouble)).view(sizes) /
                       std::sqrt(static_cast<double>(sizes[1]));
    slot->copy_(distribute_tensor(value.to(at::kFloat), model.mesh, dtensor::DTensor(*slot).placements()));
  }
}

dtensor::nn::LoraOptions lora_of(const std::string& family, const llm::TrainOptions& options) {
  return llm::lora_options(options, llm::read_family(recorded::folder(family)).config);
}

class Training : public testing::TestWithParam<Case> {};

TEST_P(Training, LossesOfAllParametersEqualTransformers) {
  const auto& [family, mesh] = GetParam();
  const auto expected = recorded::expected(family).all;
  run_local(static_cast<int>(mesh.ranks()), [&](dtensor::Communicator world) {
    const auto model = recorded::model(family, mesh, world, {.always_mesh = true});
    llm::Trainer trainer(model, options_of(expected));
    expect_losses(trainer, batch_of(expected), expected.at("losses"));
  });
}

TEST_P(Training, LossesOfAdaptersEqualTransformers) {
  const auto& [family, mesh] = GetParam();
  const auto expected = recorded::expected(family).all;
  run_local(static_cast<int>(mesh.ranks()), [&](dtensor::Communicator world) {
    auto options = options_of(expected);
    options.lora_rank = expected.at("lora").at("rank");
    options.lora_alpha = expected.at("lora").at("alpha");
    const auto model = recorded::model(family, mesh, world, {.lora = lora_of(family, options), .always_mesh = true});
    set_adapters(model);
    llm::Trainer trainer(model, options);
    expect_losses(trainer, batch_of(expected), expected.at("lora").at("losses"));
    for (const auto& [name, slot] : model.decoder->named_parameters()) {
      EXPECT_EQ(slot->grad().defined() || slot->requires_grad(), llm::is_adapter(name)) << name;
    }
  });
}

TEST(TrainingOverflow, StopsBeforeNonFiniteUpdates) {
  const auto expected = recorded::expected("llama3").all;
  run_local(2, [&](dtensor::Communicator world) {
    auto options = options_of(expected);
    options.lr = 1e38;
    const auto model = recorded::model("llama3", {.tp = 2}, world, {.always_mesh = true});
    llm::Trainer trainer(model, options);
    const auto batch = batch_of(expected);
    const auto full = [&] { return dtensor::DTensor(model.decoder->parameters().front()).full_tensor().clone(); };
    at::Tensor before;
    const auto train = [&] {
      for (int step = 0; step < 4; ++step) before = full(), trainer.step(batch);
    };
    EXPECT_THROW(train(), dtensor::NonFiniteError);
    EXPECT_TRUE(at::allclose(full(), before, 0, 0, true));
    EXPECT_GE(trainer.optimizer().steps_done(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Training, testing::ValuesIn(cases()));

std::map<std::string, std::pair<dtensor::CheckpointEntry, std::string>> contents(const std::string& folder) {
  std::map<std::string, std::pair<dtensor::CheckpointEntry, std::string>> all;
  for (const auto& entry : dtensor::read_checkpoint_index(folder).entries) {
    std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
    std::ifstream file(entry.file, std::ios::binary);
    file.seekg(entry.offset);
    file.read(bytes.data(), entry.bytes);
    all[entry.name] = {entry, bytes};
  }
  return all;
}

// Names, dtypes, sizes and bytes are equal on any mesh; other files are copied.
TEST(Export, WritesTheTensorsOfTheSource) {
  const dtensor::test::Folder folder;
  for (const auto& family : recorded::families()) {
    const auto source = recorded::folder(family), out = folder / family;
    run_local(4, [&](dtensor::Communicator world) {
      const llm::MeshSizes mesh =
          recorded::has_experts(family) ? llm::MeshSizes{.ep = 2, .tp = 2} : llm::MeshSizes{.shard = 2, .tp = 2};
      const auto model = recorded::model(family, mesh, world, {.dtype = llm::widest_stored(source)});
      llm::export_folder(model, llm::read_family(source), source, out, world);
    });
    const auto was = contents(source), is = contents(out);
    ASSERT_EQ(is.size(), was.size()) << family;
    for (const auto& [name, expected] : was) {
      ASSERT_TRUE(is.contains(name)) << family << " " << name;
      EXPECT_EQ(is.at(name).first.dtype, expected.first.dtype) << family << " " << name;
      EXPECT_EQ(is.at(name).first.sizes, expected.first.sizes) << family << " " << name;
      EXPECT_TRUE(is.at(name).second == expected.second) << family << " " << name;
    }
    EXPECT_EQ(recorded::read(out + "/config.json"), recorded::read(source + "/config.json"));
    EXPECT_THROW(llm::check_export(source, source), llm::UsageError);
  }
}

// These values are divisors.
TEST(Config, RefusesZeroDivisors) {
  const std::string common = R"("vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8)";
  const std::string experts = R"("num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4)";
  const dtensor::test::Folder folder;
  const std::pair<const char*, std::string> cases[] = {
      {"num_attention_heads", R"({"model_type": "llama", "num_attention_heads": 0, )" + common + "}"},
      {"decoder_sparse_step", R"({"model_type": "qwen3_moe", "num_attention_heads": 2, "decoder_sparse_step": 0, )" +
                                  common + ", " + experts + "}"},
      {"sliding_window_pattern",
       R"({"model_type": "gemma3_text", "num_attention_heads": 2, "sliding_window_pattern": 0, )" + common + "}"}};
  for (const auto& [key, text] : cases) {
    std::ofstream(folder / "config.json") << text;
    try {
      llm::read_family(folder / "");
      ADD_FAILURE() << key;
    } catch (const llm::UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(c10::str("expected ", key, " of at least 1, got 0")), std::string::npos)
          << error.what();
    }
  }
}

// An adapter of a tied head would make it differ from the embedding.
TEST(Adapters, TiedHeadIsRefused) {
  llm::TrainOptions options;
  options.lora_rank = 2, options.lora_targets = {"lm_head"};
  dtensor::nn::DecoderConfig config;
  EXPECT_EQ(llm::lora_options(options, config).targets, options.lora_targets);
  config.tied = true;
  EXPECT_THROW(llm::lora_options(options, config), llm::UsageError);
}

// Adapters are merged also into transposed and fused weights: the exported model has the logits of the adapted one. The
// configuration names another dtype.
TEST(Export, MergesAdaptersAndConverts) {
  const dtensor::test::Folder folder;
  for (const std::string family : {"mistral", "gpt2", "deepseek_v3"}) {
    const auto expected = recorded::expected(family);
    const auto source = recorded::folder(family), merged = folder / (family + "_merged"),
               half = folder / (family + "_half");
    run_local(2, [&](dtensor::Communicator world) {
      auto options = options_of(expected.all);
      options.lora_rank = 3;
      const auto model =
          recorded::model(family, {.tp = 2}, world, {.lora = lora_of(family, options), .always_mesh = true});
      set_adapters(model);
      llm::Trainer trainer(model, options);
      for (int i = 0; i < 3; ++i) trainer.step(batch_of(expected.all));
      const auto adapted = llm::logits_of(model, expected.tokens);
      EXPECT_GT((adapted.to(at::kDouble) - expected.logits).abs().max().item<double>(), 1e-2) << family;
      llm::export_folder(model, llm::read_family(source), source, merged, world);
      llm::export_folder(model, llm::read_family(source), source, half, world, at::kBFloat16);
      const auto read = llm::read_family(merged);
      const auto again = llm::make_model(read, {.shard = 2}, world);
      llm::load_parameters(again, read, merged, world);
      const double tolerance = 1e-5 * std::max(1.0, adapted.abs().max().item<double>());
      EXPECT_LE((llm::logits_of(again, expected.tokens) - adapted).abs().max().item<double>(), tolerance) << family;
    });
    EXPECT_EQ(recorded::read(half + "/config.json").at("dtype"), "bfloat16");
    for (const auto& entry : dtensor::read_checkpoint_index(half).entries) EXPECT_EQ(entry.dtype, at::kBFloat16);
  }
}

llm::TrainOptions with_folders(llm::TrainOptions options, std::string save, std::string load) {
  options.steps = 3, options.save = std::move(save), options.load = std::move(load);
  return options;
}

// Three steps and two more on another mesh equal five steps.
TEST(Run, ResumesOnAnotherMesh) {
  const dtensor::test::Folder folder;
  const auto expected = recorded::expected("qwen3").all;
  const auto& losses = expected.at("losses");
  const auto batch = batch_of(expected);
  run_local(4, [&](dtensor::Communicator world) {
    const auto model = recorded::model("qwen3", {.shard = 2, .tp = 2}, world, {.always_mesh = true});
    llm::Trainer trainer(model, options_of(expected));
    expect_losses(trainer, batch, {losses[0], losses[1], losses[2]});
    train::RunState state(with_folders(options_of(expected), folder / "state", ""), {}, "", world);
    trainer.add_to(state.parts());
    state.begin();
    EXPECT_EQ(state.after(2), 0);  // the last step of the run
  });
  run_local(3, [&](dtensor::Communicator world) {
    const auto model = recorded::model("qwen3", {.tp = 3}, world, {.always_mesh = true});
    llm::Trainer trainer(model, options_of(expected));
    auto options = with_folders(options_of(expected), "", folder / "state");
    options.steps = 5;
    train::RunState state(options, {}, "", world);
    trainer.add_to(state.parts());
    EXPECT_EQ(state.begin(), 3);
    trainer.optimizer().set_steps_done(3);
    expect_losses(trainer, batch, {losses[3], losses[4]});
    options.seed = 1;  // other seed, other batches
    train::RunState refuses(options, {}, "", world);
    trainer.add_to(refuses.parts());
    EXPECT_THROW(refuses.begin(), llm::UsageError);
  });
}

TEST(Run, AppliesScheduleClipAndWeightDecay) {
  llm::TrainOptions options;
  options.lr = 1, options.warmup = 4, options.steps = 24;
  const std::map<std::string, double> at_step_14 = {{"constant", 1}, {"linear", 0.5}, {"cosine", 0.5}, {"wsd", 1}};
  const std::map<std::string, double> at_step_23 = {
      {"constant", 1}, {"linear", 0.05}, {"cosine", (1 + std::cos(M_PI * 0.95)) / 2}, {"wsd", 0.5}};
  for (const auto& [schedule, rate] : at_step_14) {
    options.schedule = schedule;
    EXPECT_NEAR(llm::learning_rate(options)(14), rate, 1e-12) << schedule;
    EXPECT_NEAR(llm::learning_rate(options)(0), 0.2, 1e-12) << schedule;
    EXPECT_NEAR(llm::learning_rate(options)(23), at_step_23.at(schedule), 1e-12) << schedule;
  }
  const auto expected = recorded::expected("llama2").all;
  run_local(1, [&](dtensor::Communicator world) {
    const auto second_loss = [&](const std::function<void(llm::TrainOptions&)>& change) {
      auto o = options_of(expected);
      change(o);
      const auto model = recorded::model("llama2", {}, world, {.always_mesh = true});
      llm::Trainer trainer(model, o);
      trainer.step(batch_of(expected));
      return trainer.loss(batch_of(expected));
    };
    const double regular = second_loss([](auto&) {});
    EXPECT_NEAR(regular, expected.at("losses")[1].get<double>(), 1e-4);
    EXPECT_NE(second_loss([](auto& o) { o.weight_decay = 1; }), regular);
    EXPECT_NE(second_loss([](auto& o) { o.clip = 1e-9; }), regular);  // small against AdamW's epsilon
    EXPECT_NE(second_loss([](auto& o) { o.schedule = "linear", o.steps = 1, o.warmup = 1; }), regular);
  });
}

}  // namespace
