// Time of one training step of a small GPT in stages, in plain ATen, compared with one device. Model, batch and
// optimizer are those of peers/bench_pipeline.py, which measures PyTorch. Run it with threads (--ranks N) or under
// mpirun.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dtensor/dtensor.h>
#include <dtensor/optim.h>
#include <dtensor/pipeline.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "timing.h"

namespace {

using namespace dtensor;
using pipeline::Tensors;

constexpr std::int64_t kLayers = 4, kVocabulary = 512, kBatch = 8, kTokens = 16, kHeads = 4;

struct Block {
  at::Tensor norm1, bias1, qkv, out, norm2, bias2, up, down;
};

struct Model {
  explicit Model(std::int64_t h) : hidden(h) {
    const auto matrix = [](std::int64_t rows, std::int64_t columns) {
      return (at::randn({rows, columns}) / std::sqrt(static_cast<double>(columns))).requires_grad_();
    };
    const auto vector = [&](double value) { return at::full({h}, value).requires_grad_(); };
    embedding = at::randn({kVocabulary, h}).requires_grad_();
    for (int i = 0; i < kLayers; ++i) {
      blocks.push_back({vector(1), vector(0), matrix(3 * h, h), matrix(h, h), vector(1), vector(0), matrix(4 * h, h),
                        matrix(h, 4 * h)});
    }
    norm = vector(1);
    bias = vector(0);
    head = matrix(kVocabulary, h);
  }
  // Layer 0 includes the embedding, the last layer the head.
  Tensors run(int layer, const Tensors& in) const {
    const Block& b = blocks[static_cast<std::size_t>(layer)];
    at::Tensor x = layer == 0 ? at::embedding(embedding, in[0]) : in[0];
    const auto batch = x.size(0);
    const auto heads = at::linear(at::layer_norm(x, {hidden}, b.norm1, b.bias1), b.qkv)
                           .view({batch, kTokens, 3, kHeads, hidden / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0, /*is_causal=*/true);
    x = x + at::linear(mixed.transpose(1, 2).reshape({batch, kTokens, hidden}), b.out);
    x = x + at::linear(at::gelu(at::linear(at::layer_norm(x, {hidden}, b.norm2, b.bias2), b.up)), b.down);
    if (layer + 1 < kLayers) return {x};
    return {at::linear(at::layer_norm(x, {hidden}, norm, bias), head)};
  }
  std::vector<at::Tensor> parameters(int layer) const {
    const Block& b = blocks[static_cast<std::size_t>(layer)];
    std::vector<at::Tensor> all{b.norm1, b.bias1, b.qkv, b.out, b.norm2, b.bias2, b.up, b.down};
    if (layer == 0) all.push_back(embedding);
    if (layer + 1 == kLayers) all.insert(all.end(), {norm, bias, head});
    return all;
  }

  std::int64_t hidden;
  at::Tensor embedding, norm, bias, head;
  std::vector<Block> blocks;
};

at::Tensor mean_loss(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten());
}

std::vector<Tensors> parts(const at::Tensor& batch, int count) {
  std::vector<Tensors> result;
  for (const auto& part : pipeline::microbatches(batch, count)) result.push_back({part});
  return result;
}

double median_ms(const Communicator& world, int iterations, const std::function<void()>& step) {
  std::vector<double> times;
  for (int i = 0; i < iterations + 3; ++i) {
    world.barrier();
    const auto begin = bench::Clock::now();
    step();
    world.barrier();
    if (i >= 3) times.push_back(bench::microseconds_since(begin) / 1000);
  }
  return bench::median(times);
}

void measure(const Communicator& world, const std::string& name, std::int64_t hidden, int count, int iterations) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"pp"});
  pipeline::Pipeline pipe(mesh, pipeline::make_schedule(name, static_cast<int>(world.size()), count), mean_loss);
  const Model model(hidden);
  std::vector<pipeline::Layer> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back({std::to_string(i), [&model, i](const Tensors& in) { return model.run(i, in); }});
  }
  const auto stage_of = pipeline::balanced_stages(std::vector<double>(kLayers, 1), pipe.last_stage() + 1);
  std::vector<at::Tensor> own;
  for (const int stage : pipe.stages()) {
    for (int i = 0; i < kLayers; ++i) {
      if (stage_of[static_cast<std::size_t>(i)] != stage) continue;
      for (const at::Tensor& p : model.parameters(i)) own.push_back(p);
    }
    pipe.set_stage(stage, pipeline::stage_of_layers(layers, stage_of, stage));
  }
  AdamW optimizer(own, {.lr = 1e-3});
  const at::Tensor ids = at::randint(kVocabulary, {kBatch, kTokens}, at::kLong);
  const auto inputs = parts(ids, count);
  const double ms = median_ms(world, iterations, [&] {
    pipe.step(inputs, inputs);
    optimizer.step();
    optimizer.zero_grad();
  });
  if (world.rank() > 0) return;
  const nlohmann::json line{{"schedule", name}, {"backend", world.backend_name()}, {"ranks", world.size()},
                            {"hidden", hidden}, {"microbatches", count},           {"ms_median", ms}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, iterations = 30, microbatches = 8;
  std::int64_t hidden = 64;
  CLI::App app("Time of one training step of a small GPT in pipeline stages");
  app.add_option("--ranks", ranks, "thread ranks, without a launcher")->check(CLI::PositiveNumber);
  app.add_option("--iterations", iterations, "of each")->check(CLI::PositiveNumber);
  app.add_option("--microbatches", microbatches, "microbatches of a batch of 8")->check(CLI::Range(1, 8));
  app.add_option("--hidden", hidden, "hidden size, a multiple of 4")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  return launch(argc, argv, [&](const Communicator& world) {
    for (const std::string& name : pipeline::schedule_names()) measure(world, name, hidden, microbatches, iterations);
  });
}
