// Rules and kernels together: losses, norms, index reductions and scans on DTensors with random placements equal the
// values and gradients of one device.
#include <gtest/gtest.h>

#include "dtensor/debug.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Floating-point inputs get gradients; integer inputs are targets or indices.
struct Program {
  const char* name;
  std::function<Tensors(Draw&)> inputs;
  std::function<at::Tensor(const Tensors&)> run;
};

Program on_matrix(const char* name, std::function<at::Tensor(const at::Tensor&)> run) {
  return {name, [](Draw& d) { return Tensors{d.normal(d.sizes(2, 1))}; },
          [run](const Tensors& t) { return run(t[0]); }};
}

// Two tensors of equal sizes, the second between 0 and 1.
Program on_pair(const char* name, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> run) {
  return {name,
          [](Draw& d) {
            const auto s = d.sizes(2, 1);
            return Tensors{d.normal(s), d.normal(s).sigmoid()};
          },
          [run](const Tensors& t) { return run(t[0], t[1]); }};
}

Tensors logits_and_targets(Draw& d) {
  const auto s = d.sizes(2, 1);
  auto target = d.integers({s[0]}, s[1]);
  if (d.coin()) target.masked_fill_(d.integers({s[0]}, 2).eq(0), -100);
  return {d.normal(s), target, d.normal({s[1]}).abs() + 0.1};
}

Program on_logits(const char* name, std::function<at::Tensor(const Tensors&)> run) {
  return {name, logits_and_targets, std::move(run)};
}

Tensors table_and_indices(Draw& d) {
  const auto rows = d.integer(1, 7);
  return {d.normal({rows, d.integer(1, 4)}), d.integers(d.sizes(2, 1), rows)};
}

Program on_table(const char* name, std::function<at::Tensor(const Tensors&)> run) {
  return {name, table_and_indices, std::move(run)};
}

using at::Reduction::Mean;
using at::Reduction::None;
using at::Reduction::Sum;

// Frames x batch x labels, and rows of targets without the blank label. The last frames and targets are cut off.
Tensors frames_and_targets(Draw& d) {
  const auto batch = d.integer(1, 6), labels = d.integer(2, 5);
  const auto longest = d.integer(1, 3);
  return {d.normal({2 * longest + d.integer(2, 4), batch, labels}), d.integers({batch, longest}, labels - 1) + 1};
}

struct Lengths {
  std::vector<std::int64_t> frames, targets;
};

Lengths lengths_of(const Tensors& t) {
  Lengths lengths;
  for (std::int64_t i = 0; i < t[0].size(1); ++i) {
    lengths.frames.push_back(t[0].size(0) - i % 2);
    lengths.targets.push_back(i == 1 ? 0 : std::max<std::int64_t>(1, t[1].size(1) - i % 3));
  }
  return lengths;
}

at::Tensor concatenated(const at::Tensor& rows, const std::vector<std::int64_t>& lengths) {
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < rows.size(0); ++i) parts.push_back(rows[i].narrow(0, 0, lengths[i]));
  return at::cat(parts);
}

Program on_sequences(const char* name, std::function<at::Tensor(const Tensors&, const Lengths&)> run) {
  return {name, frames_and_targets, [run](const Tensors& t) { return run(t, lengths_of(t)); }};
}

std::vector<Program> losses() {
  return {
      on_pair("mse", [](auto& x, auto& y) { return at::mse_loss(x, y); }),
      on_pair("mse sum", [](auto& x, auto& y) { return at::mse_loss(x, y, Sum); }),
      on_pair("smooth l1", [](auto& x, auto& y) { return at::smooth_l1_loss(x, y, Mean, 0.7); }),
      on_pair("huber", [](auto& x, auto& y) { return at::huber_loss(x, y, Mean, 0.6); }),
      on_pair("l1", [](auto& x, auto& y) { return at::l1_loss(x, y); }),
      on_pair("soft margin", [](auto& x, auto& y) { return at::soft_margin_loss(x, y.detach()); }),
      on_pair("bce", [](auto& x, auto& y) { return at::binary_cross_entropy(x.sigmoid(), y.detach()); }),
      on_pair("bce logits", [](auto& x, auto& y) { return at::binary_cross_entropy_with_logits(x, y); }),
      on_pair("kl", [](auto& x, auto& y) { return at::kl_div(x.log_softmax(-1), y, Mean); }),
      on_logits("cross entropy", [](auto& t) { return at::cross_entropy_loss(t[0], t[1]); }),
      on_logits("cross entropy sum", [](auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, Sum); }),
      on_logits("cross entropy none", [](auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, None); }),
      on_logits("weighted", [](auto& t) { return at::cross_entropy_loss(t[0], t[1], t[2].detach()); }),
      on_logits("smoothed", [](auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, Mean, -100, 0.2); }),
      on_logits("all",
                [](auto& t) { return at::cross_entropy_loss(t[0], t[1].clamp_min(0), t[2].detach(), Mean, 0, 0.1); }),
      {"nll 2d",
       [](Draw& d) {
         const auto s = d.sizes(4, 1, 3);
         return Tensors{d.normal(s), d.integers({s[0], s[2], s[3]}, s[1])};
       },
       [](const Tensors& t) { return at::nll_loss2d(t[0], t[1]); }},
  };
}

std::vector<Program> sequence_losses() {
  return {
      on_sequences("ctc",
                   [](auto& t, auto& n) { return at::ctc_loss(t[0].log_softmax(-1), t[1], n.frames, n.targets); }),
      on_sequences(
          "ctc none",
          [](auto& t, auto& n) { return at::ctc_loss(t[0].log_softmax(2), t[1], n.frames, n.targets, 0, None, true); }),
      on_sequences("ctc concatenated",
                   [](auto& t, auto& n) {
                     return at::ctc_loss(t[0].log_softmax(-1), concatenated(t[1], n.targets), n.frames, n.targets, 0,
                                         Sum);
                   }),
      on_sequences("ctc of tensors",
                   [](auto& t, auto& n) {
                     const auto frames = at::tensor(n.frames, at::kLong), targets = at::tensor(n.targets, at::kLong);
                     return at::ctc_loss(t[0].log_softmax(-1), t[1], frames, targets);
                   }),
      {"ctc of distributed lengths",
       [](Draw& d) {
         Tensors t = frames_and_targets(d);
         const Lengths n = lengths_of(t);
         t.insert(t.end(), {at::tensor(n.frames, at::kLong), at::tensor(n.targets, at::kLong)});
         return t;
       },
       [](const Tensors& t) { return at::ctc_loss(t[0].log_softmax(-1), t[1], t[2], t[3]); }},
      on_sequences("ctc of one",
                   [](auto& t, auto& n) {
                     return at::ctc_loss(t[0].select(1, 0).log_softmax(-1), t[1][0], {n.frames[0]}, {n.targets[0]});
                   }),
  };
}

std::vector<Program> reductions() {
  return {
      on_matrix("softmax", [](auto& x) { return at::softmax(x * 50, -1); }),
      on_matrix("log softmax", [](auto& x) { return at::log_softmax(x * 50, 0); }),
      on_matrix("logsumexp", [](auto& x) { return at::logsumexp(x, 1); }),
      on_matrix("mean", [](auto& x) { return x.mean() + x.mean(0); }),
      on_matrix("var",
                [](auto& x) {
                  return at::var(x, 0, false) + at::var(x, at::IntArrayRef({0, 1}), 0, true);
                }),
      on_matrix("std",
                [](auto& x) {
                  return at::cat({x, x * 2}, 0).std(0);
                }),
      on_matrix("norm 2", [](auto& x) { return x.norm() + at::linalg_vector_norm(x, 2, {{1}}); }),
      on_matrix("norm 1", [](auto& x) { return at::linalg_vector_norm(x, 1, {{0}}); }),
      on_matrix("norm 3", [](auto& x) { return at::linalg_vector_norm(x, 3, {{0}}); }),
      on_matrix("norm inf", [](auto& x) { return at::linalg_vector_norm(x, INFINITY, {{0}}); }),
      on_matrix("amax", [](auto& x) { return x.amax(0) - x.amin(0); }),
      on_matrix("max", [](auto& x) { return x.max() - x.min(); }),
      on_matrix("max dim", [](auto& x) { return std::get<0>(x.max(0)) + std::get<0>(x.min(0)); }),
      on_matrix("argmax", [](auto& x) { return x.sum() + x.argmax(0) + x.argmin() + std::get<1>(x.max(0)); }),
      on_matrix("prod", [](auto& x) { return x.prod(0); }),
      on_matrix("any all", [](auto& x) { return x.sum() + (x > 0).any(0) + (x > 1).all(0) + (x > 2).any(); }),
      on_matrix("cumsum", [](auto& x) { return x.cumsum(0); }),
      on_matrix("cumprod", [](auto& x) { return x.cumprod(1); }),
      on_matrix("logcumsumexp", [](auto& x) { return x.logcumsumexp(0); }),
      on_matrix("topk", [](auto& x) { return std::get<0>(x.topk((x.size(0) + 1) / 2, 0)); }),
      on_matrix("layer norm", [](auto& x) { return at::layer_norm(x, {x.size(1)}); }),
      on_matrix("rms norm", [](auto& x) { return at::rms_norm(x, {x.size(1)}); }),
      on_matrix("foreach norm",
                [](auto& x) {
                  const auto norms = at::_foreach_norm({x, x * 2, x.sum(0)}, 2);
                  return norms[0] + norms[1] * 2 + norms[2];
                }),
  };
}

std::vector<Program> embeddings() {
  return {
      on_table("embedding", [](auto& t) { return at::embedding(t[0], t[1]); }),
      on_table("padding", [](auto& t) { return at::embedding(t[0], t[1], t[0].size(0) - 1); }),
      on_table("frequency", [](auto& t) { return at::embedding(t[0], t[1], -1, true); }),
      on_table("same table twice",
               [](auto& t) {
                 const auto a = at::embedding(t[0], t[1]), b = at::embedding(t[0], t[0].size(0) - 1 - t[1]);
                 return a * 2 + b + a;
               }),
      on_table("tied", [](auto& t) { return at::matmul(at::embedding(t[0], t[1]), t[0].t()).log_softmax(-1); }),
  };
}

struct Reference {
  Tensors inputs;
  at::Tensor output, weight;
};

Tensors with_grad(Tensors inputs) {
  for (auto& t : inputs) {
    if (t.is_floating_point()) t.requires_grad_();
  }
  return inputs;
}

void backward(const at::Tensor& output, const at::Tensor& weight) {
  if (output.requires_grad()) (output * weight).sum().backward();
}

Reference reference_of(const Program& program, Draw& draw) {
  Reference r{with_grad(program.inputs(draw)), {}, {}};
  r.output = program.run(r.inputs);
  r.weight = draw.normal(r.output.sizes().vec());
  backward(r.output, r.weight);
  return r;
}

// ATen's std() warns about local parts without elements.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void compare(const Program& program, const Reference& r, Draw& draw, const DeviceMesh& mesh, std::string what) {
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  Tensors inputs;
  for (const auto& t : r.inputs) {
    inputs.push_back(distribute_tensor(t.detach(), mesh, draw.placements(mesh, t.dim(), false)));
    what += " " + DTensor(inputs.back()).spec_str();
  }
  inputs = with_grad(inputs);
  const auto output = program.run(inputs);
  expect_close(output.detach(), r.output.detach(), what);
  backward(output, distribute_tensor(r.weight, mesh, Placements(mesh.ndim())));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(inputs[i].grad().defined(), r.inputs[i].grad().defined()) << what << " grad " << i;
    if (inputs[i].grad().defined()) expect_close(inputs[i].grad(), r.inputs[i].grad(), c10::str(what, " grad ", i));
  }
}

void check(const std::vector<Program>& programs) {
  for (const auto& program : programs) {
    for (const auto& shape : mesh_shapes()) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        Draw draw(seed * 7919 + count(shape));
        const auto reference = reference_of(program, draw);
        on_mesh(shape, [&](const DeviceMesh& mesh) {
          Draw mine(seed + 31);
          compare(program, reference, mine, mesh,
                  c10::str(program.name, " seed ", seed, " on ", at::IntArrayRef(shape)));
        });
        if (testing::Test::HasFailure()) break;
      }
    }
  }
}

TEST(ThroughEngine, LossesEqualOneDevice) { check(losses()); }
TEST(ThroughEngine, SequenceLossesEqualOneDevice) { check(sequence_losses()); }
TEST(ThroughEngine, CtcLossOfSplitBatchMovesNothing) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto frames = distribute_tensor(at::rand({7, 4, 3}), mesh, {Shard(1)}).requires_grad_();
    const auto targets = distribute_tensor(at::ones({4, 2}, at::kLong), mesh, {Shard(0)});
    const CommDebugMode counted;
    const auto loss = at::ctc_loss(frames.log_softmax(-1), targets, {7, 7, 6, 5}, {2, 1, 1, 2}, 0, None);
    loss.backward(at::ones_like(loss));
    EXPECT_EQ(DTensor(loss).placements(), Placements{Shard(0)});
    EXPECT_EQ(counted.total().calls, 0);
  });
}
TEST(ThroughEngine, ReductionsEqualOneDevice) { check(reductions()); }
TEST(ThroughEngine, EmbeddingsEqualOneDevice) { check(embeddings()); }

}  // namespace
}  // namespace dtensor::test
