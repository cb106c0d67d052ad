// The layouts that `plan` finds for small models of the presets' architectures run on thread ranks, and their losses
// are those of nn::Decoder on one device.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <iostream>

#include "dtensor/launch.h"
#include "dtensor/optim.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "llm/hf/hf_config.h"
#include "llm/stage.h"
#include "plan/any_hardware.h"
#include "plan/cost/stage_step.h"
#include "plan/decoder_cost.h"
#include "program_data.h"
#include "train/model/model.h"

namespace plan {
namespace {

using namespace dtensor;

constexpr std::int64_t kSteps = 3;

// The architecture of a preset with small sizes.
nn::DecoderConfig small(const std::string& preset) {
  auto c = llm::read_family(program_data("plan/presets/" + preset)).config;
  c.vocabulary = 64, c.hidden = 64, c.ffn = 96, c.heads = 8, c.kv_heads = c.latent ? 8 : 4, c.head_size = 8;
  c.layers = *rc::gen::inRange(1, 4);
  c.layer.resize(static_cast<std::size_t>(std::min<std::int64_t>(c.layers, static_cast<std::int64_t>(c.layer.size()))));
  for (auto& layer : c.layer) layer.experts = c.experts.has_value();
  for (auto& rope : c.ropes) rope = {.size = 8};
  if (c.latent)
    c.latent = nn::LatentAttention{.q_rank = 16, .kv_rank = 8, .rope_size = 8, .nope_size = 8, .value_size = 8};
  if (!c.experts) return c.checked();
  auto& e = *c.experts;
  e.ffn = 32, e.shared_ffn = e.shared_ffn > 0 ? 32 : 0;
  e.router.experts = 8, e.router.top_k = 2, e.router.groups = e.router.top_groups = 1;
  e.router.choice = RouterChoice::round_robin, e.router.aux_loss = 0;
  e.balance_rate = 0;
  return c.checked();
}

at::Tensor tokens(const Workload& work, std::int64_t step) {
  const auto count = work.batch * work.sequence;
  return (at::arange(count, at::kLong) * (step + 7)).remainder(61).view({work.batch, work.sequence});
}

using Losses = std::vector<double>;
using State = std::map<std::string, at::Tensor>;

std::unique_ptr<AdamW> optimizer_of(nn::Module& model) {
  AdamW::Group group{.parameters = {}, .options = {.lr = 1e-2}, .names = {}};
  for (const auto& [name, tensor] : model.named_parameters()) {
    group.names.push_back(name), group.parameters.push_back(*tensor);
  }
  return std::make_unique<AdamW>(std::vector{std::move(group)});
}

// On the mesh of the layout; `initial` becomes the full parameters before the first step.
Losses run(const Communicator& world, const Workload& work, const ParallelLayout& l, State& initial) {
  const auto mesh =
      init_device_mesh(world, at::kCPU, {l.replicate, l.shard, l.cp, l.tp}, {"replicate", "shard", "cp", "tp"});
  nn::Decoder decoder(last_blocks(work.model, work.model.layers));
  llm::Stage model(decoder, {0, work.model.layers});
  model.distribute(mesh, l);
  manual_seed(mesh, 5);
  model.reset();
  for (const auto& [name, tensor] : model.named_parameters()) {
    initial[name] = DTensor(tensor->detach()).full_tensor().clone();
  }
  const auto optimizer = optimizer_of(model);
  const auto parts = [&](const at::Tensor& full, std::int64_t m) {
    const auto rows = work.batch / l.microbatches;
    return distribute_tensor(full.narrow(0, m * rows, rows), mesh, llm::Stage::placements());
  };
  Losses losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (std::int64_t m = 0; m < l.microbatches; ++m) {
      const auto logits = model(parts(tokens(work, step), m)).y;
      const auto loss =
          train::token_loss(logits, parts(tokens(work, step + 1), m)) / static_cast<double>(l.microbatches);
      model.backward(loss, {}, m + 1 == l.microbatches);
      sum += DTensor(loss.detach()).full_tensor().item<double>();
    }
    optimizer->step(), optimizer->zero_grad();
    losses.push_back(sum);
  }
  return losses;
}

Losses reference(const Workload& work, const State& initial) {
  auto config = work.model;
  config.tensor = at::TensorOptions(at::kFloat);
  nn::Decoder model(config);
  for (const auto& [name, tensor] : model.named_parameters()) {
    const at::NoGradGuard no_grad;
    tensor->copy_(initial.at(name));
  }
  const auto optimizer = optimizer_of(model);
  Losses losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto logits = model.head(model.hidden(tokens(work, step))).flatten(0, 1);
    const auto loss = at::cross_entropy_loss(logits, tokens(work, step + 1).flatten());
    loss.backward();
    optimizer->step(), optimizer->zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void found_layout_runs() {
  const std::string preset =
      *rc::gen::elementOf(std::vector<std::string>{"llama3-8b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"});
  const Workload work{small(preset), 8, 16};
  const auto hardware = any_hardware();
  LayoutSpace space{.ranks = 8, .max_cp = 2, .microbatches = {1, 2}, .bf16 = {false}};
  space.recompute = {Recomputation::none, Recomputation::selective, Recomputation::full};
  if (work.model.experts) space.max_ep = 8;
  const auto program = planned_decoder(work, hardware);
  auto plan = search_layouts(enumerate_layouts(space), program, {});
  RC_ASSERT(!plan.fitting.empty());
  const SearchLimits tight{.memory_bytes = plan.fitting.front().cost.peak_bytes * 7 / 10};
  if (*rc::gen::element(false, true)) {
    if (auto small = search_layouts(enumerate_layouts(space), program, tight); !small.fitting.empty()) plan = small;
  }
  const auto layout = plan.fitting.front().layout;
  std::cout << preset << ": " << layout.str() << std::endl;
  Losses losses;
  State initial;
  run_local(8, [&](const Communicator& world) {
    State mine;
    auto found = run(world, work, layout, mine);
    if (world.rank() == 0) losses = std::move(found), initial = std::move(mine);
  });
  const auto expected = reference(work, initial);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs(losses.at(i) - expected[i]) / expected[i];
    RC_ASSERT(apart < 2e-5 || (RC_LOG() << preset << " " << layout.str() << ": " << losses[i] << " instead of "
                                        << expected[i] << " in step " << i,
                               false));
  }
}

// What a search says of a layout's memory is what ranks that run it allocate.
void said_peak_is_measured() {
  const std::string preset =
      *rc::gen::elementOf(std::vector<std::string>{"llama3-8b", "mixtral-8x7b", "qwen3-235b-a22b"});
  const Workload work{small(preset), 16, 64};
  auto hardware = any_hardware();
  hardware.asynchronous = false;  // as thread ranks
  LayoutSpace space{.ranks = 4, .max_cp = 2, .microbatches = {1, 2, 4}, .bf16 = {false}};
  space.recompute = {Recomputation::none, Recomputation::full};
  space.reshard = space.accumulate_sharded = space.offload = {true, false};
  if (work.model.experts) space.max_ep = 4;
  const auto layout = *rc::gen::elementOf(enumerate_layouts(space));
  const auto program = planned_decoder(work, hardware, /*exact=*/true);
  RC_PRE(program.reject(layout).empty());
  const auto said = static_cast<double>(program.cost(layout).peak_bytes);
  const auto measured = static_cast<double>(measure_peak(work, layout));
  RC_ASSERT(std::abs(said - measured) < 0.01 * measured ||
            (RC_LOG() << preset << " " << layout.str() << ": " << said << " said, " << measured << " measured", false));
}

// Two blocks, dense or with experts. LibTorch's products in float8 are slow on CPUs.
nn::DecoderConfig tiny(bool experts) {
  nn::DecoderConfig c{.vocabulary = 256, .hidden = 32, .layers = 2, .ffn = 64, .heads = 4, .kv_heads = 2};
  c.ropes = {{.size = 8}};
  if (!experts) return c.checked();
  c.layer.assign(2, {.experts = true});
  c.experts.emplace().router = {.experts = 4, .top_k = 2, .choice = RouterChoice::round_robin};
  c.experts->ffn = 32;
  return c.checked();
}

void said_peak_of_arithmetic_is_measured(const ParallelLayout& layout, bool experts) {
  auto hardware = HardwareModel::read(program_data("plan/hardware/h100.json"));
  hardware.asynchronous = false;  // as thread ranks
  const Workload work{tiny(experts), 8, 32};
  const auto program = planned_decoder(work, hardware, /*exact=*/true);
  ASSERT_EQ(program.reject(layout), "");
  const auto said = static_cast<double>(program.cost(layout).peak_bytes);
  const auto measured = static_cast<double>(measure_peak(work, layout));
  EXPECT_NEAR(said / measured, 1, 0.01) << layout.str() << (experts ? ", experts" : "");
}

TEST(DecoderRuns, SaidPeakOfEachArithmeticIsMeasured) {
  for (const bool experts : {false, true}) {
    for (ParallelLayout l : {ParallelLayout{.shard = 4}, ParallelLayout{.shard = 2, .tp = 2}}) {
      l.ep = experts ? 2 : 1;
      l.optimizer = "muon";
      said_peak_of_arithmetic_is_measured(l, experts);
      l.bf16 = l.bf16_parameters = true;
      said_peak_of_arithmetic_is_measured(l, experts);
      l.optimizer = "adamw";
      said_peak_of_arithmetic_is_measured(l, experts);
      l.bf16_parameters = false, l.float8 = true;
      said_peak_of_arithmetic_is_measured(l, experts);
    }
  }
}

// The memory of the device; thread ranks have the host's in the same place.
TEST(DecoderRuns, SaidPeakOfOffloadingIsMeasured) {
  for (ParallelLayout l : {ParallelLayout{.shard = 4}, ParallelLayout{.replicate = 2, .shard = 2, .microbatches = 2},
                           ParallelLayout{.shard = 2, .tp = 2}, ParallelLayout{}}) {
    l.offload = true;
    said_peak_of_arithmetic_is_measured(l, false);
    l.recompute = Recomputation::full, l.reshard = false;
    said_peak_of_arithmetic_is_measured(l, false);
    l.bf16 = true;
    said_peak_of_arithmetic_is_measured(l, false);
    l.bf16_parameters = true;
    said_peak_of_arithmetic_is_measured(l, false);
  }
}

TEST(DecoderRuns, SaidPeakIsMeasured) {
  dtensor::test::check_property("the peak that a plan says is that of a run", said_peak_is_measured, 4);
}

// RC_PARAMS="max_success=20" runs as many.
TEST(DecoderRuns, FoundLayoutsEqualOneDevice) {
  dtensor::test::check_property("the layout of a decoder equals one device", found_layout_runs, 2);
}

}  // namespace
}  // namespace plan
