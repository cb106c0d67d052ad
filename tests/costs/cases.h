// Configurations whose costs are tested and printed.
#pragma once

#include "train/args.h"

namespace costs {

struct Case {
  std::string name;
  train::Options options;
};

inline train::Options small(train::MeshShape mesh) {
  train::Options o;
  o.mesh = mesh;
  o.batch = 16, o.seq = 8, o.hidden = 16, o.layers = 3;
  return o;
}

// With forced balance, sizes determine what each rank sends.
inline train::Options small_moe(train::MeshShape mesh, std::int64_t ep, std::int64_t etp = 1) {
  auto o = small(mesh);
  auto& e = o.experts.emplace();
  e.ep = ep, e.etp = etp;
  e.balance = "forced", e.dispatcher = "equal";
  return o;
}

inline std::vector<Case> layouts() {
  auto sequence = small({1, 1, 2});
  sequence.sequence_parallel = true;
  return {{"fsdp 2", small({1, 2, 1})},
          {"fsdp 4", small({1, 4, 1})},
          {"hsdp 2x2", small({2, 2, 1})},
          {"tp 2", small({1, 1, 2})},
          {"tp 2, sp", sequence},
          {"2x2x2", small({2, 2, 2})},
          {"moe, ep 2", small_moe({1, 2, 1}, 2)},
          {"moe, edp 2", small_moe({1, 2, 1}, 1)},
          {"moe, edp 2 x ep 2", small_moe({1, 4, 1}, 2)},
          {"moe, ep 2 x etp 2", small_moe({1, 2, 2}, 2, 2)},
          {"moe, ep 4 over tp 2", small_moe({1, 2, 2}, 4)}};
}

// Each layout with float and bfloat16, with and without recomputation, reshard options and gradient accumulation.
inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& [name, base] : layouts()) {
    const auto with = [&](const char* what, auto&& change) {
      all.push_back({name + what, base});
      change(all.back().options);
    };
    with("", [](auto&) {});
    with(", bf16", [](auto& o) { o.bf16 = true; });
    with(", recomputed", [](auto& o) { o.checkpoint_activations = true; });
    with(", bf16, recomputed", [](auto& o) { o.bf16 = o.checkpoint_activations = true; });
    with(", kept", [](auto& o) { o.reshard = "false"; });
    if (base.mesh->shard == 4) with(", 2 keep a copy", [](auto& o) { o.reshard = "2"; });
    with(", 2 pieces", [](auto& o) { o.grad_accum = 2; });
    with(", 2 pieces, unsharded", [](auto& o) { o.grad_accum = 2, o.accumulate_sharded = false; });
  }
  return all;
}

}  // namespace costs
