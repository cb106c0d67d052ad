// Communication: bytes and collectives of common operators, and the check of local results against their specs.
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

struct Moved {
  std::size_t collectives = 0;
  std::int64_t bytes = 0;
  std::string names;
};

Moved moved_by(const std::function<void()>& fn) {
  Moved moved;
  const EventListener listener(
      [&](const Event& event) {
        ++moved.collectives;
        moved.bytes += event.bytes;
        moved.names += event.name + " ";
      },
      {Event::Kind::collective});
  fn();
  return moved;
}

// Ranks receive only the elements that they lack if shards are permuted.
TEST(Counts, PermutationsMoveOnlyMissingElements) {
  const std::vector<std::pair<Placements, Placements>> pairs{{{Shard(0), Shard(1)}, {Shard(1), Shard(0)}},
                                                             {{Shard(0), Replicate()}, {Replicate(), Shard(0)}},
                                                             {{Shard(1), Shard(0)}, {Shard(0), Shard(1)}},
                                                             {{StridedShard(0, 2), Shard(0)}, {Shard(0), Shard(0)}},
                                                             {{Shard(0), Shard(0)}, {Shard(1), Shard(1)}}};
  for (const Shape& shape : {Shape{2, 2}, Shape{2, 3}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (const auto& [from, to] : pairs) {
        for (const Shape& sizes : {Shape{12, 12}, Shape{5, 7}, Shape{1, 9}}) {
          const auto x = at::arange(sizes[0] * sizes[1], at::kDouble).view(sizes);
          const auto d = distribute_tensor(x, mesh, from);
          const auto has = d.to_local(), wants = part_of(x, mesh, to);
          const auto lacks = wants.numel() - at::isin(wants, has).sum().item<std::int64_t>();
          const auto moved = moved_by([&, &to = to] { d.redistribute(to); });
          EXPECT_LE(moved.bytes, lacks * 8) << to_string(from) << to_string(to) << moved.names;
          EXPECT_LE(moved.collectives, 1u);
        }
      }
    });
  }
}

struct Quiet {
  const char* name;
  Shape x;
  Placement where;
  std::function<at::Tensor(const at::Tensor&, const DeviceMesh&)> run;
  std::size_t forward = 0, backward = 0;  // Number of collectives.
};

at::Tensor full(const Shape& sizes, const DeviceMesh& mesh) { return rand(sizes, mesh, {}, at::kDouble); }

std::vector<Quiet> quiet_operators() {
  return {
      {"add", {8, 6}, Shard(0), [](auto& x, auto& m) { return x + full({6}, m); }},
      {"matmul of rows",
       {8, 6},
       Shard(0),
       [](auto& x, auto& m) {
         return at::matmul(x, full({6, 4}, m));
       }},
      {"column parallel",
       {6, 8},
       Shard(1),
       [](auto& x, auto& m) {
         return at::mm(full({4, 6}, m), x);
       }},
      {"row parallel",
       {4, 8},
       Shard(1),
       [](auto& x, auto& m) {
         return at::mm(x, x.t()) + 0 * full({4, 4}, m);
       },
       1,
       0},
      {"batches", {8, 3, 6}, Shard(0), [](auto& x, auto&) { return at::bmm(x, x.transpose(1, 2)); }},
      {"softmax", {8, 6}, Shard(0), [](auto& x, auto&) { return x.softmax(1); }},
      {"layer norm", {8, 3, 6}, Shard(0), [](auto& x, auto& m) { return at::layer_norm(x, {6}, full({6}, m)); }},
      {"sum over the unsharded dimension", {8, 6}, Shard(0), [](auto& x, auto&) { return x.sum(1); }},
      {"sum of all", {8, 6}, Shard(0), [](auto& x, auto&) { return x.sum(); }},
      {"mean", {7, 6}, Shard(0), [](auto& x, auto&) { return x.mean(); }},
      {"mse", {7, 6}, Shard(0), [](auto& x, auto&) { return at::mse_loss(x, x.detach().square()); }},
      {"table of words",
       {8, 6},
       Shard(0),
       [](auto& x, auto& m) { return at::embedding(x, full({3}, m).abs().to(at::kLong)); }},
      {"table of features",
       {8, 6},
       Shard(1),
       [](auto& x, auto& m) { return at::embedding(x, full({3}, m).abs().to(at::kLong)); }},
      {"heads",
       {4, 6, 8},
       Shard(2),
       [](auto& x, auto&) {
         return x.view({4, 6, 4, 2}).transpose(1, 2);
       }},
      {"attention", {8, 2, 5, 4}, Shard(0), [](auto& x, auto&) { return at::scaled_dot_product_attention(x, x, x); }},
      {"attention by head",
       {2, 8, 5, 4},
       Shard(1),
       [](auto& x, auto&) { return at::scaled_dot_product_attention(x, x, x); }},
      {"convolution",
       {8, 2, 5, 5},
       Shard(0),
       [](auto& x, auto& m) {
         return at::conv2d(x, full({3, 2, 3, 3}, m));
       }},
      {"pooling", {8, 2, 6, 6}, Shard(1), [](auto& x, auto&) { return at::max_pool2d(x, 2); }},
      {"cat",
       {8, 6},
       Shard(0),
       [](auto& x, auto&) {
         return at::cat({x, x * 2}, 1);
       }},
      {"dropout", {8, 6}, Shard(0), [](auto& x, auto&) { return at::dropout(x, 0.5, true); }},
      {"cumsum over the unsharded dimension", {8, 6}, Shard(0), [](auto& x, auto&) { return x.cumsum(1); }},
      {"sort of the unsharded dimension", {8, 6}, Shard(0), [](auto& x, auto&) { return std::get<0>(x.sort(1)); }},
  };
}

TEST(Counts, CommonOperatorsNeedNoCommunication) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& q : quiet_operators()) {
      const auto x = distribute_tensor(Draw(3).normal(q.x), mesh, {q.where}).requires_grad_();
      for (int pass : {0, 1}) {  // Regular constants are compared when a decision is made.
        at::Tensor y;
        const auto forward = moved_by([&] { y = q.run(x, mesh); });
        const auto weight = at::ones_like(y);
        const auto backward = moved_by([&] { torch::autograd::grad({y}, {x}, {weight}); });
        if (pass == 0) continue;
        EXPECT_EQ(forward.collectives, q.forward) << q.name << ": " << forward.names;
        EXPECT_EQ(backward.collectives, q.backward) << q.name << " backward: " << backward.names;
      }
    }
  });
}

// Along the sharded dimension: two values for each row of a softmax, one total for each rank of a scan, k candidates
// for each rank of topk.
TEST(Counts, ReductionsAlongTheSplitDimensionAreSmall) {
  for (const Shape& shape : {Shape{2}, Shape{3}}) {
    on_mesh(shape, [](const DeviceMesh& mesh) {
      const auto others = mesh.size() - 1;
      const std::int64_t rows = 64, row = rows * 8;  // Bytes of one value for each row.
      const auto regular = Draw(1).normal({64, 64});
      const auto x = distribute_tensor(regular, mesh, {Shard(1)});
      const auto check = [&](const char* name, const Function& fn, std::size_t collectives, std::int64_t bytes) {
        require_close(fn({x}), fn({regular}), name, 1e-9);
        const auto moved = moved_by([&] { fn({x}); });
        EXPECT_EQ(moved.collectives, collectives) << name << " " << moved.names;
        EXPECT_LE(moved.bytes, bytes) << name;
      };
      check(
          "softmax", [](const auto& t) { return t[0].softmax(1); }, 2, 2 * 2 * others * row);
      check(
          "log_softmax", [](const auto& t) { return t[0].log_softmax(1); }, 2, 2 * 2 * others * row);
      check(
          "logsumexp", [](const auto& t) { return t[0].logsumexp(1); }, 2, 2 * 2 * others * row);
      check(
          "cumsum", [](const auto& t) { return t[0].cumsum(1); }, 1, others * row);
      check(
          "topk", [](const auto& t) { return std::get<0>(t[0].topk(3, 1)); }, 2,
          2 * 4 * others * row);  // One more detects ties.
      check(
          "argmax", [](const auto& t) { return t[0].argmax(1); }, 2, 2 * others * row);
      check(
          "layer norm", [](const auto& t) { return at::layer_norm(t[0], {64}); }, 2, 4 * 2 * others * row);
      check(
          "amax", [](const auto& t) { return t[0].amax(1); }, 0, 0);
      check(
          "sum", [](const auto& t) { return t[0].sum(1); }, 0, 0);
    });
  }
}

struct Heads {
  std::int64_t query, key;
  Placement where;  // Of keys and values.
};

// Groups of query heads share heads of keys and values: a rank's groups need only its own keys. A single head of keys
// is replicated.
TEST(Counts, GroupedHeadsNeedNoCommunication) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const Heads& heads : {Heads{8, 8, Shard(1)}, {8, 4, Shard(1)}, {8, 2, Shard(1)}, {8, 1, Replicate()}}) {
      for (const int variant : {0, 1, 2, 3}) {
        Draw draw(7);
        const auto q = draw.normal({2, heads.query, 5, 4}), k = draw.normal({2, heads.key, 5, 4});
        const auto v = draw.normal({2, heads.key, 5, 4});
        const auto mask = variant == 2 ? std::optional(draw.normal({5, 5})) : std::nullopt;
        const auto run = [&](const std::vector<at::Tensor>& t) {
          if (variant < 3) {
            return at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, variant == 1, std::nullopt, true);
          }
          return std::get<0>(
              at::_scaled_dot_product_attention_math(t[0], t[1], t[2], {}, 0, true, {}, std::nullopt, true));
        };
        std::vector<at::Tensor> regular{q, k, v}, inputs{distribute_tensor(q, mesh, {Shard(1)})};
        for (const auto& t : {k, v}) inputs.push_back(distribute_tensor(t, mesh, {heads.where}));
        for (auto* list : {&regular, &inputs}) {
          for (auto& t : *list) t.requires_grad_();
        }
        std::vector<at::Tensor> gradients;
        const auto step = [&] {
          const auto y = run(inputs);
          gradients = torch::autograd::grad({y}, inputs, {at::ones_like(y)});
        };
        step();  // A regular mask is compared when a decision is made.
        const auto moved = moved_by(step);
        const auto what = c10::str(heads.query, " over ", heads.key, " heads, variant ", variant);
        // The gradient of a replicated leaf is reduced.
        EXPECT_EQ(moved.collectives, heads.where.is_replicate() ? 2u : 0u) << what << ": " << moved.names;
        const auto y = run(regular);
        require_close(run(inputs), y, what);
        const auto expected = torch::autograd::grad({y}, regular, {at::ones_like(y)});
        for (std::size_t i = 0; i < 3; ++i) require_close(gradients[i], expected[i], what);
      }
    }
  });
}

// Column-wise projections, grouped attention and a row-wise projection: one all-reduce in forward and one in backward.
TEST(Counts, GroupedAttentionBlockReducesTwice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const std::int64_t heads = 4, groups = 2, features = 4, width = 8, blocks = 3;
    Draw draw(5);
    const auto x = distribute_tensor(draw.normal({2, 5, width}), mesh, {Replicate()}).requires_grad_();
    const auto weight = [&](std::int64_t in, std::int64_t out, const Placement& where) {
      return distribute_tensor(draw.normal({in, out}), mesh, {where}).requires_grad_();
    };
    const auto split = [&](const at::Tensor& t) { return t.unflatten(2, {-1, features}).transpose(1, 2); };
    std::vector<at::Tensor> weights;
    for (int b = 0; b < blocks; ++b) {
      weights.push_back(weight(width, heads * groups * features, Shard(1)));
      for (int i = 0; i < 2; ++i) weights.push_back(weight(width, heads * features, Shard(1)));
      weights.push_back(weight(heads * groups * features, width, Shard(0)));
    }
    const auto step = [&] {
      at::Tensor y = x;
      for (auto w = weights.begin(); w != weights.end(); w += 4) {
        const auto q = split(at::matmul(y, w[0])), k = split(at::matmul(y, w[1])), v = split(at::matmul(y, w[2]));
        const auto a = at::scaled_dot_product_attention(q, k, v, {}, 0, true, std::nullopt, true);
        y = DTensor(at::matmul(a.transpose(1, 2).flatten(2), w[3])).redistribute({Replicate()});
      }
      weights.push_back(x);
      const auto gradients = torch::autograd::grad({y}, weights, {at::ones_like(y)});
      weights.pop_back();
      return DTensor(gradients.back()).redistribute({Replicate()});
    };
    step();
    const auto moved = moved_by(step);
    EXPECT_EQ(moved.collectives, 2u * blocks) << moved.names;
  });
}

TORCH_LIBRARY(pitfalls, m) {
  m.def("half(Tensor x) -> Tensor");
  m.impl("half", c10::DispatchKey::CPU, [](const at::Tensor& x) { return x.narrow(0, 0, x.size(0) / 2).clone(); });
}

// The rule promises the number of rows of the operand; the kernel returns half of them.
TEST(Counts, LocalSizesAreComparedWithTheSpec) {
  RuleBook::get().rule("pitfalls::half", "mn -> mn").no_meta();
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const Checked checked;
    const at::Tensor x = ones({8, 3}, mesh, {Shard(0)});
    const auto half =
        c10::Dispatcher::singleton().findSchemaOrThrow("pitfalls::half", "").typed<at::Tensor(const at::Tensor&)>();
    EXPECT_TRUE(raises(mesh, [&] { half.call(x); }));
  });
}

}  // namespace
}  // namespace dtensor::test
