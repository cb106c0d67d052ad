// Unmodified torch::nn modules, created in a MeshScope and trained for two steps, equal one device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/dtensor.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
namespace tnn = torch::nn;

struct ConvNet : tnn::Module {
  ConvNet()
      : conv1(register_module("conv1", tnn::Conv2d(tnn::Conv2dOptions(3, 6, 3).padding(1)))),
        norm(register_module("norm", tnn::BatchNorm2d(6))),
        conv2(register_module("conv2", tnn::Conv2d(tnn::Conv2dOptions(6, 4, 3).stride(2)))),
        head(register_module("head", tnn::Linear(4 * 3 * 3, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::max_pool2d(torch::relu(norm(conv1(x))), 2);
    return head(torch::relu(conv2(h)).flatten(1));
  }
  tnn::Conv2d conv1;
  tnn::BatchNorm2d norm;
  tnn::Conv2d conv2;
  tnn::Linear head;
};

struct Recurrent : tnn::Module {
  Recurrent()
      : lstm(register_module("lstm", tnn::LSTM(tnn::LSTMOptions(6, 8).num_layers(2).batch_first(true)))),
        head(register_module("head", tnn::Linear(8, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x))); }
  tnn::LSTM lstm;
  tnn::Linear head;
};

struct Attention : tnn::Module {
  Attention()
      : attention(register_module("attention", tnn::MultiheadAttention(8, 2))),
        head(register_module("head", tnn::Linear(8, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(attention(x, x, x))); }
  tnn::MultiheadAttention attention;
  tnn::Linear head;
};

struct Encoder : tnn::Module {
  Encoder()
      : layer(register_module("layer", tnn::TransformerEncoderLayer(
                                           tnn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0)))),
        head(register_module("head", tnn::Linear(8, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return head(layer(x)); }
  tnn::TransformerEncoderLayer layer;
  tnn::Linear head;
};

std::vector<at::Tensor> state_of(tnn::Module& model) {
  std::vector<at::Tensor> all = model.parameters();
  for (const at::Tensor& b : model.buffers()) all.push_back(b);
  return all;
}

at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).full_tensor().clone() : t.detach(); }

// Two steps of SGD with momentum; returns the losses and the final state.
template <class Model>
std::vector<at::Tensor> train(Model& model, const at::Tensor& x, const at::Tensor& target) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (model.forward(x) - target).square().mean();
    loss.backward();
    optimizer.step();
    seen.push_back(full(loss));
  }
  for (const at::Tensor& t : state_of(model)) seen.push_back(full(t));
  return seen;
}

// `batch`: the batch dimension of x.
template <class Model>
void expect_equal(const test::Shape& x_sizes, const test::Shape& y_sizes, std::int64_t batch) {
  for (const auto& shape : {test::Shape{2}, test::Shape{3}, test::Shape{2, 2}}) {
    for (const bool sharded : {false, true}) {
      test::on_mesh(shape, [&](const DeviceMesh& mesh) {
        Placements place(shape.size()), data(shape.size(), Replicate());
        if (sharded) place.back() = Shard(0).as_storage();
        data[0] = Shard(batch);
        manual_seed(mesh, 4);
        const auto model = [&] {
          const MeshScope scope(mesh, place);
          return std::make_shared<Model>();
        }();
        model->to(at::kDouble);
        test::Draw draw(8);
        const at::Tensor x = draw.normal(x_sizes), y = draw.normal(y_sizes);
        // Thread ranks share ATen's generator, but every value is overwritten.
        Model regular;
        regular.to(at::kDouble);
        {
          const torch::NoGradGuard no_grad;
          const auto from = state_of(*model), to = state_of(regular);
          ASSERT_EQ(from.size(), to.size());
          for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(full(from[i]));
        }
        for (const at::Tensor& p : model->parameters()) ASSERT_TRUE(is_dtensor(p));
        const auto expected = train(regular, x, y);
        const auto actual = train(*model, distribute_tensor(x, mesh, data), distribute_tensor(y, mesh, data));
        for (std::size_t i = 0; i < expected.size(); ++i) {
          test::expect_close(actual[i], expected[i],
                             mesh.str() + " sharded " + std::to_string(sharded) + " value " + std::to_string(i));
        }
      });
    }
  }
}

TEST(TorchNn, ConvolutionsAndBatchNormEqualOneDevice) { expect_equal<ConvNet>({6, 3, 8 + 6, 8 + 6}, {6, 5}, 0); }
TEST(TorchNn, LstmEqualsOneDevice) { expect_equal<Recurrent>({5, 4, 6}, {5, 4, 5}, 0); }
TEST(TorchNn, MultiheadAttentionEqualsOneDevice) { expect_equal<Attention>({4, 5, 8}, {4, 5, 5}, 1); }
TEST(TorchNn, TransformerEncoderLayerEqualsOneDevice) { expect_equal<Encoder>({4, 5, 8}, {4, 5, 5}, 1); }

// parallelize() redistributes such a module in place. It refuses one that was created outside of a MeshScope, and
// recommends a MeshScope.
TEST(TorchNn, IsParallelizedIfCreatedInAMeshScope) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"tp"});
    const auto model = [&] {
      const MeshScope scope(mesh);
      return std::make_shared<Attention>();
    }();
    parallelize(*model, mesh, {{"head", ColwiseParallel()}});
    EXPECT_EQ(DTensor(model->head->weight).placements(), Placements{Shard(0)});
    Attention outside;
    EXPECT_THROW(parallelize(outside, mesh, {{"head", ColwiseParallel()}}), c10::Error);
  });
}

// Parameters and buffers under their own names, from a mesh to a model on one device.
TEST(TorchNn, IsSavedFromAMeshAndLoadedOnOneDevice) {
  const test::Folder temporary;
  const std::string folder = temporary / "saved";
  std::vector<at::Tensor> expected;
  test::on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto model = [&] {
      const MeshScope scope(mesh, {Shard(0)});
      return std::make_shared<ConvNet>();
    }();
    Checkpoint().add("model", *model).save(folder, mesh.world(), {.sync = false});
    std::vector<at::Tensor> state;
    for (const at::Tensor& t : state_of(*model)) state.push_back(full(t.detach()));
    if (mesh.world().rank() == 0) expected = state;
  });
  ConvNet regular;
  run_local(1, [&](Communicator world) { Checkpoint().add("model", regular).load(folder, world); });
  const auto loaded = state_of(regular);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(loaded[i].detach(), expected[i])) << i;
}

}  // namespace
