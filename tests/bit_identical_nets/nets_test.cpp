// Training of convolution nets and of an LSTM in a BitIdentical scope: parameters, running statistics and optimizer
// states have the bits of one device.
#include <torch/torch.h>

#include "bit_identical/bits.h"
#include "dtensor/nn.h"
#include "dtensor/optim.h"
#include "dtensor/random.h"

namespace dtensor::test {
namespace {

namespace tnn = torch::nn;

struct ConvNet : tnn::Module {
  ConvNet()
      : conv1(register_module("conv1", tnn::Conv2d(tnn::Conv2dOptions(3, 6, 3).padding(1)))),
        norm(register_module("norm", tnn::BatchNorm2d(6))),
        conv2(register_module("conv2", tnn::Conv2d(tnn::Conv2dOptions(6, 8, 3).stride(2)))),
        head(register_module("head", tnn::Linear(8 * 3 * 3, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::max_pool2d(torch::relu(norm(conv1(x))), 2);
    return head(torch::relu(conv2(h)).flatten(1));
  }
  tnn::Conv2d conv1;
  tnn::BatchNorm2d norm;
  tnn::Conv2d conv2;
  tnn::Linear head;
};

struct Block : tnn::Module {
  Block(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv(register_module("conv", tnn::Conv2d(tnn::Conv2dOptions(in, out, 3).stride(stride).padding(1)))),
        norm(register_module("norm", tnn::GroupNorm(tnn::GroupNormOptions(2, out)))) {}
  at::Tensor forward(const at::Tensor& x) { return at::silu(norm(conv(x))); }
  tnn::Conv2d conv;
  tnn::GroupNorm norm;
};

struct UNet : tnn::Module {
  UNet()
      : top(register_module("top", std::make_shared<Block>(3, 4, 1))),
        down(register_module("down", std::make_shared<Block>(4, 8, 2))),
        low(register_module("low", std::make_shared<Block>(8, 16, 2))),
        up(register_module("up", tnn::ConvTranspose2d(tnn::ConvTranspose2dOptions(16, 8, 2).stride(2)))),
        middle(register_module("middle", std::make_shared<Block>(16, 4, 1))),
        last(register_module("last", tnn::Conv2d(tnn::Conv2dOptions(8, 2, 1)))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = top->forward(x), b = down->forward(a);
    const at::Tensor c = middle->forward(at::cat({up(low->forward(b)), b}, 1));
    return last(at::cat({at::upsample_nearest2d(c, x.sizes().slice(2)), a}, 1));
  }
  std::shared_ptr<Block> top, down, low;
  tnn::ConvTranspose2d up;
  std::shared_ptr<Block> middle;
  tnn::Conv2d last;
};

struct Recurrent : tnn::Module {
  Recurrent()
      : lstm(register_module("lstm", tnn::LSTM(tnn::LSTMOptions(6, 8).num_layers(2).batch_first(true)))),
        head(register_module("head", tnn::Linear(8, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x))); }
  tnn::LSTM lstm;
  tnn::Linear head;
};

// The mesh, and the placements of parameters and data.
struct Setting {
  Shape mesh = {1};
  Placements parameters = {Replicate()}, data = {Replicate()};
  std::int64_t microbatches = 1;
};

std::string text_of(const Setting& s) {
  return c10::str("mesh ", at::IntArrayRef(s.mesh), " parameters ", to_string(s.parameters), " data ",
                  to_string(s.data), " microbatches ", s.microbatches);
}

// Parameters, buffers and optimizer states after four steps.
template <class Model>
Tensors train(const DeviceMesh& mesh, const Setting& setting, const Shape& x_sizes, const Shape& y_sizes) {
  manual_seed(mesh, 4);
  const auto model = [&] {
    const MeshScope scope(mesh, setting.parameters);
    return std::make_shared<Model>();
  }();
  Draw draw(8);
  AdamW optimizer(model->parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  const BitIdentical scope(16);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = draw.normal(x_sizes, at::kFloat), y = draw.normal(y_sizes, at::kFloat);
    const auto count = x.size(0) / setting.microbatches;
    for (std::int64_t i = 0; i < setting.microbatches; ++i) {
      const auto place = [&](const at::Tensor& t) {
        return at::Tensor(distribute_tensor(t.narrow(0, i * count, count).contiguous(), mesh, setting.data));
      };
      (at::mse_loss(model->forward(place(x)), place(y)) / static_cast<double>(setting.microbatches)).backward();
    }
    clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  Tensors results;
  for (const at::Tensor& p : model->parameters()) {
    results.push_back(full_of(p.detach()).clone());
    for (const auto& [name, state] : optimizer.state(p)) results.push_back(full_of(state).clone());
  }
  for (const at::Tensor& b : model->buffers()) results.push_back(full_of(b).clone());
  return results;
}

template <class Model>
void expect_equal_bits(const Shape& x_sizes, const Shape& y_sizes, std::vector<Setting> settings) {
  const auto run = [&](const Setting& setting, int threads) {
    const auto ranks = static_cast<int>(c10::multiply_integers(setting.mesh));
    return on_rank_0(ranks, threads, [&](const Communicator& world) {
      return train<Model>(init_device_mesh(world, at::kCPU, setting.mesh), setting, x_sizes, y_sizes);
    });
  };
  const Tensors expected = run({}, 1);
  for (const at::Tensor& t : expected) EXPECT_TRUE(t.to(at::kFloat).isfinite().all().item<bool>());
  EXPECT_NO_THROW(require_same_bits(run({}, 2), expected, "two threads"));
  const Placement stored = Shard(0).as_storage();
  settings.insert(settings.end(), {{{2}, {Replicate()}, {Shard(0)}},
                                   {{3}, {Replicate()}, {Shard(0)}},
                                   {{2}, {stored}, {Shard(0)}},
                                   {{3}, {stored}, {Shard(0)}}});
  for (const Setting& setting : settings) {
    EXPECT_NO_THROW(require_same_bits(run(setting, 1), expected, text_of(setting)));
  }
}

TEST(BitIdenticalNets, ConvolutionsAndBatchNorm) {
  expect_equal_bits<ConvNet>(
      {6, 3, 14, 14}, {6, 5},
      {{{2}, {Shard(0)}, {Replicate()}}, {{2, 2}, {Shard(0), Replicate()}, {Replicate(), Shard(0)}}});
}

TEST(BitIdenticalNets, UNet) {
  expect_equal_bits<UNet>({4, 3, 16, 12}, {4, 2, 16, 12},
                          {{{2}, {Replicate()}, {Shard(2)}},
                           {{3}, {Replicate()}, {Shard(3)}},
                           {{2, 2}, {Replicate(), Replicate()}, {Shard(2), Shard(3)}},
                           {{2, 2}, {Shard(0).as_storage(), Replicate()}, {Shard(0), Shard(2)}},
                           {{2}, {Shard(0)}, {Replicate()}},
                           {{1}, {Replicate()}, {Replicate()}, /*microbatches=*/2},
                           {{2}, {Replicate()}, {Shard(2)}, /*microbatches=*/2}});
}

TEST(BitIdenticalNets, Lstm) {
  const bool fuses = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);  // oneDNN's kernel of an LSTM is refused
  expect_equal_bits<Recurrent>({5, 4, 6}, {5, 4, 5}, {{{2}, {Shard(0)}, {Replicate()}}});
  at::globalContext().setUserEnabledMkldnn(fuses);
}

}  // namespace
}  // namespace dtensor::test
