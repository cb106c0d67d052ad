// The smallest training program: a classifier in plain ATen, its batch split over all ranks. As under
// DistributedDataParallel each rank has all parameters; gradients are summed because the batch is sharded.
//   minimal --ranks 4     mpirun -n 4 minimal
#include <dtensor/dtensor.h>

#include <cstdio>

using namespace dtensor;

struct Classifier : nn::Callable<Classifier> {
  Classifier() { register_module("up", up), register_module("down", down); }
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  nn::Linear up{32, 64}, down{64, 10};
};

void train(const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"dp"});
  manual_seed(mesh, 0);                                    // the same random numbers on any number of ranks
  const at::Tensor x = randn({64, 32}, mesh, {Shard(0)});  // each rank stores its rows
  const at::Tensor labels = at::matmul(x, randn({32, 10}, mesh, {Replicate()})).argmax(1);

  const MeshScope scope(mesh);  // parameters are made on the mesh, replicated
  Classifier model;
  AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor loss = cross_entropy(model(x), labels);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const double value = loss.item<double>();  // the loss of all 64 rows, the same on every rank
    if (step % 10 == 0 && world.rank() == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
}

int main(int argc, char** argv) { return launch(argc, argv, train); }
