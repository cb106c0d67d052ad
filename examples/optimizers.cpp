// One optimizer over several meshes: matrices on a mesh of two axes take steps of Muon, a bias that is split over all
// ranks takes steps of AdamW. One norm over all of them clips their gradients, and the learning rate follows a cosine.
//   optimizers --ranks 4     mpirun -n 4 optimizers
#include <dtensor/dtensor.h>

#include <cstdio>

using namespace dtensor;

void train(const Communicator& world) {
  const int tp = world.size() % 2 == 0 ? 2 : 1;
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size() / tp, tp}, {"shard", "tp"});
  const DeviceMesh line = mesh.view({world.size()}, {"all"});  // the same ranks in one axis
  manual_seed(mesh, 0);
  const at::Tensor x = randn({64, 16}, mesh, {Shard(0), Replicate()});
  const at::Tensor target = at::matmul(x, randn({16, 8}, mesh, {Replicate(), Replicate()})).tanh();

  // Muon orthogonalizes the update of a matrix, however it is sharded.
  at::Tensor up = randn({16, 32}, mesh, {Shard(0), Shard(1)}).mul(0.2).requires_grad_();
  at::Tensor down = randn({32, 8}, mesh, {Shard(1), Shard(0)}).mul(0.2).requires_grad_();
  at::Tensor bias = zeros({8}, line, {Shard(0)}).requires_grad_();
  const std::vector<at::Tensor> parameters = {up, down, bias};
  const auto optimizer = muon_with_adamw({up, down}, {.lr = 0.02}, {bias}, {.lr = 0.01});
  const LearningRate rate = LearningRate::cosine(0.02, /*steps=*/40).after_warmup(4);
  for (int step = 1; step <= 40; ++step) {
    optimizer->set_lr(rate(step));
    // An operator takes operands of one mesh. Autograd brings the gradient back to the bias's own.
    const at::Tensor y =
        at::matmul(at::gelu(at::matmul(x, up)), down) + DTensor(bias).redistribute(mesh, {Replicate(), Shard(0)});
    const at::Tensor loss = at::mse_loss(y, target);
    loss.backward();
    const double norm = clip_grad_norm_(parameters, 1.0).item<double>();
    optimizer->step();
    optimizer->zero_grad();
    const double value = loss.item<double>();
    if (world.rank() == 0 && step % 10 == 0)
      std::printf("step %d  loss %.4f  norm of gradients %.3f\n", step, value, norm);
  }
}

int main(int argc, char** argv) { return launch(argc, argv, train); }
