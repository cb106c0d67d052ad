// Plans: patterns, refused plans, and parameters on meshes with other axes.
#include "dtensor/parallelize.h"

#include "name_patterns/name_patterns.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
using dtensor::test::error_of;

TEST(Names, PatternsMatchPartsBetweenDots) {
  EXPECT_TRUE(matches_pattern("h.*.attn.q_proj", "h.0.attn.q_proj"));
  EXPECT_FALSE(matches_pattern("h.*.q_proj", "h.0.attn.q_proj"));
  EXPECT_TRUE(matches_pattern("h.**.q_proj", "h.0.attn.q_proj"));
  EXPECT_TRUE(matches_pattern("**", "a.b"));
  EXPECT_TRUE(matches_pattern("*_proj", "q_proj"));
  EXPECT_FALSE(matches_pattern("*_proj", "a.q_proj"));
  EXPECT_FALSE(matches_pattern("h", "h.0"));
  EXPECT_TRUE(matches_pattern("", ""));
  EXPECT_EQ(closest_names("atn.q", {"mlp.up", "attn.q", "ln"}, 1), std::vector<std::string>{"attn.q"});
}

nn::Block block() {
  return nn::Block({.hidden = 8, .heads = 4, .kv_heads = 2, .bias = true}, {.hidden = 8, .ffn = 12});
}

const ParallelPlan& megatron() {
  static const ParallelPlan plan = {{"attn.q_proj", ColwiseParallel()}, {"attn.k_proj", ColwiseParallel()},
                                    {"attn.v_proj", ColwiseParallel()}, {"attn.o_proj", RowwiseParallel()},
                                    {"mlp.up_proj", ColwiseParallel()}, {"mlp.down_proj", RowwiseParallel()}};
  return plan;
}

void on_tp(int ranks, const std::function<void(const DeviceMesh&)>& body) {
  run_local(ranks, [&](Communicator world) { body(init_device_mesh(world, at::kCPU, {ranks}, {"tp"})); });
}

// Three heads of four features on two ranks: one rank gets two heads, the other one, in weights, biases and the next
// layer.
TEST(Plan, BlocksAreNotSplit) {
  on_tp(2, [](const DeviceMesh& mesh) {
    nn::Linear heads(5, 12), back(12, 5);
    parallelize(heads, mesh, {{"", ColwiseParallel{.in = {}, .out = {}, .block = 4}}});
    parallelize(back, mesh, {{"", RowwiseParallel{.in = {}, .out = {}, .block = 4}}});
    EXPECT_EQ(DTensor(heads.weight).placements(), Placements{RaggedShard(0, {8, 4})});
    EXPECT_EQ(DTensor(heads.bias).placements(), Placements{RaggedShard(0, {8, 4})});
    EXPECT_EQ(DTensor(back.weight).placements(), Placements{RaggedShard(1, {8, 4})});
    nn::Linear even(5, 12);
    parallelize(even, mesh, {{"", ColwiseParallel{.in = {}, .out = {}, .block = 3}}});
    EXPECT_EQ(DTensor(even.weight).placements(), Placements{Shard(0)});
    nn::Linear other(5, 12);
    const auto text = error_of([&] { parallelize(other, mesh, {{"", ColwiseParallel{.block = 0}}}); });
    EXPECT_NE(text.find("expected a block of at least 1 feature, got 0"), std::string::npos) << text;
  });
}

TEST(Plan, PlacesParametersOfEachStyle) {
  on_tp(2, [](const DeviceMesh& mesh) {
    nn::Block model = block();
    const ParallelModel done = parallelize(model, mesh, megatron());
    EXPECT_EQ(DTensor(model.attn.q_proj.weight).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(model.attn.q_proj.bias).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(model.attn.o_proj.weight).placements(), Placements{Shard(1)});
    EXPECT_EQ(DTensor(model.attn.o_proj.bias).placements(), Placements{Replicate()});
    EXPECT_EQ(DTensor(model.ln1.weight).placements(), Placements{Replicate()});
    EXPECT_EQ(done.parameters().size(), model.named_parameters().size());
    EXPECT_NE(done.str().find("parameter attn.q_proj.weight: S(0) (attn.q_proj)"), std::string::npos) << done.str();
    EXPECT_NE(done.str().find("activation attn.o_proj.out: R"), std::string::npos) << done.str();
    nn::Embedding words(5, 4);
    parallelize(words, mesh, {{"weight", ShardParameter{0}}});
    EXPECT_EQ(DTensor(words.weight).placements(), Placements{Shard(0)});
    struct Wrapped : nn::Module {
      Wrapped() : words(5, 4) { register_module("words", words); }
      nn::Embedding words;
    } wrapped;
    parallelize(wrapped, mesh, {{"words", RowwiseParallel()}});
    EXPECT_EQ(DTensor(wrapped.words.weight).placements(), Placements{Shard(0)});
  });
}

TEST(Plan, RefusesPatternsThatMatchNothingOrTwice) {
  on_tp(2, [](const DeviceMesh& mesh) {
    nn::Block model = block();
    const auto error = [&](const ParallelPlan& plan) { return error_of([&] { parallelize(model, mesh, plan); }); };
    EXPECT_NE(error({{"atn.q_proj", ColwiseParallel()}}).find("matches nothing; the nearest names are attn.q_proj"),
              std::string::npos);
    EXPECT_NE(error({{"attn.*", ColwiseParallel()}, {"attn.q_proj", RowwiseParallel()}}).find("claimed by two entries"),
              std::string::npos);
    EXPECT_NE(error({{"attn", PrepareModuleInput{Shard(1)}}, {"attn.in", ConstrainActivation{Replicate()}}})
                  .find("claimed by two entries"),
              std::string::npos);
    EXPECT_NE(error({{"attn", ColwiseParallel()}}).find("without parameters of their own"), std::string::npos);
    EXPECT_NE(error({{"ln1.weight", ShardParameter{1}}}).find("splits dimension 1"), std::string::npos);
    EXPECT_NE(error_of([&] { parallelize(model, mesh, {{"scores", ConstrainActivation{Replicate()}}}); }), "no error");
    // Refused plans change nothing.
    EXPECT_FALSE(is_dtensor(model.attn.q_proj.weight));
  });
}

TEST(Plan, TiedParametersStayTiedAndMustAgree) {
  on_tp(2, [](const DeviceMesh& mesh) {
    at::Tensor a = at::ones({4, 4}), b = a, c = at::ones({3});
    const NamedTensors list = {{"a.weight", &a}, {"b.weight", &b}, {"c", &c}};
    EXPECT_NE(error_of([&] {
                parallelize(list, mesh, {{"a", ColwiseParallel()}, {"b", RowwiseParallel()}});
              }).find("tied"),
              std::string::npos);
    parallelize(list, mesh, {{"b", ColwiseParallel()}});
    EXPECT_TRUE(a.is_same(b));
    EXPECT_EQ(DTensor(a).placements(), Placements{Shard(0)});
  });
}

// Regular, on the mesh, on a slice of it, or stored fully sharded: values stay the same, and the other axis stays
// sharded.
TEST(Plan, ParametersOnSlicesAndFullyShardedOnes) {
  run_local(6, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3, 2}, {"dp", "tp"});
    test::Draw draw(1);
    for (const std::int64_t rows : {7, 12, 1}) {
      const at::Tensor value = draw.normal({rows, 3});
      const auto check = [&](at::Tensor tensor, const Placements& expected, std::int64_t dim) {
        parallelize(NamedTensors{{"w", &tensor}}, mesh, {{"w", ShardParameter{dim}}});
        EXPECT_EQ(DTensor(tensor).placements(), expected) << DTensor(tensor).spec_str();
        EXPECT_TRUE(at::equal(DTensor(tensor).full_tensor(), value)) << DTensor(tensor).spec_str();
      };
      check(value.clone(), {Replicate(), Shard(0)}, 0);
      check(distribute_tensor(value, mesh, {Shard(0), Replicate()}), {StridedShard(0, 2), Shard(0)}, 0);
      check(distribute_tensor(value, mesh, {Shard(0).as_storage(), Shard(1)}),
            {StridedShard(0, 2).as_storage(), Shard(0)}, 0);
      check(distribute_tensor(value, mesh, {StridedShard(0, 2), Shard(0)}), {Shard(0), Shard(1)}, 1);
      check(distribute_tensor(value, mesh["tp"], {Shard(0)}), {Replicate(), Shard(1)}, 1);
      check(distribute_tensor(value, mesh["dp"], {Shard(0)}), {StridedShard(0, 2), Shard(0)}, 0);
    }
  });
}

// A constrained point reduces the partial gradients once.
TEST(Constrain, ReducesTheGradient) {
  on_tp(2, [](const DeviceMesh& mesh) {
    test::Draw draw(2);
    const at::Tensor value = draw.normal({3, 4}), w = draw.normal({4, 6});
    const at::Tensor x = distribute_tensor(value, mesh, {Replicate()}).requires_grad_();
    const at::Tensor weight = distribute_tensor(w, mesh, {Shard(1)});
    const at::Tensor middle = x * 2, pinned = constrain(middle, {Replicate()});
    std::string seen;
    middle.register_hook([&](const at::Tensor& g) { seen = to_string(DTensor(g).placements()); });
    CommDebugMode comms;
    (at::mm(pinned, weight).sum() + at::mm(pinned, weight).sum()).backward();
    EXPECT_EQ(seen, "[R]");
    EXPECT_EQ(comms.total("all_reduce", Phase::backward).calls, 1) << comms.table();
    test::expect_close(x.grad(), (w.sum(1) * 4).expand({3, 4}), "gradient");
    EXPECT_EQ(DTensor(constrain(x, "tp", Shard(-1))).placements(), Placements{Shard(1)});
    EXPECT_ANY_THROW(constrain(x, "tp", Shard(2)));
    EXPECT_ANY_THROW(constrain(value, {Replicate()}));
  });
}

// A model of functions: names of parameters give the modules, activation points are named in the code.
TEST(Constrain, NamedPointsFollowThePlanInScope) {
  on_tp(2, [](const DeviceMesh& mesh) {
    at::Tensor w = at::ones({4, 4});
    const ParallelModel plan = parallelize(NamedTensors{{"h.0.q.weight", &w}}, mesh,
                                           {{"h.*.q", ColwiseParallel()},
                                            {"h.0", PrepareModuleInput{Shard(0)}},
                                            {"h.0.scores", ConstrainActivation{Shard(1)}}},
                                           {.activations = {"h.0.scores"}});
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()});
    EXPECT_EQ(DTensor(constrain("h.0.in", x)).placements(), Placements{Replicate()});  // No plan is current.
    const ParallelModel::Scope scope(plan);
    EXPECT_EQ(DTensor(constrain("h.0.in", x)).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(constrain("h.0.out", x)).placements(), Placements{Replicate()});
    const std::string name = "h.0";
    const ModuleScope module(name);
    EXPECT_EQ(DTensor(constrain("scores", x)).placements(), Placements{Shard(1)});
  });
}

}  // namespace
