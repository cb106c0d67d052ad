// Tensor and sequence parallelism: a plan splits the layers of a decoder over all ranks, and the activations between
// them along the sequence. The vocabulary is split too: no rank stores all logits.
//   tensor_parallel --ranks 4     mpirun -n 4 tensor_parallel
#include <dtensor/dtensor.h>

#include <cstdio>

using namespace dtensor;

constexpr std::int64_t kTokens = 64, kHidden = 32, kSequence = 16;

// A decoder in plain ATen. It knows no mesh.
struct Decoder : nn::Callable<Decoder> {
  Decoder() {
    register_module("embed", embed);
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(std::make_unique<nn::Block>(nn::Attention::Options{.hidden = kHidden, .heads = 4, .rope = 10000},
                                                   nn::MLP::Options{.hidden = kHidden, .ffn = 64}));
      register_module("blocks." + std::to_string(i), *blocks.back());
    }
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    for (auto& block : blocks) x = (*block)(x);
    return head(x);
  }
  nn::Embedding embed{kTokens, kHidden};
  std::vector<std::unique_ptr<nn::Block>> blocks;
  nn::Linear head{kHidden, kTokens, /*bias=*/false};
};

// Sequences in which a token determines the next one: [batch, kSequence + 1], the same on every rank.
at::Tensor sequences(std::int64_t batch) {
  std::vector<at::Tensor> columns{at::arange(batch).mul(7).remainder(kTokens)};
  while (columns.size() <= kSequence) columns.push_back(columns.back().mul(5).add(3).remainder(kTokens));
  return at::stack(columns, 1);
}

// One line for each kind of layer. Heads are blocks of 8 features, which no rank splits.
const ParallelPlan kPlan = {
    {"embed", RowwiseParallel{.out = Shard(1)}},
    {"blocks.*.ln*", SequenceParallel()},
    {"blocks.*.attn", PrepareModuleInput{Replicate()}},
    {"blocks.*.attn.q_proj", ColwiseParallel{.in = {}, .block = 8}},
    {"blocks.*.attn.k_proj", ColwiseParallel{.in = {}, .block = 8}},
    {"blocks.*.attn.v_proj", ColwiseParallel{.in = {}, .block = 8}},
    {"blocks.*.attn.o_proj", RowwiseParallel{.out = Shard(1), .block = 8}},
    {"blocks.*.mlp.up_proj", ColwiseParallel{.in = Replicate()}},
    {"blocks.*.mlp.down_proj", RowwiseParallel{.out = Shard(1)}},
    {"head", ColwiseParallel{.in = Replicate()}},
};

void train(const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"tp"});
  manual_seed(mesh, 0);
  const at::Tensor data = distribute_tensor(sequences(/*batch=*/16), mesh, {Replicate()});
  const at::Tensor ids = data.narrow(1, 0, kSequence), labels = data.narrow(1, 1, kSequence);

  Decoder model;
  const ParallelModel parallel = parallelize(model, mesh, kPlan);
  model.reset();  // the same values on any number of ranks
  if (world.rank() == 0) std::printf("%s", parallel.str().c_str());
  AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor loss = cross_entropy(model(ids), labels);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const double value = loss.item<double>();
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
}

int main(int argc, char** argv) { return launch(argc, argv, train); }
