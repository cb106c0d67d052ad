// Attention over a sharded sequence: the options that PyTorch's function lacks, and the strategy.
#include "dtensor/attention.h"

#include "bind.h"
#include "internal/context_parallel_scope.h"
#include "scope/scope_snapshot.h"

namespace dtensor::python {
namespace {

void bind_context_parallel(py::module_& module) {
  bind_scope<ContextParallelScope>(
      module, "ContextParallelScope",
      "While open, regular tensors that attention receives on this thread are this rank's shards of the sequence.")
      .def(py::init([](const DeviceMesh& mesh, const std::vector<std::int64_t>& lengths) {
             return ScopeContextManager<ContextParallelScope>(
                 [=] { return std::make_unique<ContextParallelScope>(mesh, lengths); });
           }),
           py::arg("mesh"), py::arg("lengths"));
  module.def("is_context_parallel", &ContextParallelScope::current,
             "Whether a ContextParallelScope is open on this thread.");
}

void bind_scope_snapshot(py::module_& module) {
  bind_scope<ScopeSnapshot::Restore>(module, "RestoredScopes",
                                     "While open, the scopes of a ScopeSnapshot are current.");
  py::class_<ScopeSnapshot>(module, "ScopeSnapshot",
                            "The open scopes of this thread that decide what functions compute.")
      .def(py::init(&ScopeSnapshot::current))
      .def("restore", [](const ScopeSnapshot& self) {
        return ScopeContextManager<ScopeSnapshot::Restore>(
            [=] { return std::make_unique<ScopeSnapshot::Restore>(self); });
      });
}

}  // namespace

void bind_attention(py::module_& module) {
  bind_context_parallel(module);
  bind_scope_snapshot(module);
  bind_scope<AttentionStrategyScope>(
      module, "attention_strategy",
      "While open, attention on this thread uses \"ring\", \"gather\" or \"ulysses\" on every "
      "mesh axis that shards the sequence,\n"
      "instead of the cheapest strategy (\"auto\"). Backward uses the strategy of forward.")
      .def(py::init([](const std::string& name) {
             const AttentionStrategy strategy = parse_attention_strategy(name);
             return ScopeContextManager<AttentionStrategyScope>(
                 [=] { return std::make_unique<AttentionStrategyScope>(strategy); });
           }),
           py::arg("name"));
  module.def(
      "attention",
      [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
         bool causal, double dropout, std::optional<double> scale, std::int64_t window,
         std::vector<std::int64_t> documents, const std::optional<at::Tensor>& sinks,
         const std::optional<at::Tensor>& row_cu_seqlens) {
        return attention(q, k, v,
                         {mask.value_or(at::Tensor()), causal, dropout, scale, window, std::move(documents),
                          sinks.value_or(at::Tensor()), row_cu_seqlens.value_or(at::Tensor())});
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("mask") = py::none(), py::arg("causal") = false,
      py::arg("dropout") = 0.0, py::arg("scale") = py::none(), py::arg("window") = 0,
      py::arg("documents") = std::vector<std::int64_t>(), py::arg("sinks") = py::none(),
      py::arg("row_cu_seqlens") = py::none(), ReleaseGil(),
      "softmax(q k^T scale + mask) v, of shape [B, H, L, F] and the dtype of q.\n\n"
      "Shapes: q [B, H, L, E], k [B, G, S, E], v [B, G, S, F]. window: query i attends to keys j with\n"
      "|i - j| < window; 0: all keys. documents: first position of each document. sinks: [H].\n"
      "row_cu_seqlens: int64 [B, D], the document boundaries of each row of the batch, padded with S.\n"
      "They replace documents, and no mask tensor is created for them.");
}

}  // namespace dtensor::python
