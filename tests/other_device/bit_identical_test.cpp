// The BitIdentical scope on a device other than the CPU, with the products of the CUDA kernel. The device's elementwise
// kernels are those of the CPU, whose last elements are computed by other code, so local tensors have entire vectors.
#include "dtensor/bit_identical.h"

#include "bit_identical/bits.h"
#include "dtensor/attention.h"
#include "other_device/step.h"
#include "support/errors.h"
#include "support/leaf_products.h"
#include "train/model/loss.h"
#include "train/model/plan.h"

namespace dtensor::test {
namespace {

struct ProductsOnDevice {
  ProductsOnDevice() { fake::start(); }
  ProductKernels kernels{c10::DispatchKey::PrivateUse1};
};

// The results on rank 0 of a mesh of the device.
Tensors on_device(const Shape& shape, const Computation& compute, const Tensors& inputs, std::uint64_t seed) {
  Tensors results;
  on_device_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    std::vector<Placements> placements;
    for (const at::Tensor& t : inputs) placements.push_back(draw.placements_of(mesh, t.sizes(), /*partial=*/false));
    auto own = run_placed(mesh, compute, inputs, placements);
    if (mesh.world().rank() == 0) results = std::move(own);
  });
  for (at::Tensor& t : results) t = t.cpu();
  return results;
}

void expect_bits_on_device(const Computation& compute, const Tensors& inputs, const Tensors& expected,
                           std::uint64_t seed) {
  for (const Shape& shape : {Shape{1}, Shape{2}, Shape{3}, Shape{2, 2}}) {
    EXPECT_NO_THROW(require_same_bits(on_device(shape, compute, inputs, seed), expected,
                                      c10::str("seed ", seed, " mesh ", at::IntArrayRef(shape))));
  }
}

TEST(BitIdenticalOnDevice, SumsHaveTheBitsOfTheCpu) {
  const ProductsOnDevice products;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw draw(seed);
    const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kBFloat16};
    const Tensors inputs{draw.normal(draw.sizes(3, 1, 24), types[draw.integer(0, 2)])};
    const auto first = draw.integer(0, 2), second = draw.integer(0, 2);
    const auto compute = [=](const Tensors& in) -> Tensors {
      const std::vector<std::int64_t> dims = first == second ? Shape{first} : Shape{first, second};
      return {in[0].sum(dims), in[0].mean(), at::_foreach_norm({in[0]}, 2)[0]};
    };
    expect_bits_on_device(compute, inputs, on_one_device(compute, inputs, 1), seed);
  }
}

TEST(BitIdenticalOnDevice, ProductsHaveTheBitsOfTheCpu) {
  const ProductsOnDevice products;
  const bool in_order = cpu_adds_in_order();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Draw draw(seed);
    const auto type = in_order && draw.coin() ? at::kFloat : at::kDouble;
    const auto rows = draw.integer(1, 70), k = draw.integer(1, 90), n = draw.integer(1, 40);
    const Tensors inputs{draw.normal({2, rows, k}, type), draw.normal({n, k}, type), draw.normal({n}, type),
                         draw.normal({2, k, n}, type), draw.normal({2, rows, n}, type)};
    const auto compute =
        with_gradients([](const Tensors& in) { return at::linear(in[0], in[1], in[2]) + at::bmm(in[0], in[3]); });
    expect_bits_on_device(compute, inputs, on_one_device(compute, inputs, 1), seed);
  }
  EXPECT_GT(products_by_threads, 0);
}

TEST(BitIdenticalOnDevice, EqualIndicesHaveTheBitsOfTheCpu) {
  const ProductsOnDevice products;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Draw draw(seed);
    const at::Tensor ids = draw.integers({3, draw.integer(1, 50)}, 9);
    const Tensors inputs{draw.normal({9, 5}, at::kFloat), ids, draw.normal({3, ids.size(1), 5}, at::kFloat)};
    const auto compute = with_gradients([](const Tensors& in) { return at::embedding(in[0], in[1]); });
    expect_bits_on_device(compute, inputs, on_one_device(compute, inputs, 1), seed);
  }
}

// Results have the values of ATen, and on meshes that shard the rows the bits of one rank.
void expect_rows(const Function& function, const Tensors& inputs, const std::string& what) {
  const Computation compute = with_gradients(function);
  const auto run = [&](std::int64_t ranks) {
    Tensors results;
    on_device_mesh({ranks}, [&](const DeviceMesh& mesh) {
      std::vector<Placements> placements;
      for (const at::Tensor& t : inputs) placements.push_back({t.dim() > 1 ? Placement(Shard(0)) : Replicate()});
      auto own = run_placed(mesh, compute, inputs, placements);
      if (mesh.world().rank() == 0) results = std::move(own);
    });
    for (at::Tensor& t : results) t = t.cpu();
    return results;
  };
  const Tensors one = run(1), expected = compute(inputs);
  for (std::size_t i = 0; i < one.size(); ++i) expect_close(one[i], expected[i], what, 1e-4);
  for (const std::int64_t ranks : {2, 4}) EXPECT_NO_THROW(require_same_bits(run(ranks), one, what));
}

TEST(BitIdenticalOnDevice, RowsHaveTheBitsOfOneDeviceAndTheValuesOfAten) {
  const ProductsOnDevice products;
  Draw draw(7);
  const auto type = at::kFloat;
  const at::Tensor x = draw.normal({8, 32, 24}, type), grad = draw.normal({8, 32, 24}, type);
  at::Tensor hidden = x.clone();
  hidden.narrow(2, 5, 19).fill_(-std::numeric_limits<double>::infinity());
  hidden[3].fill_(-std::numeric_limits<double>::infinity());
  expect_rows([](const Tensors& in) { return at::softmax(in[0], -1); }, {x, grad}, "softmax");
  expect_rows([](const Tensors& in) { return at::softmax(in[0], 1); }, {x, grad}, "softmax of columns");
  expect_rows([](const Tensors& in) { return at::_safe_softmax(in[0], -1); }, {hidden, grad}, "safe softmax");
  expect_rows([](const Tensors& in) { return at::log_softmax(in[0], -1); }, {x, grad}, "log softmax");
  const at::Tensor w = draw.normal({24}, type), b = draw.normal({24}, type);
  expect_rows([](const Tensors& in) { return at::layer_norm(in[0], {24}, in[1], in[2]); }, {x, w, b, grad},
              "layer norm");
  expect_rows([](const Tensors& in) { return at::layer_norm(in[0], {32, 24}); }, {x, grad}, "layer norm of planes");
  expect_rows([](const Tensors& in) { return at::rms_norm(in[0], {24}, in[1], 1e-5); }, {x, w, grad}, "rms norm");
}

// Keys that no query sees change no bit, so cached and padded sequences have those of short ones.
TEST(BitIdenticalOnDevice, HiddenKeysChangeNoBit) {
  const ProductsOnDevice products;
  on_device_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(3);
    const auto heads = [&](std::int64_t length) { return draw.normal({2, 2, length, 16}, at::kFloat); };
    const at::Tensor q = heads(64), k = heads(50), v = heads(50);
    const auto attend = [&](std::int64_t more) {
      const BitIdentical scope(32);
      const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}); };
      const auto longer = [&](const at::Tensor& t) { return place(at::constant_pad_nd(t, {0, 0, 0, more}, 3)); };
      const at::Tensor seen = (at::arange(50 + more) < 50).expand({64, 50 + more}).to(fake::kDevice);
      return host_value(at::scaled_dot_product_attention(place(q), longer(k), longer(v), seen));
    };
    const at::Tensor expected = attend(0);
    expect_close(expected, at::scaled_dot_product_attention(q, k, v), "attention", 1e-5);
    for (const std::int64_t more : {1, 14, 200}) EXPECT_TRUE(same_bits(attend(more), expected)) << more;
  });
}

struct Layout {
  train::MeshShape shape = {};
  bool llama = false, units = false;
  bool bf16 = false;  // Parameters are gathered as bfloat16.
};

Tensors train_decoder(const Communicator& world, const Layout& layout) {
  const auto mesh = train::make_mesh(world, layout.shape, fake::kDevice);
  train::Options options;
  options.parallel = layout.units ? "fsdp" : "plain", options.bf16 = layout.bf16;
  train::GptConfig config;
  config.vocabulary = 128, config.hidden = 64, config.heads = 4, config.layers = 1, config.ffn = 128;
  if (layout.llama) {
    config.norm = nn::NormKind::rms, config.activation = nn::Activation::silu;
    config.gated = !layout.bf16, config.rope = true;  // The trainer keeps parameters named "gate" in float32.
  }
  config.tensor = config.tensor.device(at::kMeta);
  train::Gpt model(config);
  const auto units = train::distribute(model, mesh, options);
  manual_seed(mesh, 3);
  model.reset();
  AdamW optimizer(model.parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  Draw draw(5);
  const BitIdentical scope(16);
  for (int step = 0; step < 2; ++step) {
    const auto place = [&](const at::Tensor& t) {
      return train::place_batch(t, mesh, train::batch_placements(options));
    };
    const at::Tensor ids = draw.integers({4, 32}, config.vocabulary);
    train::token_losses(model(place(ids)).logits, place(at::roll(ids, -1, 1))).backward();
    clip_grad_norm_(model.parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  Tensors results;
  for (const at::Tensor& p : model.parameters()) results.push_back(host_value(p).clone());
  return results;
}

Tensors run_layout(const Layout& layout) {
  return on_rank_0(static_cast<int>(layout.shape.size()), 1,
                   [&](const Communicator& world) { return train_decoder(world, layout); });
}

TEST(BitIdenticalOnDevice, TrainedParametersHaveTheBitsOfOneDevice) {
  const ProductsOnDevice products;
  for (const bool llama : {false, true}) {
    const Tensors expected = run_layout({.llama = llama});
    for (const at::Tensor& t : expected) EXPECT_TRUE(t.isfinite().all().item<bool>());
    const Layout layouts[] = {{.shape = {.shard = 2}, .units = true},
                              {.shape = {.tp = 2}},
                              {.shape = {.cp = 2}},
                              {.shape = {.shard = 2, .tp = 2}, .units = true}};
    for (Layout layout : layouts) {
      layout.llama = llama;
      EXPECT_NO_THROW(require_same_bits(run_layout(layout), expected, layout.shape.str())) << llama;
    }
  }
}

TEST(BitIdenticalOnDevice, MixedPrecisionHasTheBitsOfOneDevice) {
  const ProductsOnDevice products;
  for (const bool llama : {false, true}) {
    const Tensors expected = run_layout({.llama = llama, .units = true, .bf16 = true});
    for (const train::MeshShape& shape : {train::MeshShape{.shard = 2}, {.tp = 2}, {.shard = 2, .tp = 2}}) {
      const Layout layout{.shape = shape, .llama = llama, .units = true, .bf16 = true};
      EXPECT_NO_THROW(require_same_bits(run_layout(layout), expected, shape.str())) << llama;
    }
  }
}

std::string error_of(const std::function<void()>& run) {
  try {
    const BitIdentical scope;
    run();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "none";
}

TEST(BitIdenticalOnDevice, WhatHasNoFormIsAnErrorWithItsName) {
  const auto expect_refused = [](const at::Tensor& x, const char* name, const Function& run) {
    const std::string error = error_of([&] { run({x}); });
    EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
    EXPECT_NE(error.find("no bit-identical form"), std::string::npos) << name << ": " << error;
  };
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({8, 8}), mesh, {Shard(0)});
    expect_refused(x, "aten::mm", [](const Tensors& in) { return at::mm(in[0], in[0]); });  // no kernel of products
    expect_refused(x, "aten::sum", [](const Tensors& in) { return in[0].sum(); });
  });
  const ProductsOnDevice products;
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({8, 8}), mesh, {Shard(0)});
    expect_refused(x, "aten::topk", [](const Tensors& in) { return std::get<0>(in[0].topk(2)); });
    expect_refused(x, "aten::cumsum", [](const Tensors& in) { return in[0].cumsum(0); });
    expect_refused(x, "aten::convolution", [](const Tensors& in) {
      return at::conv1d(in[0].unsqueeze(1), at::ones({1, 1, 1}, in[0].options()));
    });
    expect_refused(x, "aten::native_group_norm", [](const Tensors& in) {
      return at::group_norm(in[0].view({8, 2, 4}), 2);
    });
    EXPECT_EQ(error_of([&] { at::mm(x, x); }), "none");
  });
}

}  // namespace
}  // namespace dtensor::test
