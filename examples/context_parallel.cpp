// Context parallelism: each rank stores a part of every sequence. Attention sees full sequences by passing keys and
// values around a ring, and the parts are chosen so that causal attention is balanced.
//   context_parallel --ranks 4     mpirun -n 4 context_parallel
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

void train(const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"cp"});
  manual_seed(mesh, 0);
  const at::Tensor data = sequences(/*batch=*/16);
  // Dimension 1 is the sequence: a chunk from its start and one from its end on each rank.
  const at::Tensor ids = distribute_tensor(data.narrow(1, 0, kSequence), mesh, {ZigzagShard(1)});
  const at::Tensor labels = distribute_tensor(data.narrow(1, 1, kSequence), mesh, {ZigzagShard(1)});

  const MeshScope scope(mesh);  // parameters are replicated
  Decoder model;
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
