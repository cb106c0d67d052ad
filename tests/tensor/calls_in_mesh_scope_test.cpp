// The library's own functions compute within a MeshScope what they compute outside of it: the tensors that they make
// for themselves are no DTensors.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/pipeline.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Results = std::vector<at::Tensor>;

// A call of the library on tensors that were made outside of the scope.
struct LibraryCall {
  std::string name;
  std::function<std::function<Results()>(const DeviceMesh&)> prepare;  // makes the operands, returns the call
};

at::Tensor drawn(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements) {
  return randn(sizes, mesh, placements, at::kDouble);
}

Results copies(const Results& tensors) {
  Results full;
  for (const at::Tensor& t : tensors) {
    full.push_back((is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach()).clone());
  }
  return full;
}

// Three steps of an optimizer, with clipped gradients and its state.
template <class Opt, class... Options>
LibraryCall steps_of(const std::string& name, const Options&... options) {
  return {name, [=](const DeviceMesh& mesh) -> std::function<Results()> {
            const at::Tensor w = drawn({6, 8}, mesh, {Shard(0), Replicate()}).requires_grad_();
            const at::Tensor v = drawn({5, 4}, mesh, {Replicate(), Shard(1)}).requires_grad_();
            auto optimizer = std::make_shared<Opt>(Results{w, v}, options...);
            return [=] {
              Results norms;
              for (int step = 0; step < 3; ++step) {
                ((w * w).sum() + (v * v * v).sum()).backward();
                norms.push_back(clip_grad_norm_({w, v}, 1.0));
                optimizer->step();
                optimizer->zero_grad();
              }
              norms.insert(norms.end(), {w, v});
              for (const auto& [key, tensor] : optimizer->state_dict().tensors) norms.push_back(tensor);
              return norms;
            };
          }};
}

Results loss_and_gradients(const at::Tensor& loss, const Results& leaves) {
  loss.backward();
  Results result{loss};
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

LibraryCall losses(LossReduction reduction, bool linear) {
  return {c10::str(linear ? "linear_" : "", "cross_entropy, reduction ", static_cast<int>(reduction)),
          [=](const DeviceMesh& mesh) -> std::function<Results()> {
            const at::Tensor x = drawn({6, 4}, mesh, {Shard(0), linear ? Replicate() : Placement(Shard(1))});
            const at::Tensor w = drawn({5, 4}, mesh, {Replicate(), Shard(0)});
            const at::Tensor labels = drawn({6, 4}, mesh, {Shard(0), Replicate()}).argmax(1);
            x.requires_grad_(), w.requires_grad_();
            return [=] {
              const CrossEntropyOptions options{.reduction = reduction};
              const at::Tensor loss =
                  linear ? linear_cross_entropy(x, w, labels, options, 2) : cross_entropy(x, labels, options);
              return loss_and_gradients(loss.sum(), linear ? Results{x, w} : Results{x});
            };
          }};
}

LibraryCall checkpoints() {
  return {"checkpoints", [](const DeviceMesh& mesh) -> std::function<Results()> {
            auto w = std::make_shared<at::Tensor>(drawn({6, 8}, mesh, {Shard(0), Shard(1)}).requires_grad_());
            auto optimizer = std::make_shared<AdamW>(Results{*w});
            return [=] {
              static Folder folder;
              const auto ranks = mesh.world();
              std::int64_t step = 3;
              Checkpoint state;
              state.add("w", *w).add("optimizer", *optimizer).add("step", step).add_random("random", mesh);
              CheckpointSeries series(folder / "series", ranks, 2);
              series.load_newest(state);
              (*w * *w).sum().backward();
              optimizer->step();
              series.save(state, step);
              state.save_async(folder / "background", ranks).wait();
              const at::Tensor before = w->detach().clone();
              at::NoGradGuard no_grad;
              w->zero_();
              series.load_newest(state);
              state.load(folder / "background", ranks);
              ranks.barrier();
              if (ranks.rank() == 0) std::filesystem::remove_all(folder / "series");
              return Results{before, *w};
            };
          }};
}

LibraryCall broadcast_of_state() {
  return {"broadcast_state", [](const DeviceMesh& mesh) -> std::function<Results()> {
            const at::Tensor full = at::arange(24, at::kDouble).view({4, 6});
            const DTensor target = zeros({4, 6}, mesh, {Shard(0), Shard(1)}, at::kDouble);
            return [=] {
              broadcast_state({{"w", full}}, mesh.world(), {{"w", target}});
              const auto made = broadcast_state({{"w", full}}, mesh, [](auto&&...) {
                return Placements{Replicate(), Shard(1)};
              });
              return Results{target, made[0].second};
            };
          }};
}

LibraryCall sharded_step(bool local) {
  return {local ? "fully_shard, local semantics" : "fully_shard",
          [=](const DeviceMesh& mesh) -> std::function<Results()> {
            struct Net : nn::Module {
              Net() { register_module("a", a), register_module("b", b); }
              at::Tensor forward(const at::Tensor& x) { return call(b, at::gelu(call(a, x))); }
              nn::Linear a{4, 6, true, at::kDouble}, b{6, 2, true, at::kDouble};
            };
            auto net = std::make_shared<Net>();
            for (auto& [name, p] : net->named_parameters()) {
              at::NoGradGuard no_grad;
              p->copy_(at::arange(p->numel(), at::kDouble).view(p->sizes()).sin());
            }
            const DeviceMesh flat = mesh.flatten();
            fully_shard(net->a, flat), fully_shard(net->b, flat), fully_shard(*net, flat);
            const at::Tensor rows = at::arange(8 * 4, at::kDouble).view({8, 4}).cos();
            const at::Tensor x = local ? rows : at::Tensor(distribute_tensor(rows, flat, {Shard(0)}));
            return [=] {
              const auto parameters = net->parameters();
              return loss_and_gradients(call(*net, x).square().mean(), parameters);
            };
          }};
}

LibraryCall experts() {
  return {"mixture of experts", [](const DeviceMesh& mesh) -> std::function<Results()> {
            auto layer = std::make_shared<MixtureOfExperts>(
                MoeOptions{.hidden = 4, .ffn = 6, .router = {.experts = 4, .aux_loss = 1e-2}, .tensor = at::kDouble});
            for (auto& [name, p] : layer->named_parameters()) {
              at::NoGradGuard no_grad;
              p->copy_(at::arange(p->numel(), at::kDouble).view(p->sizes()).sin());
            }
            const DeviceMesh flat = mesh.flatten("ep");
            apply_expert_parallel(*layer, flat);
            const at::Tensor x = distribute_tensor(at::arange(8 * 4, at::kDouble).view({8, 4}).cos(), flat, {Shard(0)});
            return [=] {
              const auto out = layer->run(x);
              return loss_and_gradients(out.y.square().mean() + out.loss, {layer->experts.w1, layer->experts.w2});
            };
          }};
}

LibraryCall pipeline_step() {
  return {"pipeline", [](const DeviceMesh& mesh) -> std::function<Results()> {
            const DeviceMesh line = init_device_mesh(mesh.world(), at::kCPU, {4}, {"pp"});
            const auto schedule = pipeline::make_schedule("1f1b", 4, 4);
            auto pipe = std::make_shared<pipeline::Pipeline>(
                line, schedule, [](const auto& out, const auto& want) { return at::mse_loss(out[0], want[0]); });
            const at::Tensor w = at::arange(9, at::kDouble).view({3, 3}).sin().requires_grad_();
            pipe->set_stage(pipe->stages()[0],
                            [=](const auto& in) { return pipeline::Tensors{at::tanh(at::matmul(in[0], w))}; }, {w});
            std::vector<pipeline::Tensors> inputs, targets;
            for (const auto& part : pipeline::microbatches(at::arange(24, at::kDouble).view({8, 3}), 4)) {
              if (pipe->stages()[0] == 0) inputs.push_back({part});
              if (pipe->stages()[0] == pipe->last_stage()) targets.push_back({at::zeros_like(part)});
            }
            return [=] {
              const auto loss = pipe->step(inputs, targets).loss;
              return Results{loss, pipe->clip_grad_norm_(1.0), w.grad()};
            };
          }};
}

LibraryCall scaled_step() {
  return {"GradScaler", [](const DeviceMesh& mesh) -> std::function<Results()> {
            const at::Tensor w = drawn({6, 8}, mesh, {Shard(0), Replicate()}).requires_grad_();
            auto optimizer = std::make_shared<SGD>(Results{w});
            return [=] {
              GradScaler scaler;
              scaler.scale((w * w).sum()).backward();
              scaler.step({w}, [&] { optimizer->step(); });
              scaler.update();
              return Results{w};
            };
          }};
}

LibraryCall others() {
  return {"redistribution, attention, recomputation, random numbers",
          [](const DeviceMesh& mesh) -> std::function<Results()> {
            const at::Tensor x = drawn({2, 2, 8, 4}, mesh, {Replicate(), Shard(2)}).requires_grad_();
            const at::Tensor regular = at::arange(6, at::kDouble);
            return [=] {
              const at::Tensor y = attention(x, x, x, {.causal = true});
              const at::Tensor z = checkpoint([](const at::Tensor& t) { return at::dropout(t, 0.5, true).tanh(); }, y);
              auto result = loss_and_gradients(z.sum(), {x});
              result.push_back(DTensor(x.detach()).redistribute({Shard(0), Replicate()}));
              result.push_back(distribute_tensor(regular, mesh, {Shard(0), Replicate()}));
              result.push_back(std::get<1>(x.detach().topk(2, 2)));
              return result;
            };
          }};
}

std::vector<LibraryCall> library_calls() {
  std::vector<LibraryCall> calls{steps_of<AdamW>("AdamW"),
                                 steps_of<SGD>("SGD", SGDOptions{.momentum = 0.9}),
                                 steps_of<Adagrad>("Adagrad"),
                                 steps_of<Muon>("Muon"),
                                 steps_of<Shampoo>("Shampoo", ShampooOptions{.frequency = 1, .start = 1}),
                                 checkpoints(),
                                 broadcast_of_state(),
                                 sharded_step(false),
                                 sharded_step(true),
                                 experts(),
                                 pipeline_step(),
                                 scaled_step(),
                                 others()};
  for (const auto reduction : {LossReduction::none, LossReduction::mean, LossReduction::sum}) {
    for (const bool linear : {false, true}) calls.push_back(losses(reduction, linear));
  }
  return calls;
}

TEST(MeshScope, CallsOfTheLibraryComputeTheSameInside) {
  for (const LibraryCall& call : library_calls()) {
    const auto run = [&](bool inside) {
      Results of_first;
      on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
        manual_seed(mesh, 3);
        const auto body = call.prepare(mesh);
        std::optional<MeshScope> scope;
        if (inside) scope.emplace(mesh);
        const Results results = body();
        scope.reset();
        const Results full = copies(results);
        if (mesh.world().rank() == 0) of_first = full;
      });
      return of_first;
    };
    const Results outside = run(false);
    Results inside;
    try {
      inside = run(true);
    } catch (const std::exception& error) {
      ADD_FAILURE() << call.name << ": " << std::string(error.what()).substr(0, 200);
      continue;
    }
    ASSERT_EQ(inside.size(), outside.size()) << call.name;
    for (std::size_t i = 0; i < inside.size(); ++i) expect_close(inside[i], outside[i], c10::str(call.name, " ", i), 0);
  }
}

}  // namespace
}  // namespace dtensor::test
