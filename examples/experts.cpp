// A mixture of experts: each rank stores some of the experts, and tokens travel to theirs and back. The dense layers
// are replicated over the same ranks. Prints how evenly the router spreads the tokens.
//   experts --ranks 4     mpirun -n 4 experts
#include <dtensor/dtensor.h>
#include <dtensor/moe.h>

#include <cstdio>

using namespace dtensor;

constexpr std::int64_t kTokens = 64, kHidden = 32, kExperts = 8;

// Predicts the next token from the current one.
struct Model : nn::Callable<Model> {
  Model() { register_module("embed", embed), register_module("moe", moe), register_module("head", head); }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = embed(ids);
    auto [y, balance] = moe.call_with_loss(x);
    balance_loss = balance;
    return head(x + y);
  }
  nn::Embedding embed{kTokens, kHidden};
  MixtureOfExperts moe{{.hidden = kHidden, .ffn = 64, .router = {.experts = kExperts, .top_k = 2, .aux_loss = 1e-2}}};
  nn::Linear head{kHidden, kTokens, /*bias=*/false};
  at::Tensor balance_loss;
};

void train(const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"dp"});
  const DeviceMesh experts = mesh.view({1, world.size()}, {"edp", "ep"});  // the same ranks, as the experts see them
  manual_seed(mesh, 0);
  const at::Tensor ids = distribute_tensor(at::arange(256).mul(7).remainder(kTokens).view({16, 16}), mesh, {Shard(0)});
  const at::Tensor labels = ids.mul(5).add(3).remainder(kTokens);

  const MeshScope scope(mesh);
  Model model;
  apply_expert_parallel(model, experts);
  model.reset();
  AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor loss = cross_entropy(model(ids), labels);
    (loss + model.balance_loss).backward();
    optimizer.step();
    optimizer.zero_grad();
    const double value = loss.item<double>();
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
}

int main(int argc, char** argv) { return launch(argc, argv, train); }
