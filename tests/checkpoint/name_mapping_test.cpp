// Checkpoints of other programs: renames, splits, fusions, stacks and transposes, loaded onto any layout and written
// back.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "folder.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

// A model with each kind of difference, and the same tensors as another program stores them.
struct TransformedModel {
  StateTensors ours, theirs;
  StateDictKeyMapping names;
};

TransformedModel make_transformed_model(Draw& draw, at::ScalarType dtype) {
  const std::int64_t rows = draw.integer(1, 6), columns = draw.integer(1, 6), experts = draw.integer(1, 4);
  const auto value = [&](const Shape& sizes) { return draw.normal(sizes, dtype); };
  const auto regular = value({rows, columns}), turned = value({rows, columns}), stack = value({experts, rows, columns});
  const auto q = value({rows, columns}), k = value({rows + 1, columns}), fused = value({rows + 2, columns});
  const auto scalar = value({});
  TransformedModel t;
  t.ours = {{"a.0.w", regular}, {"a.0.turned", turned}, {"a.0.stack", stack}, {"a.0.q", q},
            {"a.0.k", k},       {"a.0.fused", fused},   {"scalar", scalar}};
  t.theirs = {{"x.0.weight", regular},
              {"x.0.turned", turned.t().contiguous()},
              {"x.0.qk", at::cat({q, k}).t().contiguous()},
              {"x.0.up", fused.narrow(0, 0, 2).contiguous()},
              {"x.0.down", fused.narrow(0, 2, rows).contiguous()},
              {"s", scalar}};
  for (std::int64_t e = 0; e < experts; ++e) {
    t.theirs.emplace_back("x.0.e." + std::to_string(e) + ".w", stack.select(0, e).t().contiguous());
  }
  t.names = {{"a.*.w", "x.*.weight"},
             {"a.*.turned", "x.*.turned", true},
             {"a.*.stack", "x.*.e.#.w", true},
             {"a.*.q", "x.*.qk", true, {1, 0, rows}},
             {"a.*.k", "x.*.qk", true, {1, rows, rows + 1}},
             {"a.*.fused", "x.*.up", false, {}, {0, 0, 2}},
             {"a.*.fused", "x.*.down", false, {}, {0, 2, rows}},
             {"scalar", "s"},
             {"", "x.*.mask"}};
  t.theirs.emplace_back("x.0.mask", at::ones({3}));
  return t;
}

const at::Tensor& named(const StateTensors& state, const std::string& name) {
  for (const auto& [key, tensor] : state) {
    if (key == name) return tensor;
  }
  TORCH_CHECK(false, "no tensor '", name, "'");
}

RC_GTEST_PROP(StateDictKeyMapping, ReadsAndWritesBackOnAnyLayout, ()) {
  Draw draw(*rc::gen::arbitrary<std::uint64_t>());
  const auto dtype = draw.coin() ? at::kFloat : at::kDouble;
  const TransformedModel twin = make_transformed_model(draw, dtype);
  const Folder folder;
  run_local(1, [&](Communicator world) { save_state(folder / "theirs", world, twin.theirs); });
  const auto target_dtype = draw.coin() ? dtype : at::kDouble;
  const Shape shape = draw.coin() ? Shape{3} : Shape{2, 2};
  const auto seed = draw.engine()();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw same(seed);
    StateTensors targets;
    for (const auto& [name, tensor] : twin.ours) {
      const Shape sizes = tensor.sizes().vec();
      targets.emplace_back(name, dtensor::full(sizes, -1, mesh, any_layout(same, mesh, sizes), target_dtype));
    }
    LoadOptions options;
    options.names = twin.names;
    options.allow_cast = true;
    load_state(folder / "theirs", mesh.world(), targets, options);
    for (const auto& [name, tensor] : targets) {
      expect_close(tensor, named(twin.ours, name).to(target_dtype), name + " " + DTensor(tensor).spec_str(), 0);
    }
    const auto stored = map_state_dict_keys(targets, twin.names);
    ASSERT_EQ(stored.size() + 1, twin.theirs.size());  // the mask is not stored
    for (const auto& [name, tensor] : stored) expect_close(tensor, named(twin.theirs, name).to(target_dtype), name, 0);
    save_state(folder / "again", mesh.world(), stored);
  });
  run_local(1, [&](Communicator world) {
    StateTensors targets;
    for (const auto& [name, tensor] : twin.ours) targets.emplace_back(name, at::zeros_like(tensor));
    LoadOptions options;
    options.names = twin.names;
    options.allow_cast = true;
    load_state(folder / "again", world, targets, options);
    for (const auto& [name, tensor] : targets) expect_close(tensor, named(twin.ours, name), name, 0);
  });
}

// States have names of parameters, as tensors (averages) and as values (steps).
TEST(StateDictKeyMapping, OptimizerStatesAreRenamed) {
  const Folder folder;
  const auto trained = [](const at::Tensor& p) { p.mutable_grad() = at::full_like(p, 0.5); };
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    at::Tensor theirs = ones({4, 3}, mesh, {Shard(0)}), ours = zeros({4, 3}, mesh, {Replicate()});
    theirs.requires_grad_(), ours.requires_grad_();
    AdamW their_rule({{.parameters = {theirs}, .names = {"h.0.w"}}});
    AdamW our_rule({{.parameters = {ours}, .names = {"layers.0.w"}}});
    trained(theirs), their_rule.step();
    Checkpoint saved;
    saved.add("model", StateTensors{{"h.0.w", theirs}}).add("rule", their_rule).save(folder / "c", world);
    const LoadOptions options{.names = {{"**.layers.*.**", "**.h.*.**"}}};
    Checkpoint checkpoint;
    checkpoint.add("model", StateTensors{{"layers.0.w", ours}})
        .add("rule", our_rule)
        .load(folder / "c", world, options);
    trained(theirs), their_rule.step();
    trained(ours), our_rule.step();
    expect_close(ours.detach(), DTensor(theirs.detach()).full_tensor(), "after a step", 0);
  });
}

TEST(StateDictKeyMapping, TiedTensorLoadsFromAnyOfItsNames) {
  const Folder folder;
  const auto value = at::randn({4, 3});
  run_local(1, [&](Communicator world) { save_state(folder / "head", world, {{"their.head", value}}); });
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const at::Tensor tied = zeros({4, 3}, mesh, {Shard(0)});
    LoadOptions options;
    options.names = {{"embed", "their.embed"}, {"head", "their.head"}};
    load_state(folder / "head", world, {{"embed", tied}, {"head", tied}}, options);
    expect_close(tied, value, "tied", 0);
  });
}

TEST(StateDictKeyMapping, MismatchIsOneErrorOnEveryRank) {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    save_state(folder / "theirs", world, {{"x.w", at::zeros({2, 3})}, {"x.more", at::zeros({2})}});
  });
  run_local(2, [&](Communicator world) {
    const auto load = [&](const StateTensors& targets, const StateDictKeyMapping& names) {
      LoadOptions options;
      options.names = names;
      return error_of([&] { load_state(folder / "theirs", world, targets, options); });
    };
    const auto has = [](const std::string& text, const std::string& part) {
      EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
    };
    has(load({{"w", at::zeros({2, 3})}}, {{"w", "x.w"}}), "in the checkpoint but not requested: 'x.more'");
    const StateDictKeyMapping rest = {{"", "x.more"}};
    const auto with = [&](StateDictKeyRule row) { return StateDictKeyMapping{row, rest[0]}; };
    has(load({{"w", at::zeros({2, 3})}}, with({"w", "x.v"})), "missing in the checkpoint: 'x.v' (nearest: 'x.w')");
    has(load({{"w", at::zeros({3, 2})}}, with({"w", "x.w"})),
        "'x.w' has sizes [2, 3] in the checkpoint, which do not match 'w' of sizes [3, 2]");
    EXPECT_EQ(load({{"w", at::zeros({3, 2})}}, with({"w", "x.w", true})), "no error");
    has(load({{"w", at::zeros({2, 3}, at::kDouble)}}, with({"w", "x.w"})),
        "is Float in the checkpoint, Double in the target (set allow_cast to convert)");
    has(load({{"v", at::zeros({2, 3})}}, with({"w", "x.w"})), "missing in the checkpoint: 'v'");
    has(load({{"w", at::zeros({5, 3})}}, with({"w", "x.w", false, {}, {0, 0, 2}})), "fill 6 of its 15 elements");
    has(load({{"w", at::zeros({2, 2})}}, with({"w", "x.w", false, {1, 2, 2}})), "do not match");
  });
  EXPECT_NE(error_of([] {
              map_state_dict_keys({{"w", at::zeros({2})}}, {{"v", "x"}});
            }).find("no row of the mapping matches 'w'"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              map_state_dict_keys({{"w", at::zeros({2})}}, {{"w", "x", false, {0, 1, 2}}});
            }).find("do not cover it"),
            std::string::npos);
}

}  // namespace
}  // namespace dtensor::test
