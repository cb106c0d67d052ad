// The first half runs the nodes between outputs and inputs, for the edges toward the inputs only, and keeps the
// gradients that arrive at these nodes. Then these edges are cut, so that the remaining graph leads from the kept
// gradients to the weights; one ordinary backward over it is the second half. A weight that is used twice is therefore
// accumulated once, by autograd's own dependency count.
#include "pipeline/split_backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "dtensor/hooks.h"
#include "internal/microbatch_sums.h"
#include "internal/scoped_value.h"

namespace dtensor::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Stores the gradients that arrive at a node.
struct Keep final : torch::autograd::FunctionPreHook {
  explicit Keep(variable_list* to) : kept(to) {}
  variable_list operator()(const variable_list& grads) override {
    *kept = grads;
    return grads;
  }
  variable_list* kept;
};

// Installs a Keep at each of some nodes during its lifetime. Removes them even if the pass throws, because the graph
// may still be used.
class Keepers {
 public:
  explicit Keepers(const std::vector<Node*>& nodes) : nodes_(nodes) {
    for (Node* node : nodes_) node->add_pre_hook(std::make_unique<Keep>(&arrived_[node]));
  }
  ~Keepers() {
    for (Node* node : nodes_) node->pre_hooks().pop_back();
  }
  Keepers(const Keepers&) = delete;
  Keepers& operator=(const Keepers&) = delete;
  std::unordered_map<Node*, variable_list> take() { return std::move(arrived_); }

 private:
  const std::vector<Node*>& nodes_;
  std::unordered_map<Node*, variable_list> arrived_;
};

// The graph below some roots, and which of its nodes are on a path to the inputs.
class Between {
 public:
  Between(const torch::autograd::edge_list& roots, const Tensors& inputs) {
    for (const at::Tensor& input : inputs) ends_.insert(torch::autograd::impl::gradient_edge(input).function.get());
    for (const Edge& root : roots) visit(root.function.get());
  }
  bool reaches_inputs(Node* node) const { return reaches_inputs_.at(node); }
  bool recomputes() const { return recomputes_; }
  const std::vector<Node*>& path_to_inputs() const { return path_to_inputs_; }

 private:
  // Depth first, without recursion, because graphs are as deep as models. A node is finished after all its descendants.
  void visit(Node* root) {
    std::vector<std::pair<Node*, std::size_t>> open;
    const auto enter = [&](Node* node) {
      if (node != nullptr && reaches_inputs_.try_emplace(node, ends_.contains(node)).second) open.emplace_back(node, 0);
    };
    enter(root);
    while (!open.empty()) {
      Node* node = open.back().first;
      const std::size_t next = open.back().second++;
      if (next < node->next_edges().size()) {
        enter(node->next_edges()[next].function.get());
      } else {
        finish(node);
        open.pop_back();
      }
    }
  }

  void finish(Node* node) {
    bool leads = reaches_inputs_.at(node);
    for (const Edge& edge : node->next_edges())
      leads = leads || (edge.is_valid() && reaches_inputs_.at(edge.function.get()));
    reaches_inputs_[node] = leads;
    if (leads) path_to_inputs_.push_back(node);
    recomputes_ = recomputes_ || node->name().find("Checkpoint") != std::string::npos;
  }

  std::unordered_set<Node*> ends_;
  std::unordered_map<Node*, bool> reaches_inputs_;
  std::vector<Node*> path_to_inputs_;
  bool recomputes_ = false;
};

// The kept gradients already include the effect of hooks (of the node's tensor, its retain_grad, the node itself), so
// the second half must not run them again.
void forget_hooks(Node& node) {
  node.tensor_pre_hooks().clear();
  node.retains_grad_hooks().clear();
  node.pre_hooks().clear();
}

Tensors full_backward(const Tensors& outputs, const Tensors& gradients, const Tensors& inputs, bool reduces) {
  std::optional<NoGradientSync> later;
  if (!reduces) later.emplace();
  torch::autograd::backward(outputs, gradients);
  Tensors results;
  for (const at::Tensor& input : inputs) {
    results.push_back(input.grad());
    input.mutable_grad().reset();
  }
  return results;
}

}  // namespace

Tensors SplitBackward::backward_input(const Tensors& outputs, const Tensors& gradients, const Tensors& inputs,
                                      bool reduces) {
  torch::autograd::edge_list roots;
  for (const at::Tensor& output : outputs) roots.push_back(torch::autograd::impl::gradient_edge(output));
  const Between graph(roots, inputs);
  if (graph.recomputes()) return full_backward(outputs, gradients, inputs, reduces);
  const NoGradientSync later;  // this pass must not trigger a reduction by the FSDP schedule
  std::unordered_map<Node*, variable_list> arrived;
  Tensors results(inputs.size());
  if (!graph.path_to_inputs().empty()) {
    Keepers keepers(graph.path_to_inputs());
    results = torch::autograd::grad(outputs, inputs, gradients, /*retain_graph=*/true, false, /*allow_unused=*/true);
    arrived = keepers.take();
    indivisible_sum_ = indivisible_sum_of_last_pass();
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {  // outputs from which no input is reachable
    if (graph.reaches_inputs(roots[i].function.get())) continue;
    roots_.push_back(roots[i]);
    arrived_.push_back(gradients[i]);
  }
  for (Node* node : graph.path_to_inputs()) {
    bool open = false;
    for (Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (graph.reaches_inputs(edge.function.get())) edge = Edge();
      open = open || edge.is_valid();
    }
    if (!open) continue;
    forget_hooks(*node);
    const variable_list& grads = arrived[node];
    for (std::size_t k = 0; k < grads.size(); ++k) {
      if (!grads[k].defined()) continue;
      roots_.emplace_back(node->getptr(), static_cast<std::uint32_t>(k));
      arrived_.push_back(grads[k]);
    }
  }
  return results;
}

void SplitBackward::backward_weight() {
  const auto roots = std::move(roots_);
  const auto arrived = std::move(arrived_);
  roots_.clear();
  arrived_.clear();
  if (roots.empty()) return;
  const ScopedValue<FirstHalfOfPass> first_half({indivisible_sum_}, Recompute::unchanged);
  torch::autograd::Engine::get_default_engine().execute(roots, arrived, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace dtensor::pipeline
