// A small model with every kind of parameter that a unit may have: matrices used directly and through views, permuted
// strides, three dimensions, vectors, one element, no dimensions, a tied embedding, a shard on the first rank only, no
// elements, and an unused parameter.
#pragma once

#include <map>

#include "dtensor/fully_shard.h"
#include "support/ranks.h"

namespace dtensor::test {

struct Net {
  std::vector<std::string> names;
  std::map<std::string, at::Tensor> p;

  explicit Net(std::uint64_t seed, at::ScalarType dtype = at::kDouble) {
    Draw draw(seed);
    const auto in = draw.integer(1, 5), hidden = draw.integer(2, 7), out = draw.integer(1, 6);
    const auto words = draw.integer(2, 7);
    add("a.w", draw.normal({hidden, in}, dtype));
    add("a.b", draw.normal({hidden}, dtype));
    add("a.scale", draw.normal({}, dtype));
    add("b.ln.w", draw.normal({hidden}, dtype) + 1);
    add("b.ln.b", draw.normal({hidden}, dtype));
    add("b.w", draw.normal({hidden, hidden}, dtype).t());
    add("emb", draw.normal({words, out}, dtype));
    add("w2", draw.normal({hidden, out}, dtype));
    add("one", draw.normal({1}, dtype));
    add("cube", draw.normal({draw.integer(1, 5), 2, out}, dtype));
    add("nothing", draw.normal({0, 3}, dtype));
    add("unused", draw.normal({3, 2}, dtype));
  }

  void add(const std::string& name, at::Tensor t) {
    names.push_back(name);
    p[name] = t.detach().mul_(0.5).requires_grad_();
  }
  NamedTensors list(const std::string& prefix = "") {
    NamedTensors result;
    for (const auto& name : names) {
      if (name.rfind(prefix, 0) == 0) result.emplace_back(name, &p[name]);
    }
    return result;
  }
  std::int64_t in() const { return p.at("a.w").size(1); }
  std::int64_t words() const { return p.at("emb").size(0); }

  at::Tensor loss(const at::Tensor& x, const at::Tensor& ids) const {
    const auto& w = p;
    const auto looked_up =
        at::embedding(w.at("emb"), ids);  // First and last: parameters outside of blocks stay gathered.
    auto h = at::gelu(at::linear(x, w.at("a.w"), w.at("a.b"))) * w.at("a.scale");
    auto n = at::layer_norm(h, {h.size(-1)}, w.at("b.ln.w"), w.at("b.ln.b"));
    h = h + at::linear(n, w.at("b.w"));
    auto y = at::matmul(h, w.at("w2")) * w.at("one") + w.at("cube").sum(at::IntArrayRef{0, 1});
    y = y + looked_up + w.at("nothing").sum();
    return at::linear(y, w.at("emb")).square().mean();
  }
};

struct Data {
  at::Tensor x, ids;
};
inline Data data(const Net& net, std::uint64_t seed, std::int64_t rows, at::ScalarType dtype = at::kDouble) {
  Draw draw(seed);
  auto x = draw.normal({rows, net.in()}, dtype);
  return {x, draw.integers({rows}, net.words())};
}

inline void step(Net& net, double lr = 0.01) {
  const at::NoGradGuard no_grad;
  for (auto& [name, t] : net.p) {
    if (!t.grad().defined()) continue;
    t.sub_(t.grad(), lr);
    t.mutable_grad().reset();
  }
}

struct Axes3 {
  std::int64_t replicate = 1, shard = 1, tp = 1;
  int ranks() const { return static_cast<int>(replicate * shard * tp); }
};
inline DeviceMesh make_mesh(const Communicator& world, const Axes3& a) {
  return init_device_mesh(world, at::kCPU, {a.replicate, a.shard, a.tp}, {"replicate", "shard", "tp"});
}
inline const Placements kBatch = {Shard(0), Shard(0), Replicate()};

// Splits parameters with two dimensions column-wise or row-wise on tp, without a plan.
inline void place_on_tp(Net& net, const DeviceMesh& mesh) {
  const auto put = [&](const char* name, Placement tp) {
    auto& t = net.p[name];
    t = distribute_tensor(t.detach(), mesh, {Replicate(), Replicate(), tp}).requires_grad_();
  };
  put("a.w", Shard(0));
  put("a.b", Shard(0));
  put("w2", Shard(0));
  put("emb", Shard(0));
}

}  // namespace dtensor::test
