// Attention on split sequences in programs: mixed precision, recomputation, random numbers, a full transformer.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

Case small(AttentionStrategy strategy) {
  Case c;
  c.queries = c.keys = 12;
  c.options.causal = true;
  c.strategy = strategy;
  return c;
}

// Dropout keeps the same weights as at::dropout on full weights, bit for bit. Zero keys make each weight 1 / S, and
// identity values return the weights.
TEST(AttentionInPrograms, DropoutMaskEqualsOneDevice) {
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    for (const Shape& shape : {Shape{1}, Shape{2}, Shape{3}, Shape{2, 2}}) {
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        manual_seed(mesh, 11);
        Case c;
        c.queries = c.keys = 8;
        c.options.dropout = 0.5;
        const auto kept = kept_of(c, mesh);
        const auto zeros = at::zeros({2, 4, 8, 8}, at::kDouble);
        const auto unit = at::eye(8, at::kDouble).expand({2, 4, 8, 8}).contiguous();
        Placements where(static_cast<std::size_t>(mesh.ndim()), Shard(2));
        if (mesh.ndim() == 2) where[1] = Shard(1);
        const auto x = distribute_tensor(zeros, mesh, where), v = distribute_tensor(unit, mesh, where);
        const AttentionStrategyScope scope(strategy);
        const auto y = DTensor(at::scaled_dot_product_attention(x, x, v, {}, 0.5)).full_tensor();
        EXPECT_TRUE(at::equal(y.ne(0), kept.ne(0))) << c.str();
        EXPECT_TRUE(at::allclose(y * 8, kept)) << c.str();
        EXPECT_EQ(get_rng_state(mesh).counter, 1u);  // one random operator
      });
    }
  }
}

TEST(AttentionInPrograms, RecomputationDrawsTheSameNumbers) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::ulysses}) {
      auto c = small(strategy);
      c.options.dropout = 0.4;
      const auto run = [&](bool again) {
        manual_seed(mesh, 5);
        const auto in = distributed(c, tensors_of(c), mesh);
        const AttentionStrategyScope scope(strategy);
        const auto body = [&](const at::Tensor& q) { return attend(c, {q * 1, in[1], in[2]}, {}); };
        const auto y = again ? checkpoint(body, in[0]) : body(in[0]);
        y.square().sum().backward();
        return std::vector{in[0].grad(), in[1].grad(), in[2].grad()};
      };
      const auto once = run(false), twice = run(true);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(DTensor(once[i]).to_local(), DTensor(twice[i]).to_local())) << i;
      }
    }
  });
}

// The kept result has the name of the one-device kernel: the recomputation moves and computes no block.
TEST(AttentionInPrograms, SelectiveRecomputationKeepsResults) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::ulysses}) {
      auto c = small(strategy);
      c.options.causal = false;
      c.options.dropout = 0.4;
      const AttentionStrategyScope scope(strategy);
      const auto run = [&](const std::set<std::string>& keep, std::int64_t& received) {
        manual_seed(mesh, 5);
        const auto in = distributed(c, tensors_of(c), mesh);
        const auto body = [&](const at::Tensor& q) { return attend(c, {q * 1, in[1], in[2]}, {}); };
        const auto y = checkpoint(body, in[0], {.keep = keep});
        const CommDebugMode comms;
        y.square().sum().backward();
        received = comms.total("recv").bytes;
        return std::vector{in[0].grad(), in[1].grad(), in[2].grad()};
      };
      std::int64_t again = 0, kept = 0;
      const auto a = run({}, again), b = run({"aten::_scaled_dot_product_flash_attention_for_cpu"}, kept);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(DTensor(a[i]).to_local(), DTensor(b[i]).to_local())) << i;
      }
      const std::int64_t block = 2 * 2 * 4 * 6 * 4 * 8;  // keys and values of the other rank
      EXPECT_EQ(again - kept, strategy == AttentionStrategy::ring ? block : 0);
    }
  });
}

// Blocks are merged in float: the error is about that of one device in the half type.
TEST(AttentionInPrograms, HalfTypesAreMergedInFloat) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    auto c = small(AttentionStrategy::ring);
    c.mesh = {4};
    c.queries = c.keys = 64;
    c.features = c.values = 16;
    const auto t = tensors_of(c);
    const std::vector<at::Tensor> halves{t.q.to(dtype), t.k.to(dtype), t.v.to(dtype)};
    std::vector<at::Tensor> exact, regular;
    for (const auto& x : halves) exact.push_back(x.to(at::kDouble).requires_grad_());
    for (const auto& x : halves) regular.push_back(x.clone().requires_grad_());
    const auto wanted = expected_result(c, exact, {});
    const auto wanted_gradients = torch::autograd::grad({wanted}, exact, {t.grad});
    const auto one = attend(c, regular, {});
    const auto one_gradients = torch::autograd::grad({one}, regular, {t.grad.to(dtype)});
    const auto far = [](const at::Tensor& x, const at::Tensor& of) {
      return (x.to(at::kDouble) - of).norm().item<double>();
    };
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      std::vector<at::Tensor> in;
      for (const auto& x : halves) in.push_back(distribute_tensor(x, mesh, {Shard(2)}).requires_grad_());
      const AttentionStrategyScope scope(c.strategy);
      const auto y = attend(c, in, {});
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_LT(far(DTensor(y).full_tensor(), wanted), 1.5 * far(one.detach(), wanted.detach()));
      const auto grads = torch::autograd::grad({y}, in, {distribute_tensor(t.grad.to(dtype), mesh, {Shard(2)})});
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_LT(far(DTensor(grads[i]).full_tensor(), wanted_gradients[i]),
                  2 * far(one_gradients[i], wanted_gradients[i]));
      }
    });
  }
}

struct Autocast {
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(AttentionInPrograms, AutocastIsAppliedOnce) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small(AttentionStrategy::ring);
    c.dtype = at::kFloat;
    c.options.dropout = 0.1;  // the path by matrix products, which autocast would cast again
    const auto in = distributed(c, tensors_of(c), mesh);
    const AttentionStrategyScope scope(c.strategy);
    const auto y = [&] {
      const Autocast autocast;
      return attend(c, in, {});
    }();
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(in[0].grad().scalar_type(), at::kFloat);
  });
}

// As in ATen's operator. Rotated queries and keys and values of a linear layer can differ in dtype under autocast.
TEST(AttentionInPrograms, AutocastCastsOperands) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small(AttentionStrategy::ring);
    c.dtype = at::kFloat;
    c.by_aten = false;
    c.options.window = 3;
    const auto t = tensors_of(c);
    const auto in = distributed(c, t, mesh);
    const AttentionStrategyScope scope(c.strategy);
    at::Tensor regular, found, mixed;
    {
      const Autocast autocast;
      regular = attend(c, {t.q, t.k, t.v}, {});
      found = attend(c, in, {});
      mixed = attend(c, {in[0], in[1], in[2].to(at::kBFloat16)}, {});
    }
    for (const auto& y : {regular, found, mixed}) EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    const auto wide = regular.to(at::kDouble), far = DTensor(found).full_tensor().detach().to(at::kDouble) - wide;
    EXPECT_LT(far.norm().item<double>(), 0.05 * wide.norm().item<double>());
    EXPECT_TRUE(at::equal(DTensor(found).full_tensor(), DTensor(mixed).full_tensor()));
    found.sum().backward();
    EXPECT_EQ(in[2].grad().scalar_type(), at::kFloat);
  });
}

// Tokens are split and parameters replicated: the only communication in forward is attention's keys and values.
TEST(AttentionInPrograms, TransformerMovesOnlyKeysAndValues) {
  for (const std::int64_t ranks : {2, 3}) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      const std::int64_t tokens = 12, hidden = 16;
      const auto make = [&] {
        return nn::Block({.hidden = hidden, .heads = 4, .bias = true, .tensor = at::kDouble},
                         {.hidden = hidden, .ffn = 24, .bias = true, .tensor = at::kDouble});
      };
      manual_seed(mesh, 2);
      nn::Block model = [&] {
        const MeshScope scope(mesh);
        return make();
      }();
      nn::Block regular = make();
      const auto theirs = model.named_parameters(), ours = regular.named_parameters();
      {
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < ours.size(); ++i) ours[i].second->copy_(DTensor(*theirs[i].second).full_tensor());
      }
      const auto x = Draw(3).normal({2, tokens, hidden});
      const auto in = distribute_tensor(x, mesh, {Shard(1)});
      const AttentionStrategyScope scope(AttentionStrategy::ring);
      const CommDebugMode comms;
      const auto y = model.forward(in);
      // Causal and contiguous: the blocks of the ranks before this one arrive.
      const std::int64_t block = 2 * 2 * tokens / ranks * hidden * 8;
      EXPECT_EQ(comms.total().bytes, mesh.coordinate()->front() * block) << comms.table();
      EXPECT_EQ(comms.total("", "", "").bytes, comms.total("recv").bytes) << comms.table();
      expect_close(y, regular.forward(x), "the block");
      y.square().sum().backward();
      regular.forward(x).square().sum().backward();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        expect_close(theirs[i].second->grad(), ours[i].second->grad(), ours[i].first);
      }
    });
  }
}

// Activations of a block: two ranks each keep half of what one keeps, and one number per row and head.
TEST(AttentionInPrograms, ActivationsAreSplit) {
  const auto kept = [](int ranks) {
    std::int64_t bytes = 0;
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      nn::Block model = [&] {
        const MeshScope scope(mesh);
        return nn::Block({.hidden = 64, .heads = 2}, {.hidden = 64, .ffn = 128});
      }();
      const auto in = distribute_tensor(at::ones({1, 2048, 64}), mesh, {Shard(1)});
      const AttentionStrategyScope scope(AttentionStrategy::ring);
      model.forward(in);  // allocates what is kept for parameters once
      const MemoryTimeline memory;
      const auto y = model.forward(in);
      if (mesh.coordinate()->front() == 0) bytes = memory.live();
    });
    return static_cast<double>(bytes);
  };
  EXPECT_GT(kept(1), 2048 * 64 * 4 * 5);
  EXPECT_LE(kept(2), 0.55 * kept(1));
}

// A microbatch's rows draw the same numbers as in the full batch.
TEST(AttentionInPrograms, DropoutOfMicrobatchEqualsFullBatch) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small(AttentionStrategy::ring);
    c.batch = 4;
    c.options.dropout = 0.5;
    const auto in = distributed(c, tensors_of(c), mesh);
    const AttentionStrategyScope scope(c.strategy);
    manual_seed(mesh, 7);
    const auto full = DTensor(attend(c, in, {})).full_tensor();
    for (const std::int64_t first : {0, 2}) {
      manual_seed(mesh, 7);
      const MicrobatchRandomScope rows({first, 2, 4});
      const auto part =
          attend(c, {in[0].narrow(0, first, 2), in[1].narrow(0, first, 2), in[2].narrow(0, first, 2)}, {});
      EXPECT_TRUE(at::allclose(DTensor(part).full_tensor(), full.narrow(0, first, 2)));
    }
  });
}

// Plain ATen differentiates learned masks.
TEST(AttentionInPrograms, LearnedMasksHaveGradients) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto c = small(AttentionStrategy::automatic);
    c.options.causal = false;
    c.options.mask = Draw(9).normal({4, 12, 12});
    const auto t = tensors_of(c);
    const auto mask = c.options.mask;
    c.options.mask = mask.clone().requires_grad_();
    const auto wanted = torch::autograd::grad({expected_result(c, {t.q, t.k, t.v}, {})}, {c.options.mask}, {t.grad});
    for (const bool by_aten : {true, false}) {
      c.by_aten = by_aten;
      const auto learned = distribute_tensor(mask, mesh, {Replicate()}).requires_grad_();
      const auto y = attend(c, distributed(c, t, mesh), learned);
      const auto found = torch::autograd::grad({y}, {learned}, {distribute_tensor(t.grad, mesh, {Shard(2)})});
      expect_close(found[0], wanted[0], "the mask");
    }
  });
}

}  // namespace
}  // namespace dtensor::test
