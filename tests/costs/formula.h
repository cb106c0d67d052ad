// Costs of a training step of apps/train on rank 0, computed from sizes alone: collectives by kind and axis with
// bytes received, and bytes in memory. Parameters, gradients and states have 4 bytes per element. Computation uses 4,
// or 2 with --mixed-precision bf16, except for norms and routers.
#pragma once

#include <numeric>
#include <vector>

#include "costs/measure.h"

namespace costs {

using Int = std::int64_t;

inline Int chunk(Int n, Int parts) { return (n + parts - 1) / parts; }  // chunk of rank 0
inline Int aligned(Int bytes) { return chunk(bytes, 64) * 64; }
// Bytes that a ring all-reduce of `bytes` sends to each of n ranks.
inline Int reduced(Int bytes, Int n) { return 2 * bytes * (n - 1) / n; }

// A parameter after tensor and expert parallelism on this rank; an FSDP unit splits its rows.
struct Matrix {
  Int rows, width, element;
};

struct Unit {
  std::vector<Matrix> parameters;
  std::string axis;
  Int ranks;

  template <class Of>
  Int sum(const Of& of) const {
    return std::accumulate(parameters.begin(), parameters.end(), Int{0},
                           [&](Int all, const Matrix& m) { return all + of(m); });
  }
  Int shard() const {
    return sum([&](const Matrix& m) { return chunk(m.rows, ranks) * m.width * 4; });
  }
  Int received() const {
    return sum([&](const Matrix& m) { return (m.rows - chunk(m.rows, ranks)) * m.width * m.element; });
  }
  Int flat() const {
    return ranks == 1 ? 0 : sum([&](const Matrix& m) { return aligned(m.rows * m.width * m.element); });
  }
};

class Formula {
 public:
  explicit Formula(const train::Options& options)
      : o(options), config(train::gpt_config(options)), r(o.mesh->replicate), s(o.mesh->shard), t(o.mesh->tp) {
    if (o.experts) sparse = train::fit_sparse(*o.experts, *o.mesh);
    pieces = o.grad_accum;
    element = o.bf16 ? 2 : 4;
    tokens = o.batch * o.seq / (r * s) / pieces;
  }

  Counts counts() const {
    Counts all;
    count_units(all);
    count_tensor_parallel(all);
    if (o.experts) count_experts(all);
    // One all-reduce sums the number of targets of a split batch, its loss and its bounds check.
    all["scalars"].calls = r * s > 1 ? pieces : 0;
    count_norm(all);
    std::erase_if(all, [](const auto& entry) { return entry.second.calls == 0; });
    return all;
  }

  std::vector<Unit> units() const {  // the last unit has embedding, head and final norm
    std::vector<Unit> all;
    for (Int layer = 0; layer < config.layers; ++layer) {
      if (o.experts) all.push_back(experts());
      all.push_back(block());
    }
    const Int words = chunk(config.vocabulary, t), h = config.hidden;
    all.push_back({{{words, h, element}, {words, h, element}, {h, 1, 4}, {h, 1, 4}}, "shard", s});
    return all;
  }

  Int parameter_bytes() const {
    Int bytes = 0;
    for (const auto& unit : units()) bytes += unit.shard();
    return bytes;
  }

  // Gradients that wait for a reduction after one piece of a batch, of all parameters that a unit splits or replicates.
  Int waiting_bytes() const {
    Int bytes = 0;
    for (const auto& unit : units()) {
      const bool reduced = unit.ranks > 1 || (r > 1 && unit.axis == "shard");
      if (reduced) bytes += unit.sum([](const Matrix& m) { return m.rows * m.width * 4; });
    }
    // With sequence parallelism, gradients of norms are sums over tp.
    if (bytes == 0 && o.sequence_parallel) bytes = (2 * config.layers + 1) * 2 * config.hidden * 4;
    return bytes;
  }

  // Gradients of the last unit, or of a block while those of the head and the final norm wait for the embedding's. A
  // block with experts has two units, whose gradients are complete at about the same time.
  Int largest_gradient_bytes() const {
    const auto list = units();
    const auto gradients = [](const Unit& unit) {
      return unit.sum([](const Matrix& m) { return m.rows * m.width * 4; });
    };
    const Int of_block = gradients(list[0]) + (o.experts ? gradients(list[1]) : 0);
    const Int last = gradients(list.back()), embedding = chunk(config.vocabulary, t) * config.hidden * 4;
    return std::max(last, last - embedding + of_block);
  }

  // Bytes of the root unit and the largest other unit, or of all units without reshard.
  Int in_use_bytes() const {
    Int all = 0, largest = 0;
    const auto list = units();
    for (const auto& unit : list) {
      all += unit.flat();
      if (&unit != &list.back()) largest = std::max(largest, unit.flat());
    }
    return o.reshard == "false" ? all : list.back().flat() + largest;
  }
  // Also includes this rank's shares of the other units if groups of ranks keep a copy.
  Int gathered_bytes() const {
    auto others = units();
    others.pop_back();
    others.erase(std::max_element(others.begin(), others.end(),
                                  [](const Unit& a, const Unit& b) { return a.flat() < b.flat(); }));
    Int bytes = in_use_bytes();
    for (const auto& unit : others) bytes += kept_share(unit);
    return bytes;
  }

 private:
  static void add(Counts& all, const std::string& key, Int calls, Int bytes) {
    all[key].calls += calls;
    all[key].bytes += bytes;
  }

  Unit block() const {
    const Int h = config.hidden, f = config.ffn, e = element;
    Unit unit{{{h / t, h, e}, {h / t, h, e}, {h / t, h, e}, {h, h / t, e}}, "shard", s};
    if (o.experts) {
      unit.parameters.push_back({o.experts->experts, h, 4});
    } else {
      unit.parameters.push_back({f / t, h, e});
      unit.parameters.push_back({h, f / t, e});
    }
    for (int norm = 0; norm < 4; ++norm) unit.parameters.push_back({h, 1, 4});
    return unit;
  }

  Unit experts() const {
    const Int h = config.hidden, here = o.experts->experts / sparse.ep, width = h * h / sparse.etp;
    return {{{here, width, element}, {here, width, element}, {here, width, element}}, "edp", sparse.edp};
  }

  // The unit that backward uses first beside the root unit: the last one used in forward. Recomputation starts with the
  // attention of the layer, whose unit the unit of experts has replaced.
  std::size_t kept_for_backward(const std::vector<Unit>& list) const {
    const std::size_t block = list.size() - 2, of_experts = block - 1;
    if (!o.experts || list[of_experts].ranks == 1) return block;
    return o.checkpoint_activations ? list.size() : of_experts;
  }

  // Bytes of a unit that are kept between forward and backward.
  Int kept_share(const Unit& unit) const {
    if (o.reshard == "true" || o.reshard == "false" || std::stoll(o.reshard) >= unit.ranks) return 0;
    return aligned(chunk(unit.flat(), std::stoll(o.reshard)));
  }

  // Gathers in forward and, if resharded, in backward: from all ranks, or from the ranks that keep a copy together.
  void count_units(Counts& all) const {
    const auto list = units();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Unit& unit = list[i];
      if (unit.ranks > 1) {
        const auto gather = "all_gather " + unit.axis;
        const bool dropped = o.reshard != "false" && i + 1 != list.size() && i != kept_for_backward(list);
        add(all, gather, pieces, pieces * unit.received());
        if (dropped) add(all, gather, pieces, pieces * again(unit));
        add(all, "reduce_scatter " + unit.axis, reductions(), reductions() * unit.shard() * (unit.ranks - 1));
      }
      if (r > 1 && unit.axis == "shard") add(all, "all_reduce replicate", 1, reduced(unit.shard(), r));
    }
  }

  // Of a step's gradients, other than sums over replicas.
  Int reductions() const { return o.accumulate_sharded ? pieces : 1; }

  Int again(const Unit& unit) const {
    if (o.reshard == "true" || std::stoll(o.reshard) >= unit.ranks) return unit.received();
    return unit.flat() - kept_share(unit);
  }

  // Each block has two sums per direction (one with experts in place of the MLP). The embedding and the gradient of the
  // head's input add one each. With sequence parallelism each sum is a reduce-scatter and an all-gather, and backward
  // gathers the inputs of column-parallel layers again, since their shards are saved (as in Megatron). Recomputation
  // repeats those of the blocks, and the sum of the first block's input unless the sequence is split.
  void count_tensor_parallel(Counts& all) const {
    if (t == 1) return;
    const Int h = config.hidden, parts = o.experts ? 1 : 2, bytes = tokens * h * element;
    const Int blocks = parts * config.layers, again = blocks + (o.sequence_parallel ? 0 : 1);
    const Int sums = pieces * (2 * (blocks + 1) + (o.checkpoint_activations ? again : 0));
    if (o.sequence_parallel) {
      add(all, "reduce_scatter tp", sums, sums * bytes * (t - 1) / t);
      const Int gathers = sums + pieces * (blocks + 1);
      add(all, "all_gather tp", gathers, gathers * bytes * (t - 1) / t);
      add(all, "all_reduce tp", reductions(),
          reductions() * reduced((2 * config.layers + 1) * 2 * h * 4, t));  // gradients of norms
    } else {
      add(all, "all_reduce tp", sums, sums * reduced(bytes, t));
    }
    add(all, "all_gather tp", pieces, pieces * tokens * (config.vocabulary - chunk(config.vocabulary, t)) * element);
  }

  // One number per parameter, over the only axis that splits parameters, or over all ranks if several do.
  void count_norm(Counts& all) const {
    Int numbers = 0;
    for (const auto& unit : units()) numbers += static_cast<Int>(unit.parameters.size());
    std::vector<std::pair<std::string, Int>> split{{"shard", s}, {"tp", t}};
    if (o.experts) split.insert(split.end(), {{"edp", sparse.edp}, {"ep", sparse.ep}, {"etp", sparse.etp}});
    std::erase_if(split, [](const auto& axis) { return axis.second == 1; });
    if (split.empty()) return;
    const auto [axis, ranks] =
        split.size() == 1 ? split[0] : std::pair<std::string, Int>("replicate_shard_cp_tp", r * s * t);
    add(all, "all_reduce " + axis, 1, reduced(numbers * 8, ranks));
  }

  // Rows are sent and returned, forward and backward, and again for recomputation.
  void count_experts(Counts& all) const {
    const Int h = config.hidden, layers = config.layers * pieces, passes = o.checkpoint_activations ? 6 : 4;
    const bool cuts = t > 1 && sparse.etp == 1;  // tp ranks split the tokens, which are replicated over tp
    const Int entries = tokens / (cuts ? t : 1) * o.experts->top_k;
    if (sparse.ep > 1) {
      add(all, "all_to_all ep", passes * layers, passes * layers * entries * (sparse.ep - 1) / sparse.ep * h * element);
    }
    if (t == 1) return;
    const Int bytes = tokens * h * element;
    const Int ways = layers * passes / 2;  // results and gradients are combined over tp
    if (cuts) add(all, "all_gather tp", ways, ways * bytes * (t - 1) / t);
    if (!cuts) add(all, "all_reduce tp", ways, ways * reduced(bytes, t));
    // The router's gradient, from this rank's tokens or part of the experts.
    const Int sums = config.layers * reductions();
    add(all, "all_reduce tp", sums, sums * reduced(chunk(o.experts->experts, s) * h * 4, t));
  }

  const train::Options& o;
  train::GptConfig config;
  Int r, s, t, pieces, element, tokens;
  train::SparseShape sparse;
};

}  // namespace costs
