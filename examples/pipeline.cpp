// A pipeline: each rank has one stage of a deep perceptron, and microbatches flow through the stages. The loss and the
// clipped gradients are those of one device.
//   pipeline --ranks 4     mpirun -n 4 pipeline
#include <dtensor/dtensor.h>
#include <dtensor/pipeline.h>

#include <cstdio>

using namespace dtensor;

constexpr int kLayers = 4, kMicrobatches = 8;
constexpr std::int64_t kFeatures = 16;

// Layers number first to last - 1 of the model.
struct Stage : nn::Callable<Stage> {
  Stage(int first, int last) {
    for (int i = first; i < last; ++i) {
      layers.push_back(std::make_unique<nn::Linear>(kFeatures, kFeatures));
      register_module(std::to_string(i), *layers.back());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = x + at::tanh((*layer)(x));
    return x;
  }
  std::vector<std::unique_ptr<nn::Linear>> layers;
};

// The same values on every rank. Regular tensors of thread ranks share one generator, so at::randn would differ.
at::Tensor some_values(at::IntArrayRef sizes, int seed) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).mul(1.7).add(40 * seed).sin().view(sizes);
}

at::Tensor mean_squared_error(const pipeline::Tensors& out, const pipeline::Tensors& targets) {
  return at::mse_loss(out[0], targets[0]);
}

void train(const Communicator& world) {
  TORCH_CHECK(kLayers % world.size() == 0, "pipeline: expected a number of ranks that divides ", kLayers,
              " layers, got ", world.size());
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"pp"});
  const auto schedule = pipeline::make_schedule(world.size() > 1 ? "1f1b" : "gpipe", world.size(), kMicrobatches);
  pipeline::Pipeline pipe(mesh, schedule, mean_squared_error);

  const int stage = pipe.stages()[0], each = kLayers / world.size();
  Stage layers(stage * each, (stage + 1) * each);
  for (int i = 0; i < each; ++i) {  // values that depend on the layer's number in the model only
    layers.layers[i]->weight.data().copy_(some_values({kFeatures, kFeatures}, stage * each + i).mul(0.1));
    layers.layers[i]->bias.data().zero_();
  }
  const at::Tensor x = some_values({64, kFeatures}, kLayers), target = x.roll(1, 1).tanh();
  pipe.set_stage(
      stage, [&](const pipeline::Tensors& in) { return pipeline::Tensors{layers(in[0])}; }, layers.parameters());

  AdamW optimizer(layers.parameters(), {.lr = 1e-2});
  const bool first = stage == 0, last = stage == pipe.last_stage();
  const auto inputs = pipeline::microbatches(x, kMicrobatches), targets = pipeline::microbatches(target, kMicrobatches);
  std::vector<pipeline::Tensors> in, expected;  // the first stage gets inputs, the last one targets
  for (int i = 0; i < kMicrobatches; ++i) {
    if (first) in.push_back({inputs[i]});
    if (last) expected.push_back({targets[i]});
  }
  for (int step = 1; step <= 60; ++step) {
    const auto result = pipe.step(in, expected);
    pipe.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    const double value = result.loss.item<double>();  // the same on every rank
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
}

int main(int argc, char** argv) { return launch(argc, argv, train); }
