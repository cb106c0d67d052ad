// Families of operators through autograd on every placement: convolution, pooling, norms, losses, linear algebra.
#include <ATen/core/Reduction.h>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

at::Tensor real(const Shape& sizes, std::uint64_t seed = 1) { return Draw(seed).normal(sizes); }
at::Tensor classes(const Shape& sizes, std::int64_t n) { return Draw(2).integers(sizes, n); }

TEST(Families, ConvolutionsEqualOneDevice) {
  const auto x = real({5, 4, 7, 6}), w = real({6, 4, 3, 3}, 2), b = real({6}, 3), grouped = real({4, 2, 3, 3}, 4);
  equal_everywhere("conv", {x, w, b},
                   [](const auto& t) { return at::conv2d(t[0], t[1], t[2], 1, at::IntArrayRef{1}); });
  equal_everywhere("no bias", {x, w}, [](const auto& t) { return at::conv2d(t[0], t[1], {}, 2, at::IntArrayRef{3}); });
  equal_everywhere("groups", {x, grouped},
                   [](const auto& t) { return at::conv2d(t[0], t[1], {}, 1, at::IntArrayRef{0}, 1, 2); });
  equal_everywhere("transposed", {x, real({4, 3, 3, 3}, 5)},
                   [](const auto& t) { return at::conv_transpose2d(t[0], t[1], {}, 2, 1); });
}

TEST(Families, NormsEqualOneDevice) {
  const auto x = real({5, 4, 6}), w = real({4}, 2), b = real({4}, 3);
  equal_everywhere("batch norm", {x, w, b},
                   [](const auto& t) { return at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false); });
  equal_everywhere("group norm", {x, w, b}, [](const auto& t) { return at::group_norm(t[0], 2, t[1], t[2]); });
  equal_everywhere("instance norm", {x, w, b},
                   [](const auto& t) { return at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false); });
}

TEST(Families, RunningStatisticsMatchSingleDevice) {
  const auto x = real({5, 4, 6});
  auto mean = at::zeros({4}, at::kDouble), var = at::ones({4}, at::kDouble);
  at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
  for (const auto& data : {Shard(0), Shard(1), Shard(2), Replicate()}) {
    for (const auto& stats : {Shard(0), Replicate(), Partial()}) {
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        auto m = distribute_tensor(at::zeros({4}, at::kDouble), mesh, {stats});
        auto v = distribute_tensor(at::ones({4}, at::kDouble), mesh, {stats});
        at::batch_norm(distribute_tensor(x, mesh, {data}), {}, {}, m, v, true, 0.1, 1e-5, false);
        expect_close(m, mean, "mean " + data.str() + stats.str());
        expect_close(v, var, "var " + data.str() + stats.str());
        EXPECT_EQ(m.placements(), (Placements{stats}));
      });
    }
  }
}

TEST(Families, PoolingPaddingAndResamplingEqualOneDevice) {
  const auto x = real({5, 4, 8, 6});
  equal_everywhere("max pool", {x}, [](const auto& t) { return at::max_pool2d(t[0], 2); });
  equal_everywhere("avg pool", {x}, [](const auto& t) { return at::avg_pool2d(t[0], 3, 2, 1); });
  equal_everywhere("adaptive", {x}, [](const auto& t) { return at::adaptive_avg_pool2d(t[0], {3, 2}); });
  equal_everywhere("reflect", {x}, [](const auto& t) { return at::reflection_pad2d(t[0], {1, 2, 0, 0}); });
  equal_everywhere("bilinear", {x}, [](const auto& t) { return at::upsample_bilinear2d(t[0], {5, 9}, false); });
  equal_everywhere("pixels", {x}, [](const auto& t) { return at::pixel_shuffle(t[0], 2); });
  equal_everywhere("grid", {x, real({5, 3, 3, 2}, 9)},
                   [](const auto& t) { return at::grid_sampler(t[0], t[1].tanh(), 0, 0, false); });
}

// ATen factors contiguous matrices transposed; its backward derives from the strides of the full batch whether it did.
TEST(Families, FactorizationsOfBatchesInAnyMemoryOrderEqualOneDevice) {
  const auto b = real({5, 3, 2}, 2);
  const auto a = (real({3, 5, 3}) + 3 * at::eye(3, at::kDouble).unsqueeze(1)).transpose(0, 1);  // Rows, batch, columns.
  for (const auto& matrices : {a, a.contiguous(), a.contiguous().mT()}) {
    equal_everywhere("slogdet", {matrices}, [](const auto& t) { return std::get<1>(at::linalg_slogdet(t[0])); });
    equal_everywhere("det", {matrices}, [](const auto& t) { return at::linalg_det(t[0]); });
    equal_everywhere("solve", {matrices, b}, [](const auto& t) { return at::linalg_solve(t[0], t[1]); });
  }
}

TEST(Families, LinearAlgebraAndTransformsEqualOneDevice) {
  const auto a = real({5, 3, 3}) + 3 * at::eye(3, at::kDouble), b = real({5, 3, 2}, 2);
  equal_everywhere("solve", {a, b}, [](const auto& t) { return at::linalg_solve(t[0], t[1]); });
  equal_everywhere("inverse", {a}, [](const auto& t) { return at::linalg_inv(t[0]); });
  equal_everywhere("det", {a}, [](const auto& t) { return at::linalg_det(t[0]); });
  equal_everywhere(
      "qr", {a}, [](const auto& t) { return std::get<0>(at::linalg_qr(t[0])).abs(); }, true, 6, 1e-6);
  equal_everywhere("fft", {a}, [](const auto& t) { return at::abs(at::fft_rfft(t[0], {}, 1)); });
  equal_everywhere("cdist", {a, real({5, 4, 3}, 4)}, [](const auto& t) { return at::cdist(t[0], t[1]); });
  equal_everywhere("einsum", {a, b}, [](const auto& t) { return at::einsum("bij,bjk->ik", {t[0], t[1]}); });
}

TEST(Families, MeanLossesEqualOneDevice) {
  const auto x = real({5, 3}), y = real({5, 3}, 2), p = x.sigmoid(), q = y.sigmoid(), sign = y.sign();
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    equal_everywhere("mse", {x, y}, [&](const auto& t) { return at::mse_loss(t[0], t[1], reduction); });
    equal_everywhere("smooth l1", {x, y}, [&](const auto& t) { return at::smooth_l1_loss(t[0], t[1], reduction); });
    equal_everywhere("huber", {x, y}, [&](const auto& t) { return at::huber_loss(t[0], t[1], reduction); });
    equal_everywhere("l1", {x, y}, [&](const auto& t) { return at::l1_loss(t[0], t[1], reduction); });
    equal_everywhere("kl", {x, p}, [&](const auto& t) { return at::kl_div(t[0], t[1].detach(), reduction); });
    equal_everywhere("soft margin", {x},
                     [&](const auto& t) { return at::soft_margin_loss(t[0], t[0].detach().sign(), reduction); });
    equal_everywhere(
        "bce", {p},
        [&](const auto& t) {
          return at::binary_cross_entropy(t[0].clamp(0.01, 0.99), t[0].detach().round(), {}, reduction);
        },
        false);
    equal_everywhere("bce logits", {x, q}, [&](const auto& t) {
      return at::binary_cross_entropy_with_logits(t[0], t[1].detach(), {}, {}, reduction);
    });
    equal_everywhere(
        "margin", {x, classes({5}, 3)},
        [&](const auto& t) { return at::multi_margin_loss(t[0], t[1], 1, 1, {}, reduction); }, false);
  }
}

TEST(Families, CrossEntropyEqualsOneDevice) {
  const auto x = real({6, 5}), weight = real({5}, 4).abs();
  auto target = classes({6}, 5);
  target.index_put_({at::tensor({0, 1, 2})}, at::scalar_tensor(-100, at::kLong));  // One rank has no valid target.
  for (const double smoothing : {0.0, 0.2}) {
    equal_everywhere(
        "ce", {x, weight, target},
        [&](const auto& t) {
          return at::cross_entropy_loss(t[0], t[2], t[1].detach(), at::Reduction::Mean, -100, smoothing);
        },
        false);
  }
}

TEST(Families, EmbeddingsEqualOneDevice) {
  const auto table = real({7, 4}), index = classes({3, 2}, 7);
  equal_everywhere("twice", {table, index}, [](const auto& t) {
    const auto once = at::embedding(t[0], t[1]);
    return once * 2 + once.tanh() + at::embedding(t[0], t[1].flip(0));
  });
  for (const std::int64_t padding : {0, 3, 6}) {
    equal_everywhere("padding", {table, index}, [&](const auto& t) { return at::embedding(t[0], t[1], padding); });
  }
}

TEST(Families, SoftmaxAddmmAndIndexReductionsEqualOneDevice) {
  const auto x = real({6, 5}) * 200;
  equal_everywhere("softmax", {x}, [](const auto& t) { return at::softmax(t[0], 1) + at::log_softmax(t[0], 0); });
  equal_everywhere("logsumexp", {x}, [](const auto& t) { return at::logsumexp(t[0], 1); });
  equal_everywhere("addmm", {real({4}, 2), real({6, 5}), real({5, 4}, 3)},
                   [](const auto& t) { return at::addmm(t[0], t[1], t[2], 2, 3); });
  equal_everywhere("no rows", {real({4}, 2), real({6, 0}), real({0, 4}, 3)},
                   [](const auto& t) { return at::addmm(t[0], t[1], t[2]); });
  const auto ties = at::tensor({1., 3., 3., 2., 3., 1.}, at::kDouble).repeat({2, 1});
  for (const bool keep : {false, true}) {
    equal_everywhere("max", {ties}, [&](const auto& t) { return std::get<0>(at::max(t[0], 1, keep)); });
    equal_everywhere("argmax", {ties}, [&](const auto& t) { return at::argmax(t[0].detach(), 1, keep); });
    equal_everywhere("amax", {ties}, [&](const auto& t) { return at::amax(t[0], 1, keep); });
  }
  equal_everywhere("max of all", {ties}, [](const auto& t) { return at::max(t[0]); });
  equal_everywhere("median", {ties}, [](const auto& t) { return at::median(t[0]); });
  equal_everywhere("norm inf", {ties}, [](const auto& t) { return at::linalg_vector_norm(t[0], INFINITY); });
}

TEST(Families, AttentionEqualsOneDevice) {
  const auto q = real({3, 4, 5, 8}), k = real({3, 4, 5, 8}, 2), v = real({3, 4, 5, 8}, 3);
  for (const bool causal : {false, true}) {
    equal_everywhere("attention", {q, k, v}, [&](const auto& t) {
      return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, causal);
    });
  }
}

// A sum of bytes overflows at 256; the local sums in a wider type would not.
TEST(Families, SumsOfNarrowTypesChangeTypeAsOnOneDevice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& [type, a, b] :
         {std::tuple{at::kByte, 200, 100}, {at::kChar, 100, 50}, {at::kShort, 30000, 3000}}) {
      const auto share = at::full({3}, mesh.coordinate()->front() == 0 ? a : b, type);
      const auto sum = [&] { return DTensor::from_local(share, mesh, {Partial()}, {3}, {1}); };
      const auto unsharded = sum().full_tensor();
      for (const auto& fn :
           {Function([](const auto& t) { return t[0].to(at::kInt); }),
            Function([](const auto& t) { return t[0].to(at::kFloat); }),
            Function([](const auto& t) { return t[0].to(at::kChar); }),
            Function([](const auto& t) { return t[0].sum(); }), Function([](const auto& t) { return t[0] / 2; }),
            Function([](const auto& t) { return at::cumsum(t[0], 0); })}) {
        require_same(full_of(fn({sum()})), fn({unsharded}), c10::str("a sum of ", type));
      }
      EXPECT_TRUE(DTensor(sum() * 3).placements()[0].is_partial());
    }
  });
}

}  // namespace
}  // namespace dtensor::test
