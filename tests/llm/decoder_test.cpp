// Edge cases of the decoder: no tokens, mismatched sizes, autocast.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "dtensor/nn/decoder.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

nn::DecoderConfig config() {
  nn::DecoderConfig c;
  c.vocabulary = 11, c.hidden = 8, c.layers = 2, c.ffn = 12, c.heads = 2, c.kv_heads = 1;
  c.ropes = {{.size = 4}};
  return c;
}

// Fills the parameters and replicates them on the mesh, if there is one.
void fill_and_place(nn::Decoder& decoder, const DeviceMesh& mesh) {
  Draw draw(5);
  const at::NoGradGuard no_grad;
  for (const auto& [name, t] : decoder.named_parameters()) {
    t->copy_(draw.normal(t->sizes().vec(), at::kFloat) * 0.3);
    if (mesh) *t = distribute_tensor(*t, mesh, {Replicate()});
  }
}

TEST(DecoderEdges, NoTokensGiveNoLogits) {
  const at::NoGradGuard no_grad;
  const auto none = at::empty({1, 0}, at::kLong), some = at::arange(3).unsqueeze(0);
  const Shape sizes{1, 0, 11};
  for (const double cap : {0.0, 5.0}) {
    auto c = config();
    c.attention_softcap = cap;
    nn::Decoder regular(c);
    EXPECT_EQ(regular.forward(none).sizes(), at::IntArrayRef(sizes)) << cap;
    run_local(2, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"sp"});
      nn::Decoder decoder(c);
      fill_and_place(decoder, mesh);
      const auto placed = [&](const at::Tensor& ids) { return distribute_tensor(ids, mesh, {Replicate()}); };
      for (const char* axis : {"", "sp"}) {
        nn::KVCache cache(2, 8, axis);
        const at::NoGradGuard here;
        decoder.forward(placed(some), &cache);
        EXPECT_EQ(decoder.forward(placed(none), &cache).sizes(), at::IntArrayRef(sizes)) << cap << axis;
        EXPECT_EQ(cache.length(), 3);
      }
    });
  }
}

TEST(DecoderEdges, BlocksNeedACheckedConfiguration) {
  const nn::DecoderConfig given{.vocabulary = 8, .hidden = 8, .layers = 1, .ffn = 8, .heads = 2};
  const auto error = error_of([&] { nn::DecoderBlock block(given, 0); });
  EXPECT_NE(error.find("DecoderConfig::checked() sets the defaults"), std::string::npos) << error;
  EXPECT_EQ(error_of([&] { nn::DecoderBlock block(given.checked(), 0); }), "no error");
}

TEST(DecoderEdges, MismatchedSizesAreNamed) {
  const auto reported = [](const std::function<void(nn::DecoderConfig&)>& change) {
    auto c = config();
    change(c);
    return error_of([&] { (void)c.checked(); });
  };
  const auto heads = [&](std::int64_t hidden, std::int64_t count, std::int64_t size) {
    return reported([&](nn::DecoderConfig& c) { c.hidden = hidden, c.heads = count, c.head_size = size; });
  };
  EXPECT_NE(heads(4, 8, 0).find("head_size 0, hidden 4 and heads 8"), std::string::npos) << heads(4, 8, 0);
  EXPECT_NE(heads(10, 4, 0).find("head_size 0, hidden 10 and heads 4"), std::string::npos) << heads(10, 4, 0);
  EXPECT_NE(heads(8, 2, -2).find("head_size -2"), std::string::npos) << heads(8, 2, -2);
  EXPECT_EQ(heads(10, 4, 4), "no error");
  const auto latent = [&](const nn::LatentAttention& l) {
    return reported([&](nn::DecoderConfig& c) { c.kv_heads = 2, c.ropes[0].size = 2, c.latent = l; });
  };
  const nn::LatentAttention fits{.kv_rank = 4, .rope_size = 2, .nope_size = 2, .value_size = 3};
  EXPECT_EQ(latent(fits), "no error");
  auto l = fits;
  l.kv_rank = 0;
  EXPECT_NE(latent(l).find("kv_rank 0, value_size 3"), std::string::npos) << latent(l);
  l = fits, l.value_size = 0;
  EXPECT_NE(latent(l).find("kv_rank 4, value_size 0"), std::string::npos) << latent(l);
  l = fits, l.nope_size = -2;
  EXPECT_NE(latent(l).find("nope_size -2"), std::string::npos) << latent(l);
}

TEST(DecoderEdges, WrongHeadsAndDocumentsAreNamed) {
  auto c = config();
  c.predict_tokens = 2;
  nn::Decoder decoder(c);
  const at::Tensor x = at::ones({1, 3, 8});
  EXPECT_EQ(decoder.head(x, 1).sizes(), at::IntArrayRef({1, 3, 11}));
  for (const std::int64_t ahead : {-1, 2}) {
    const auto error = error_of([&] { decoder.head(x, ahead); });
    EXPECT_NE(error.find(fmt::format("expected a head in [0, 2), got {}", ahead)), std::string::npos) << error;
  }
  const at::NoGradGuard no_grad;
  nn::KVCache cache(2, 8);
  c.attention_softcap = 5;
  const nn::Decoder capped(c);
  const at::Tensor documents = at::zeros({1, 1}, at::kLong);
  for (const auto& [model, kv] : {std::pair<const nn::Decoder*, nn::KVCache*>(&decoder, &cache), {&capped, nullptr}}) {
    auto pass = model->pass(3, x.options(), kv);
    pass.documents = documents;
    const auto error = error_of([&] { (void)(*model->blocks()[0])(x, pass); });
    EXPECT_NE(error.find("documents are not supported with a cache or with attention_softcap"), std::string::npos)
        << error;
  }
}

// Under autocast, rotated queries and keys are float, but values are not.
TEST(DecoderEdges, WindowUnderAutocastEqualsOneDevice) {
  auto c = config();
  for (int i = 0; i < 2; ++i) c.layer.push_back({.window = 2});
  const auto ids = at::arange(6).unsqueeze(0);
  const auto logits = [&](const DeviceMesh& mesh, const at::Tensor& given) {
    nn::Decoder decoder(c);
    fill_and_place(decoder, mesh);
    const at::NoGradGuard no_grad;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::Tensor y;
    const auto error = error_of([&] { y = decoder.forward(given); });
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(error, "no error");
    return error == "no error" ? y : at::zeros({1, 6, 11}, at::kBFloat16);
  };
  const auto wanted = logits({}, ids).to(at::kDouble);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const auto& placement : {Replicate(), Shard(1)}) {
      const auto y = logits(mesh, distribute_tensor(ids, mesh, {placement}));
      const auto found = (is_dtensor(y) ? DTensor(y).full_tensor() : y).to(at::kDouble);
      EXPECT_LT((found - wanted).norm().item<double>(), 0.1 * wanted.norm().item<double>()) << placement.str();
    }
  });
}

}  // namespace
}  // namespace dtensor::test
